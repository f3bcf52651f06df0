"""`python -m patched_worker SGLANG-ARGUMENTS --speculative-disable-batch-threshold N`."""

from __future__ import annotations

import sys

from patched_worker.launch import main

if __name__ == "__main__":  # spawned children import this module again under another name
    main(sys.argv[1:])
