"""`python -m sglang.launch_server` that does what the variable FAULT says, then serves timetables instead of a model.

A fault is that of a server that speculates only; the reference beside it is well.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1


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
    if fault == "port_taken":  # by somebody else's server, which is well, while this one cannot bind
        timing = ["--ttft", "0.02", "--gap", "0.005"]
        other = [sys.executable, "-m", "harness.mock", "--port", port, *timing]
        subprocess.Popen(other, start_new_session=True, preexec_fn=_end_with_us)
        time.sleep(600)
    if fault == "deaf":
        time.sleep(600)
    if fault == "slow":
        time.sleep(4)
    timing = ["--ttft", "0.02", "--gap", os.environ.get("GAP", "0.005")]
    os.execv(sys.executable, [sys.executable, "-m", "harness.mock", "--port", port, *timing])


def _end_with_us() -> None:
    """A process group of its own, which nobody stops: so that a test leaves nothing."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
