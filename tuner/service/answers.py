"""What the service answers of jobs and servers, as records: the JSON on the wire and its schemas are these.

Times are seconds since 1970 where a name ends in `created_s`, `started_s`, `ended_s`, `since_s` or `at_s`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tuner.service.names import PATTERN

Name = Annotated[str, msgspec.Meta(pattern=PATTERN)]
JobKind = Literal["sweep", "tune"]
JobState = Literal["running", "done", "failed", "interrupted", "cancelled"]
ServerState = Literal["up", "down", "lacking", "lying"]
AutopilotState = Literal["off", "dry_run", "on"]
# The two ends of an interval of thresholds; null at its upper end never disables.
Bounds = Annotated[list[int | None], msgspec.Meta(min_length=2, max_length=2)]


class Error(msgspec.Struct, frozen=True):
    """Why something was not done, in one line."""

    error: str


# ---- jobs


class Job(msgspec.Struct, frozen=True):
    """One sweep or tuning. `server` is a registered server, or sim:PRESET. `points_planned` of a tuning is the most it
    may measure. `message` is the last line of its log that says something."""

    id: str
    kind: JobKind
    run: str
    server: str
    state: JobState
    created_s: float
    started_s: float
    ended_s: float | None
    exit_code: int | None
    points_done: int
    points_planned: int
    eta_s: float | None
    message: str
    resumable: bool


class Jobs(msgspec.Struct, frozen=True):
    """Every job, newest first."""

    jobs: list[Job]


class Log(msgspec.Struct, frozen=True):
    """The end of a job's log."""

    lines: list[str]


class Presets(msgspec.Struct, frozen=True):
    """The presets that a simulated job may name."""

    presets: list[str]
    default: str


# ---- servers


class Move(msgspec.Struct, frozen=True):
    """One move of the autopilot."""

    at_s: float
    from_: int | None = msgspec.field(name="from")
    to: int | None
    reason: str


class Autopilot(msgspec.Struct, frozen=True):
    """Whether the autopilot moves this server's threshold, within which bounds, and its last move."""

    state: AutopilotState = "off"
    bounds: Bounds | None = None
    last_move: Move | None = None


class Server(msgspec.Struct, frozen=True):
    """A registered server as it was seen last.

    `state`: up; down (no answer); lacking (an answer, but no JSON at /server_info); lying (what it says cannot be).
    `threshold`, `resume_at`, `min_dwell`, `switches` and the step counts are a patched server's own, null elsewhere; a
    null threshold beside step counts never disables. `batch`, `accept_len`, `tok_per_s` and `speculating` are of the
    time between the last two looks. `simulated` is null for as long as it did not say.
    """

    name: str
    url: str
    state: ServerState
    since_s: float
    problem: str | None = None
    worker: str | None = None
    version: str | None = None
    threshold: int | None = None
    resume_at: int | None = None
    min_dwell: int | None = None
    batch: float | None = None
    speculating: bool | None = None
    switches: int | None = None
    steps_on: int | None = None
    steps_off: int | None = None
    ungated: int | None = None
    accept_len: float | None = None
    tok_per_s: float | None = None
    job: str | None = None
    simulated: bool | None = None
    autopilot: Autopilot = Autopilot()


class Servers(msgspec.Struct, frozen=True):
    """Every registered server, by name."""

    servers: list[Server]


class Gone(msgspec.Struct, frozen=True):
    """The server that is registered no more."""

    name: str


class Asked(msgspec.Struct, frozen=True):
    """The policy that was asked for; a null threshold never disables."""

    threshold: int | None
    resume_at: int | None
    min_dwell_steps: int


class ReadBack(msgspec.Struct, frozen=True):
    """The policy that the server reports afterwards; a null threshold never disables."""

    threshold: int | None
    resume_at: int | None
    min_dwell: int | None
    policy_id: str | None
    last_error: str | None


class Applied(msgspec.Struct, frozen=True):
    """What was asked of a server, what it reports, and whether the two agree."""

    asked: Asked
    read_back: ReadBack
    agrees: bool


class AuditedMove(msgspec.Struct, frozen=True):
    """One line of the autopilot's audit log; `at_s` is when the service saw it, a look's pause after it at most."""

    at_s: float
    from_: int | None = msgspec.field(name="from")
    to: int | None
    interval: Bounds | None
    reason: str
    dry_run: bool


class Audit(msgspec.Struct, frozen=True):
    """The autopilot's moves, newest last."""

    moves: list[AuditedMove]
