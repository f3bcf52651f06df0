"""`python -m sglang.launch_server` that does what the variable FAULT says, then serves timetables instead of a model.

A fault is that of a server that speculates only; the reference beside it is well.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time


def main() -> None:
    port = sys.argv[sys.argv.index("--port") + 1]
    fault = os.environ.get("FAULT", "") if "--speculative-algorithm" in sys.argv else ""
    if fault == "out_of_memory":
        raise MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if fault == "killed":  # as by the kernel, when the host's memory is at its end
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "orphans":  # its scheduler does not notice that the launcher is gone
        sleeper = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", sleeper])
        raise RuntimeError("the launcher has failed")
    if fault == "deaf":
        time.sleep(600)
    if fault == "slow":
        time.sleep(4)
    timing = ["--ttft", "0.02", "--gap", os.environ.get("GAP", "0.005")]
    os.execv(sys.executable, [sys.executable, "-m", "harness.mock", "--port", port, *timing])


if __name__ == "__main__":
    main()
