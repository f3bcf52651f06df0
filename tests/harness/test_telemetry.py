"""GPU figures over a window, from a stand-in for NVML."""

import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from harness import gpus, telemetry
from harness.bench import Bench, with_gpu
from harness.config import make_config
from harness.gpus import machine_gpus
from harness.load import LoadResult
from harness.load_plan import ClientStats
from harness.manifest import new_manifest, workload_of
from harness.records import Gpu, LevelRow, PointKey, Variant
from harness.runfolder import RunWriter
from harness.servers import Server, running
from harness.telemetry import GpuFigures, GpuSample, GpuSampler
from harness.variants import ServerPlan

POWER_CAP, HEAT, IDLE = 0x4, 0x40, 0x1


class FakeNvml:
    """Three GPUs: one that idles along, one at its power limit, and a neighbour's, which is hot and busiest of all."""

    NVML_CLOCK_SM = 1
    NVMLError = RuntimeError
    nvmlClocksEventReasonSwPowerCap = POWER_CAP
    nvmlClocksEventReasonHwThermalSlowdown = HEAT

    nvmlInit = staticmethod(lambda: None)
    nvmlDeviceGetCount = staticmethod(lambda: 3)
    nvmlDeviceGetHandleByIndex = staticmethod(lambda index: index)
    nvmlDeviceGetUUID = staticmethod(lambda handle: f"GPU-{handle}")
    nvmlDeviceGetUtilizationRates = staticmethod(lambda handle: SimpleNamespace(gpu=(30, 90, 100)[handle]))
    nvmlDeviceGetPowerUsage = staticmethod(lambda handle: (100_000, 600_000, 700_000)[handle])
    nvmlDeviceGetClockInfo = staticmethod(lambda handle, kind: (500, 1980, 1200)[handle])
    nvmlDeviceGetCurrentClocksEventReasons = staticmethod(lambda handle: (IDLE, POWER_CAP, HEAT | IDLE)[handle])


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in in place of NVIDIA's module, sampled a hundred times a second."""
    fake: Any = FakeNvml()
    monkeypatch.setattr(telemetry, "nvml", lambda: fake)
    monkeypatch.setattr(gpus, "nvml", lambda: fake)
    monkeypatch.setattr(telemetry, "PERIOD_S", 0.01)


def sampled(indices: Sequence[int]) -> GpuFigures:
    start_s = time.monotonic()
    with GpuSampler(indices) as sampler:
        while not sampler.samples:
            time.sleep(0.01)
    figures = sampler.figures(start_s, time.monotonic())
    assert figures is not None
    return figures


@pytest.mark.usefixtures("nvml")
def test_only_the_servers_gpus_count() -> None:
    """Power together, the rest of the busiest among them; the neighbour's heat, power and clock are not ours."""
    ours = sampled([0, 1])
    assert (ours.power_w, ours.sm_clock_mhz, ours.flags) == (700.0, 1980, ["gpu_power_capped"])
    assert ours.utilisation == pytest.approx(0.9)
    alone = sampled([0])
    assert (alone.power_w, alone.sm_clock_mhz, alone.flags) == (100.0, 500, [])
    everything = sampled([0, 1, 2])
    assert (everything.power_w, everything.sm_clock_mhz) == (1400.0, 1200)
    assert everything.flags == ["gpu_throttled", "gpu_power_capped"]


@pytest.mark.usefixtures("nvml")
def test_the_machine_is_listed_by_number_and_uuid() -> None:
    """As the manifest names them."""
    assert machine_gpus() == (Gpu(0, "GPU-0"), Gpu(1, "GPU-1"), Gpu(2, "GPU-2"))


def test_what_is_asked_of_nvml_exists() -> None:
    """A misspelt reason would never be seen: the names, and the bits, are those of NVIDIA's own module."""
    names = [name for name in vars(FakeNvml) if name.startswith(("nvml", "NVML"))]
    reasons = [f"nvmlClocksEventReason{name}" for name in (*telemetry._THROTTLING, *telemetry._POWER_CAP)]
    assert [name for name in names + reasons if not hasattr(pynvml, name)] == []
    assert (pynvml.nvmlClocksEventReasonSwPowerCap, pynvml.nvmlClocksEventReasonHwThermalSlowdown) == (POWER_CAP, HEAT)


def test_only_the_window_counts() -> None:
    """Samples outside do not count; one in ten throttled is not yet throttling, two of the power cap are."""
    sampler = GpuSampler([])
    sampler.samples = [GpuSample(float(at), 100.0 + at, 0.5, 1000.0, at == 3, at in (4, 5)) for at in range(20)]
    figures = sampler.figures(2.0, 12.0)
    assert figures is not None
    assert (figures.power_w, figures.throttled, figures.power_capped) == (106.5, False, True)
    assert sampler.figures(50.0, 60.0) is None


def test_a_row_gets_figures_and_flags() -> None:
    """The window is on the point's clock, samples are on the machine's; remarks join those that are there."""
    sampler = GpuSampler([])
    sampler.samples = [GpuSample(100.0 + at, 650.0, 1.0, 1755.0, False, True) for at in range(10)]
    row = LevelRow("baseline", 1, 1, "done", "ok", flags="few_requests")
    result = LoadResult(2.0, 6.0, 100.0, ClientStats(), 1)
    got = with_gpu(row, sampler, result)
    assert (got.gpu_power_w, got.gpu_sm_clock_mhz, got.flags) == (650.0, 1755.0, "few_requests gpu_power_capped")
    assert with_gpu(row, GpuSampler([]), result) == row


@pytest.mark.usefixtures("nvml")
def test_a_point_is_measured_with_its_servers_gpus(tmp_path: Path) -> None:
    """From the variable a server is started with, through the manifest's record, to the row, neighbours never count."""
    command = (sys.executable, "-m", "harness.mock", "--ttft", "0.01", "--gap", "0.002")
    plan = ServerPlan("baseline", ("baseline",), command, {"CUDA_VISIBLE_DEVICES": "1"})
    config = make_config(
        {"attach": {"baseline": "http://127.0.0.1:1"}, "variants": ["baseline"], "concurrency": [1], "repeats": 1}
        | {"duration": 2.0, "warmup": 0.1, "output_tokens": 8, "client_workers": 1}
    )
    with running([plan], tmp_path, 200.0, threading.Event(), lambda line: None) as found:
        server = found["baseline"]
        assert isinstance(server, Server)
        assert server.record.gpus.counted == (Gpu(1, "GPU-1"),)
        with RunWriter.create(tmp_path / "run", new_manifest(config, ())) as writer:
            servers: dict[Variant, Server] = {"baseline": server}
            bench = Bench(config, writer, servers, workload_of(config), Counter(), threading.Event())
            row = bench.measure(PointKey("baseline", 1, 1), None)
    assert (row.gpu_power_w, row.gpu_sm_clock_mhz) == (600.0, 1980.0)
    assert row.gpu_utilisation == pytest.approx(0.9)
    assert "gpu_power_capped" in row.flags.split()


def test_without_nvml_or_gpus_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread, no figures, no failure."""
    monkeypatch.setattr(telemetry, "nvml", lambda: None)
    monkeypatch.setattr(gpus, "nvml", lambda: None)
    for indices in ([0], []):
        with GpuSampler(indices) as sampler:
            pass
        assert sampler.figures(0.0, 1e9) is None
    assert machine_gpus() == ()
