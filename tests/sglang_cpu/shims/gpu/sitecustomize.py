"""Loaded at the start of every Python process of a test server on a GPU: the same probes as on a CPU, and operators
that take float32. Everything else is the wheel's own.
"""

import import_hooks
import native_operators  # noqa: F401  registers its patch
import probes  # noqa: F401  registers its patches, each armed by an environment variable

import_hooks.install(frozenset())
