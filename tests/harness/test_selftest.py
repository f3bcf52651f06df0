"""The calibration is made, kept and found again, on this machine only."""

from pathlib import Path

import msgspec
import pytest

from harness.selftest import load_calibration, save_calibration, selftest


def test_selftest_calibrates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One short level against the real mock gives a cost per token and a limit."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load_calibration() is None
    report = selftest(levels=(4,), seconds=3.0)
    (level,) = report.levels
    assert level.tok_per_s > 0
    assert level.cpu_us_per_token > 0
    assert report.max_tok_per_s == pytest.approx(0.85 / (level.cpu_us_per_token * 1e-6))
    file = save_calibration(report)
    assert load_calibration() == report.calibration
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(report, host="elsewhere")))
    assert load_calibration() is None
