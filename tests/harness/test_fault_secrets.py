"""No key reaches a file or a terminal: a canary is searched for after every command, with servers that repeat it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.secrets import HIDDEN, hide
from harness.servers import reserved_ports
from tests.harness.commands import LASTING, QUICK, Command, rows_of, run
from tests.harness.faulty import before, talking
from tests.harness.leftovers import nothing_left
from tests.harness.test_sweep_faults import simulated

CANARY, ADMIN = "canary-7f3a91c2", "canary-admin-55d0"
KEYS = {"SPECPIVOT_API_KEY": CANARY, "SPECPIVOT_ADMIN_API_KEY": ADMIN}


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    with nothing_left(tmp_path):
        yield


def repeating(request: bytes) -> bytes | None:
    """Answers some requests with an error that holds their Authorization header, as debug pages do."""
    sent = re.search(rb"(?i)authorization: ([^\r]+)", request)
    if sent is None or not request.startswith(b"POST /generate") or sum(request) % 3:
        return None
    body = b'{"error": "bad request, headers: Authorization=' + sent[1] + b'"}'
    return b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def assert_no_canary(folder: Path, *commands: Command) -> None:
    """In no file of the folder, which holds the output of the commands too."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert len(files) > 3 * len(commands)
    assert [file for file in files if b"canary-" in file.read_bytes()] == []


def test_keys_stay_out_of_everything(tmp_path: Path) -> None:
    """sweep with failures, tune, recommend, report, compare, apply and verify, keys by variable and by flag."""
    key = ("--api-key", CANARY, "--admin-api-key", ADMIN)
    with (
        reserved_ports(2) as ports,
        simulated(ports[0], 1, *key),
        simulated(ports[1], 1, *key, "--variant", "dynamic"),
        talking(before(lambda: f"http://127.0.0.1:{ports[0]}", repeating)) as repeater,
    ):
        baseline, patched = (f"http://127.0.0.1:{port}" for port in ports)
        failing = ("sweep", "--attach", f"baseline={repeater}", *LASTING, "--concurrency", "2", "--repeats", "1")
        by_flag = (f"--api-key={CANARY}", "--admin-api-key", ADMIN)
        attached = [f"--attach={name}={patched}" for name in ("eagle3", "forced_off")]
        tune = ("tune", f"--attach=baseline={baseline}", *attached, *QUICK, "--concurrency", "1,4,16")
        done = [
            run(tmp_path, *failing, "--out", str(tmp_path / "failing"), *by_flag),
            run(tmp_path, *tune, "--budget", "30s", "--trials", "0", "--out", str(tmp_path / "tuned"), env=KEYS),
            run(tmp_path, "apply", str(tmp_path / "tuned"), "--url", patched, *by_flag),
            run(tmp_path, "recommend", str(tmp_path / "tuned"), env=KEYS),
            run(tmp_path, "report", str(tmp_path / "tuned"), env=KEYS),
            run(tmp_path, "compare", str(tmp_path / "tuned"), str(tmp_path / "tuned"), env=KEYS),
            run(tmp_path, "verify", str(tmp_path / "failing"), env=KEYS),
        ]
    (row,) = rows_of(tmp_path / "failing")
    assert row.errors > 0
    assert HIDDEN in (tmp_path / "failing" / "requests.jsonl").read_text()
    assert "***" in (tmp_path / "failing" / "manifest.json").read_text()  # the command line is there, without its keys
    assert_no_canary(tmp_path, *done)


@pytest.mark.parametrize(
    "words",
    [
        ("sweep", "--attach", f"baseline=http://me:{CANARY}@127.0.0.1:9"),
        ("sweep", "--attach", f"baseline=http://127.0.0.1:9/?token={CANARY}"),
        ("bench", "--url", f"http://{CANARY}:x@127.0.0.1:9", "--concurrency", "1"),
        ("sweep", "--model", "m", f"--server-arg=--api-key={CANARY}"),
        ("sweep", "--model", "m", "--server-arg=--api-key", f"--server-arg={CANARY}"),
        ("sweep", "--model", "m", f"--server-arg=--ssl-keyfile-password={CANARY}"),
        ("sweep", "--model", "m", "--server-env", f"HF_TOKEN={CANARY}"),
        ("sweep", "--attach", "baseline=http://127.0.0.1:9", f"--api-key={CANARY}\n"),
        ("tune", "--sim", "x", "--storage", f"postgresql://me:{CANARY}@127.0.0.1/db"),
        ("tune", "--sim", "x", "--storage", f"postgresql://127.0.0.1/db?password={CANARY}"),
        ("tune", "--sim", "x", "--weights", f"http://me:{CANARY}@127.0.0.1:9"),
    ],
    ids=range(11),
)
def test_secrets_in_the_wrong_place_are_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    """In one line that does not repeat them, and nothing is written."""
    done = run(tmp_path, *words, *(("--out", str(tmp_path / "run")) if words[0] != "bench" else ()))
    assert done.process.returncode == 2, done.output
    assert not (tmp_path / "run").exists()
    assert "canary-" not in done.output


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Bearer sesame!", "Bearer ***!"),
        ("sesamesesame", "******"),
        ("cut off: sesa", "cut off: ***"),
        ("open", "open"),
    ],
)
def test_hiding(text: str, shown: str) -> None:
    """Whole, repeated, and cut off at the end; a word that is not the secret stays."""
    assert hide(text, ("sesame", None, "o")) == shown
