"""What needs numpy, scipy and matplotlib, in a process of its own: `python -m tuner.service.heavy`.

One JSON line in, {"what", "arguments"}; one JSON line out, {"ok": ...} or {"refused": "why"}. The service stays small,
its event loop stays free, and what a damaged run does to a library ends here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import UserError
from harness.runfolder import RunFolder
from tuner import recommend as recommending
from tuner.compare import compare
from tuner.curves import Pivot
from tuner.export import export, measured_server
from tuner.levels import Level, levels
from tuner.service import run_answers


def curves(run: str) -> run_answers.CurvesAnswer:
    """Level means and the pivot, as the plots of the run show them."""
    folder = RunFolder(Path(run))
    rows = folder.levels()
    found = levels(rows)
    fit = _fit(folder)
    return run_answers.CurvesAnswer(
        run=folder.path.name,
        source=folder.manifest.source,
        variants={variant: [_point(level) for level in curve] for variant, curve in found.items()},
        pivot=run_answers.PivotAnswer(fit.threshold, *fit.interval, fit.shape) if fit else None,
    )


def recommendation(run: str) -> dict[str, Any]:
    """recommendation.json, checked."""
    return _told(recommending.read(RunFolder(Path(run))))


def recommend(run: str) -> dict[str, Any]:
    """Make recommendation.json anew."""
    return _told(recommending.recommend(RunFolder(Path(run))))


def exported(run: str, form: run_answers.Format) -> run_answers.ExportAnswer:
    """The recommendation in another program's words."""
    folder = RunFolder(Path(run))
    made = export(recommending.read(folder), form, measured_server(folder))
    return run_answers.ExportAnswer(form, made.text, list(made.notes))


def report(run: str) -> str:
    """The report's page."""
    from tuner.report import render  # brings matplotlib, which nothing else here needs

    return render(RunFolder(Path(run)))


def compared(a: str, b: str) -> Any:
    """What `specpivot compare` says."""
    return compare(RunFolder(Path(a)), RunFolder(Path(b)))


WORK: dict[str, Callable[..., Any]] = {
    "curves": curves,
    "recommendation": recommendation,
    "recommend": recommend,
    "export": exported,
    "report": report,
    "compare": compared,
}


def main() -> None:
    """Answer lines until there are no more."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints must not pass for an answer
    for line in sys.stdin.buffer:
        out.write(msgspec.json.encode(answer(line)) + b"\n")
        out.flush()


def answer(line: bytes) -> dict[str, Any]:
    """The answer to one line."""
    question = msgspec.json.decode(line)
    try:
        return {"ok": WORK[question["what"]](*question["arguments"])}
    except UserError as error:
        return {"refused": str(error)}


def _point(level: Level) -> run_answers.CurvePoint:
    return run_answers.CurvePoint(
        concurrency=level.concurrency,
        decode_batch=level.batch,
        tok_per_s=level.tok_per_s,
        tok_per_s_low=level.tok_per_s_low,
        tok_per_s_high=level.tok_per_s_high,
        tpot_s=level.tpot_s,
        ttft_s=level.ttft_s,
        user_tok_per_s=level.user_tok_per_s,
        points=level.repeats,
    )


def _fit(folder: RunFolder) -> Pivot | None:
    try:
        return recommending.analyse(folder).pivot
    except UserError:  # nothing to compare eagle3 with, or no eagle3: there are curves all the same
        return None


def _told(found: recommending.Recommendation) -> dict[str, Any]:
    words = [found.words[part] for part in ("recommended", "confidence", "rejected", "would_change")]
    return {**msgspec.to_builtins(found), "words": words}


if __name__ == "__main__":
    main()
