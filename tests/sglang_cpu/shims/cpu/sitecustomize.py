"""Loaded at the start of every Python process of a test server (its folder is on PYTHONPATH): makes SGLang's CPU
engine run EAGLE speculation. Kernels are replaced, nothing else: scheduler, workers, memory pools, sampling and HTTP
server are the wheel's own.
"""

import cpu_kernels  # noqa: F401  registers its patches
import graphs  # noqa: F401  registers its patches, armed by an environment variable
import import_hooks
import probes  # noqa: F401  registers its patches, each armed by an environment variable

import_hooks.install(
    frozenset(
        [
            "IPython",
            "compressed_tensors",
            "gguf",
            "jsonschema",
            "sentencepiece",
            "sgl_kernel",
            "soundfile",
            "torchvision",
            "tvm_ffi",
            "xgrammar",
        ]
    )
)
