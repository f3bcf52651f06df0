"""RUN/report.html: one self-contained page that an engineer can send to a manager.

The answer comes first, then the curves, the levels, the validity of every point and why any was left out, the
confounders, and what is needed to repeat it. No script, no network, no other file.
"""

from __future__ import annotations

import io
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from harness.errors import UserError
from harness.records import VARIANTS
from harness.regular import replace_file
from harness.runfolder import RunFolder
from tuner.export import export, measured_server
from tuner.levels import levels
from tuner.plots import FIGURES, View, view
from tuner.recommend import FILE as RECOMMENDATION
from tuner.recommend import Recommendation, analyse, build, read
from tuner.style import styled
from tuner.words import BESIDE, name, span

FILE = "report.html"


def save_report(run: RunFolder) -> Path:
    """Write the report of a run; it quotes recommendation.json, or what `recommend` would say where there is none.

    Raises:
        UserError: the run has no usable point, or its folder cannot be written.
    """
    page = render(run)
    file = run.path / FILE
    try:
        replace_file(file, page.encode())
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}; mend its permissions or copy the run") from error
    return file


def render(run: RunFolder) -> str:
    """The page as text."""
    rows = run.levels()
    found, why_not = _recommendation(run)
    curves = levels(rows)
    template = _environment().get_template("report.html.j2")
    return template.render(
        title=run.path.resolve().name,
        simulated=run.manifest.source == "simulated",
        manifest=run.manifest,
        found=found,
        beside=BESIDE,
        why_not=why_not,
        threshold=name(found.threshold).removeprefix("threshold ").capitalize() if found else "",
        interval=span(*found.interval).removeprefix("threshold ").capitalize() if found else "",
        flags=_use(run, found) if found else "",
        figures=[(title, Markup(svg)) for title, svg in _figures(view(run))],
        levels=[level for variant in VARIANTS for level in curves.get(variant, [])],
        rows=sorted(rows, key=lambda row: (VARIANTS.index(row.variant), row.concurrency, row.repeat)),
        left_out=sum(not row.usable for row in rows),
        command=shlex.join(run.manifest.command),
        servers=_servers(run),
    )


def plain(value: Any) -> str:
    """A value of the manifest for people: mappings and lists without brackets."""
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {plain(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value)
    return "not known" if value is None else str(value)


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tuner"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["plain"] = plain
    environment.filters["together"] = lambda text: text.replace(" %", "\u00a0%")
    return environment


def _recommendation(run: RunFolder) -> tuple[Recommendation | None, str]:
    if (run.path / RECOMMENDATION).exists():
        return read(run), ""
    try:
        return build(run, analyse(run), slack=0.05), ""
    except UserError as error:
        return None, str(error)


def _use(run: RunFolder, found: Recommendation) -> str:
    return (
        "python -m patched_worker " + export(found, "sglang", measured_server(run)).text.strip() + " SGLANG-ARGUMENTS"
    )


def _figures(shown: View) -> list[tuple[str, str]]:
    drawn = []
    for stem, draw in FIGURES.items():
        with styled():
            out = io.StringIO()
            draw(shown).savefig(out, format="svg", metadata={"Date": None})
        svg = out.getvalue()
        # An XML prologue has no place inside a page, and ids of one figure must not meet those of another.
        svg = svg[svg.index("<svg") :].replace('id="', f'id="{stem}-').replace("url(#", f"url(#{stem}-")
        drawn.append((stem.replace("_", " "), svg.replace('href="#', f'href="#{stem}-')))
    return drawn


def _servers(run: RunFolder) -> list[dict[str, Any]]:
    played: dict[str, list[str]] = {}
    for variant, record in run.manifest.variants.items():
        played.setdefault(record.server_run, []).append(variant)
    return [
        {
            "record": record,
            "variants": ", ".join(played.get(server_run, ["no variant"])),
            "command": shlex.join(record.arguments) if record.arguments else f"attached to at {record.url}",
        }
        for server_run, record in run.manifest.servers.items()
    ]
