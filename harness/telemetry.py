"""Power, clocks and use of a server's GPUs while a point is measured, by NVML.

A sampling thread of the measuring process, which is not a client process. Figures are over the measuring window, so
start and end are given afterwards, on the monotonic clock. Where there is no NVML there are no figures.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import msgspec

from harness.gpus import nvml
from harness.transport import monotonic

PERIOD_S = 0.5
OFTEN = 0.1  # share of the samples
# Reasons for lower clocks that mean a fault of cooling or supply. Idle is none, and the power cap is another matter.
_THROTTLING = ("HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
_POWER_CAP = ("SwPowerCap",)


class GpuSample(msgspec.Struct, frozen=True):
    """A server's GPUs at one moment: power is their sum, a reason counts on any, the rest is of the busiest."""

    at_s: float
    power_w: float
    utilisation: float  # share of time with a kernel running, 0 to 1
    sm_clock_mhz: float
    throttled: bool
    power_capped: bool = False


class GpuFigures(msgspec.Struct, frozen=True):
    """Over a window: mean power of the GPUs together, and mean clock and utilisation of the busiest.

    Attributes:
        throttled: heat or a power brake lowered the clocks in more than OFTEN of the samples.
        power_capped: the power limit did, which is how a GPU under full load is meant to run.
    """

    power_w: float
    utilisation: float
    sm_clock_mhz: float
    throttled: bool
    power_capped: bool

    @property
    def flags(self) -> list[str]:
        """The remarks of a row."""
        remarks = {"gpu_throttled": self.throttled, "gpu_power_capped": self.power_capped}
        return [name for name, holds in remarks.items() if holds]


class GpuSampler:
    """Samples from entering to leaving; without a GPU or NVML it does nothing.

    Args:
        indices: NVML's numbers of the GPUs that count.
    """

    def __init__(self, indices: Sequence[int]) -> None:
        self.samples: list[GpuSample] = []
        self._indices = tuple(indices)
        self._nvml: Any = nvml() if indices else None
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
            throttled=sum(s.throttled for s in inside) > OFTEN * count,
            power_capped=sum(s.power_capped for s in inside) > OFTEN * count,
        )

    def _run(self) -> None:
        while not self._end.wait(PERIOD_S):
            try:
                self.samples.append(_sample(self._nvml, self._indices))
            except self._nvml.NVMLError:
                return  # a GPU that stopped answering has no figures


def _sample(nvml: Any, indices: Sequence[int]) -> GpuSample:
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in indices]
    use = [nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for handle in handles]
    busiest = handles[use.index(max(use))]
    reasons = 0
    for handle in handles:
        reasons |= nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    return GpuSample(
        at_s=monotonic(),
        power_w=sum(nvml.nvmlDeviceGetPowerUsage(handle) for handle in handles) / 1000,
        utilisation=max(use),
        sm_clock_mhz=nvml.nvmlDeviceGetClockInfo(busiest, nvml.NVML_CLOCK_SM),
        throttled=bool(reasons & _bits(nvml, _THROTTLING)),
        power_capped=bool(reasons & _bits(nvml, _POWER_CAP)),
    )


def _bits(nvml: Any, names: Sequence[str]) -> int:
    bits = 0
    for name in names:
        bits |= getattr(nvml, f"nvmlClocksEventReason{name}", 0)
    return bits
