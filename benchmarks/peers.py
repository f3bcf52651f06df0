"""The load generators of others that benchmarks/client.py runs beside ours: their commands, and what they report.

Each command sends `Case.requests` prompts of INPUT_TOKENS to the mock and asks for OUTPUT_TOKENS; each reader takes the
figures that the tool itself prints or saves.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import msgspec

OUTPUT_TOKENS = 128
INPUT_TOKENS = 128


class Case(msgspec.Struct, frozen=True):
    """One run of one tool."""

    tool: str
    url: str
    concurrency: int
    requests: int
    out: Path


class Reported(msgspec.Struct, frozen=True):
    """What a tool says of its run; None where it does not."""

    ttft_p50_s: float | None
    gap_p99_s: float | None


def sglang(case: Case, command: str, tokenizer: str, rust: bool) -> list[str]:
    return [
        *shlex.split(command),
        *(["--rust-client"] if rust else []),
        *(
            "--backend",
            "sglang",
            "--base-url",
            case.url,
            "--model",
            tokenizer,
            "--tokenizer",
            tokenizer,
            "--dataset-name",
            "random-ids",
        ),
        *("--tokenize-prompt", "--random-input-len", str(INPUT_TOKENS), "--random-output-len", str(OUTPUT_TOKENS)),
        *("--random-range-ratio", "1", "--num-prompts", str(case.requests), "--warmup-requests", "0"),
        *("--max-concurrency", str(case.concurrency), "--disable-tqdm", "--output-file", str(case.out)),
    ]


def vllm(case: Case, command: str, tokenizer: str) -> list[str]:
    return [
        *shlex.split(command),
        *("bench", "serve", "--backend", "openai", "--base-url", case.url, "--endpoint", "/v1/completions"),
        *("--model", "mock", "--tokenizer", tokenizer, "--dataset-name", "random", "--ignore-eos"),
        *("--random-input-len", str(INPUT_TOKENS), "--random-output-len", str(OUTPUT_TOKENS)),
        *("--num-prompts", str(case.requests), "--max-concurrency", str(case.concurrency)),
        *("--percentile-metrics", "ttft,itl", "--metric-percentiles", "50,99"),
        *("--save-result", "--result-filename", str(case.out)),
    ]


def aiperf(case: Case, command: str, tokenizer: str) -> list[str]:
    """Offline it finds a tokenizer in the hub's cache only, so it is given one."""
    cache = Path(f"{case.out}.hub")
    model = cache / "hub" / "models--local--tokenizer"
    snapshot = model / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(Path(tokenizer).resolve())
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(snapshot.name)
    return [
        *("env", "HF_HUB_OFFLINE=1", f"HF_HOME={cache}", *shlex.split(command)),
        *("profile", "-m", "mock", "-u", case.url, "--endpoint-type", "completions", "--streaming"),
        *("--tokenizer", "local/tokenizer", "--isl", str(INPUT_TOKENS), "--osl", str(OUTPUT_TOKENS), "--ui", "none"),
        *("--extra-inputs", "ignore_eos:true", "--request-count", str(case.requests)),
        *("--concurrency", str(case.concurrency), "--artifact-dir", f"{case.out}.d"),
    ]


def guidellm(case: Case, command: str, tokenizer: str) -> list[str]:
    return [
        *shlex.split(command),
        *("run", "--backend", f"kind=openai_http,target={case.url}"),
        *("--profile", f"kind=concurrent,streams={case.concurrency}"),
        *("--constraint", f"kind=max_requests,count={case.requests}"),
        *("--tokenizer", f"kind=hf_auto,model={tokenizer}", "--output", f"kind=json,path={case.out}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={INPUT_TOKENS},output_tokens={OUTPUT_TOKENS}"),
        "--disable-console",
    ]


def read_milliseconds(out: Path) -> Reported:
    """The results of sglang and vLLM."""
    said = json.loads(out.read_text().strip().splitlines()[-1])
    return Reported(said["median_ttft_ms"] / 1e3, said["p99_itl_ms"] / 1e3)


def read_aiperf(out: Path) -> Reported:
    said = json.loads((Path(f"{out}.d") / "profile_export_aiperf.json").read_text())
    return Reported(said["time_to_first_token"]["p50"] / 1e3, None)  # its ITL is one mean per request


def read_guidellm(out: Path) -> Reported:
    said = json.loads(out.read_text())["benchmarks"][0]["metrics"]
    return Reported(said["time_to_first_token_ms"]["successful"]["percentiles"]["p50"] / 1e3, None)
