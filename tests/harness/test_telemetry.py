"""GPU figures over a window, from a stand-in for NVML."""

import time
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from harness import telemetry
from harness.telemetry import GpuSample, GpuSampler


class FakeNvml:
    """Two GPUs, the second busier."""

    NVML_CLOCK_SM = 1
    NVMLError = RuntimeError
    nvmlClocksEventReasonHwThermalSlowdown = 0x40

    nvmlDeviceGetCount = staticmethod(lambda: 2)
    nvmlDeviceGetHandleByIndex = staticmethod(lambda index: index)
    nvmlDeviceGetUtilizationRates = staticmethod(lambda handle: SimpleNamespace(gpu=(30, 90)[handle]))
    nvmlDeviceGetPowerUsage = staticmethod(lambda handle: (100_000, 600_000)[handle])
    nvmlDeviceGetClockInfo = staticmethod(lambda handle, kind: (500, 1980)[handle])
    nvmlDeviceGetCurrentClocksEventReasons = staticmethod(lambda handle: (0, 0x41)[handle])


def test_samples_sum_power_and_name_the_busiest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power of all GPUs; clock, use and throttling of the one that works."""
    fake: Any = FakeNvml()
    monkeypatch.setattr(telemetry, "_nvml", lambda: fake)
    monkeypatch.setattr(telemetry, "PERIOD_S", 0.01)
    start_s = time.monotonic()
    with GpuSampler() as sampler:
        while not sampler.samples:
            time.sleep(0.01)
    figures = sampler.figures(start_s, time.monotonic())
    assert figures is not None
    assert (figures.power_w, figures.sm_clock_mhz, figures.throttled) == (700.0, 1980, True)
    assert figures.utilisation == pytest.approx(0.9)


def test_what_is_asked_of_nvml_exists() -> None:
    """A misspelt reason would never be seen: the names are those of NVIDIA's own module."""
    names = [name for name in vars(FakeNvml) if name.startswith(("nvml", "NVML"))]
    names += [f"nvmlClocksEventReason{name}" for name in telemetry._THROTTLING]
    assert [name for name in names if not hasattr(pynvml, name)] == []


def test_only_the_window_counts() -> None:
    """Samples outside do not count; one in ten throttled is not yet throttling."""
    sampler = GpuSampler()
    sampler.samples = [GpuSample(float(at), 100.0 + at, 0.5, 1000.0, at == 3) for at in range(20)]
    figures = sampler.figures(2.0, 12.0)
    assert figures is not None
    assert (figures.power_w, figures.throttled) == (106.5, False)
    assert sampler.figures(50.0, 60.0) is None


def test_without_nvml_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread, no figures, no failure."""
    monkeypatch.setattr(telemetry, "_nvml", lambda: None)
    with GpuSampler() as sampler:
        pass
    assert sampler.figures(0.0, 1e9) is None
