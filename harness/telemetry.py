"""Power, clocks and use of this machine's GPUs while a point is measured, by NVML.

A sampling thread of the measuring process, which is not a client process. Figures are over the measuring window, so
start and end are given afterwards, on the monotonic clock. Where there is no NVML there are no figures.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import msgspec

from harness.transport import monotonic

PERIOD_S = 0.5
# Reasons for lower clocks that mean a slower GPU than the model's: power cap, heat, brake. Idle is none.
_THROTTLING = ("SwPowerCap", "HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")


class GpuSample(msgspec.Struct, frozen=True):
    """All GPUs at one moment: power is their sum, the rest is of the busiest."""

    at_s: float
    power_w: float
    utilisation: float  # share of time with a kernel running, 0 to 1
    sm_clock_mhz: float
    throttled: bool


class GpuFigures(msgspec.Struct, frozen=True):
    """Over a window: mean power of all GPUs, and mean clock and utilisation of the busiest.

    Attributes:
        throttled: in more than a tenth of the samples.
    """

    power_w: float
    utilisation: float
    sm_clock_mhz: float
    throttled: bool


class GpuSampler:
    """Samples from entering to leaving; without NVML it does nothing."""

    def __init__(self) -> None:
        self.samples: list[GpuSample] = []
        self._nvml = _nvml()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> GpuSampler:
        if self._nvml is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end.set()
        if self._nvml is not None:
            self._thread.join()

    def figures(self, start_s: float, end_s: float) -> GpuFigures | None:
        """Over a window on the monotonic clock; None without a sample in it."""
        inside = [sample for sample in self.samples if start_s <= sample.at_s < end_s]
        if not inside:
            return None
        count = len(inside)
        return GpuFigures(
            power_w=sum(s.power_w for s in inside) / count,
            utilisation=sum(s.utilisation for s in inside) / count,
            sm_clock_mhz=sum(s.sm_clock_mhz for s in inside) / count,
            throttled=sum(s.throttled for s in inside) > count / 10,
        )

    def _run(self) -> None:
        while not self._end.wait(PERIOD_S):
            try:
                self.samples.append(_sample(self._nvml))
            except self._nvml.NVMLError:
                return  # a GPU that stopped answering has no figures


def _nvml() -> Any:
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml if pynvml.nvmlDeviceGetCount() else None
    except (ImportError, OSError):
        return None
    except pynvml.NVMLError:
        return None


def _sample(nvml: Any) -> GpuSample:
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    use = [nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for handle in handles]
    busiest = handles[use.index(max(use))]
    reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(busiest)
    bad = (getattr(nvml, f"nvmlClocksEventReason{name}", 0) for name in _THROTTLING)
    return GpuSample(
        at_s=monotonic(),
        power_w=sum(nvml.nvmlDeviceGetPowerUsage(handle) for handle in handles) / 1000,
        utilisation=max(use),
        sm_clock_mhz=nvml.nvmlDeviceGetClockInfo(busiest, nvml.NVML_CLOCK_SM),
        throttled=any(reasons & reason for reason in bad),
    )
