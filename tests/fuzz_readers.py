"""Coverage-guided fuzzing of a reader: `make fuzz SECONDS=30` installs atheris and runs each reader for so long.

    python -m tests.fuzz_readers READER SECONDS

A reader returns or refuses; whatever else it raises, a hang of ten seconds or two gigabytes of memory is a finding:
libFuzzer then stops with an exit code that is not 0 and leaves the input beside it, as crash-...
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["harness", "tuner", "patched_worker"]):
    from harness.config import load_config, make_config
    from harness.datasets import read_dataset
    from harness.endpoint import specpivot_block
    from harness.errors import UserError
    from harness.http1 import MalformedResponse, ResponseFramer
    from harness.proof import identity, simulation_of, worker_of
    from harness.runfolder import RunFolder
    from harness.sim.preset import load_preset
    from harness.stream import StreamReader
    from harness.traces import read_trace
    from patched_worker.refusals import Refusal
    from patched_worker.settings import policy_from_file
    from tuner.recommend import read
    from tuner.traffic import read_weights

import msgspec

from tests.harness.test_runfolder import MANIFEST, record, row

FOLDER = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))


def named(reader: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A reader of a file that a person names."""

    def run(body: bytes) -> object:
        (FOLDER / "file.json").write_bytes(body)
        return reader(FOLDER / "file.json")

    return run


def in_run(name: str, reader: Callable[[RunFolder], object]) -> Callable[[bytes], object]:
    """A reader of a file in a run folder."""

    def run(body: bytes) -> object:
        (FOLDER / "manifest.json").write_bytes(msgspec.json.encode(MANIFEST))
        (FOLDER / name).write_bytes(body)
        return reader(RunFolder(FOLDER))

    return run


def stream(body: bytes) -> None:
    for api in ("generate", "completions", "chat"):
        reader = StreamReader(api)
        for at in range(0, len(body), 7):
            reader.feed(at / 1000, body[at : at + 7])
        reader.degenerate()


def response(body: bytes) -> None:
    framer = ResponseFramer()
    for at in range(0, len(body), 11):
        framer.feed(body[at : at + 11])
    framer.end_of_stream()


def server_info(body: bytes) -> None:
    info = msgspec.json.decode(body)
    if isinstance(info, dict):
        worker_of(info)
        identity(info)
        simulation_of(info)
        specpivot_block(info)


READERS: dict[str, Callable[[bytes], object]] = {
    "config": named(lambda file: make_config(load_config(file))),
    "dataset": named(read_dataset),
    "trace": named(read_trace),
    "preset": named(load_preset),
    "weights": named(read_weights),
    "policy": named(policy_from_file),
    "manifest": in_run("manifest.json", lambda run: run.manifest),
    "levels": in_run("levels.csv", lambda run: run.levels()),
    "requests": in_run("requests.jsonl", lambda run: list(run.requests())),
    "recommendation": in_run("recommendation.json", read),
    "stream": stream,
    "response": response,
    "server_info": server_info,
}
SOUND = {
    "manifest": msgspec.json.encode(MANIFEST),
    "requests": msgspec.json.encode(record(0)) + b"\n",
    "levels": ",".join(row().__struct_fields__).encode() + b"\nbaseline,1,1,done,ok\n",
    "stream": b'data: {"text":"a","meta_info":{"completion_tokens":1,"finish_reason":null}}\n\ndata: [DONE]\n\n',
    "response": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
    "trace": b'{"timestamp": 0, "input_length": 6, "output_length": 4, "hash_ids": [0]}\n',
    "weights": b"concurrency,weight\n1,2\n",
    "dataset": b'{"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 5}\n',
    "config": b'variants = ["baseline"]\nconcurrency = [1, 2]\nrepeats = 1\n',
    "policy": b'{"threshold": 8, "resume_at": 6, "min_dwell_steps": 16}',
}
REFUSALS = (UserError, Refusal, MalformedResponse, msgspec.DecodeError)


def main(name: str, seconds: str) -> None:
    reader = READERS[name]

    def one(body: bytes) -> None:
        said = ""
        try:
            reader(body)
        except REFUSALS as refusal:
            said = str(refusal)
        assert "\n" not in said

    corpus = FOLDER / "corpus"
    corpus.mkdir()
    (corpus / "sound").write_bytes(SOUND.get(name, b"{}"))
    atheris.Setup(
        [sys.argv[0], str(corpus), f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048", "-verbosity=0"],
        one,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
