"""What a person sees on standard error while a sweep runs: a bar with the time left, and a line per finished point."""

from __future__ import annotations

import math

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from harness.records import LevelRow, PointKey


class ConsoleReporter:
    """Writes to standard error: lines always, the bar on a terminal only. Use it as a context manager."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None, left="", visible=False)
        self._done = 0

    def __enter__(self) -> ConsoleReporter:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def say(self, line: str) -> None:
        style = "yellow" if line.startswith(("warning", "not run")) else ""
        self.console.print(Text(line, style=style), soft_wrap=True)

    def plan(self, points: int, seconds: float, at_most: bool = False) -> None:
        self._done = 0
        most = "at most " if at_most else ""
        self.say(f"{most}{points} points to measure, {most or 'about '}{duration(seconds)}")
        if points:
            self.say(_HEADING)
        self._bar.update(self._task, total=points, completed=0, visible=points > 0)

    def point(self, key: PointKey, left_s: float) -> None:
        self._bar.update(self._task, description=str(key), left=f"{duration(left_s)} left")

    def row(self, row: LevelRow) -> None:
        self._done += 1
        self._bar.update(self._task, completed=self._done)
        self.console.print(row_line(row), soft_wrap=True)


_HEADING = f"{'variant':<20}{'C':>5} {'rep':>3}  {'tok/s':>9} {'ttft p50':>10} {'tpot p50':>10}  verdict"


def row_line(row: LevelRow) -> Text:
    """One finished point as a line of a table."""
    cells = f"{row.variant:<20}{row.concurrency:>5} {row.repeat:>3}  "
    cells += f"{_number(row.output_tok_per_s, 1, 0):>9} "
    cells += f"{_number(row.ttft_p50_s, 1e3, 1, ' ms'):>10} {_number(row.tpot_p50_s, 1e3, 2, ' ms'):>10}  "
    verdict = row.verdict if row.usable else f"{row.status}: {row.verdict}"
    line = Text(cells)
    line.append(verdict, style="green" if row.usable else "bold red")
    return line.append(f" {row.flags}" if row.flags else "", style="yellow")


def _number(value: float | None, factor: float, digits: int, unit: str = "") -> str:
    return "-" if value is None else f"{value * factor:,.{digits}f}{unit}"


def duration(seconds: float) -> str:
    """A time in minutes and seconds, rounded up."""
    minutes, rest = divmod(max(0, math.ceil(seconds)), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
