"""The time of a tuning: what is planned before it begins, and what is left while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic as now_s

from harness.config import SweepConfig
from harness.console import duration
from harness.errors import UserError
from harness.variants import server_plans
from tuner.asked import TuneOptions
from tuner.combinations import Combination, wanted
from tuner.hysteresis import FEWEST_ROUNDS, MOST_ROUNDS, WAVES, points_needed
from tuner.knobs import HYSTERESIS, ranks_hysteresis

START_S = {"model": 160.0, "sim": 6.0, "attach": 0.0}  # until servers are up and warm, first time on a machine
FINISH_S, FINISH_SHARE = 20.0, 0.1  # kept for stopping servers, intervals and plots
HYSTERESIS_WORDS = {"resume_at": "resume points", "min_dwell": "dwells"}


class Budget:
    """The wall-clock time of a tuning, from its command on.

    Args:
        total_s: what there is; a little of it is kept for the end.
        spent_s: what an interrupted tuning has used.
    """

    def __init__(self, total_s: float, spent_s: float = 0.0) -> None:
        self._began = now_s() - spent_s
        self._ends = self._began + total_s - min(FINISH_S, FINISH_SHARE * total_s)

    @property
    def left_s(self) -> float:
        return max(0.0, self._ends - now_s())

    @property
    def spent_s(self) -> float:
        """Of the whole tuning, in all its lives; a part of a budget says the same."""
        return now_s() - self._began

    def part(self, seconds: float) -> Budget:
        """The next so many seconds of it, as a budget of their own."""
        share = Budget(seconds)
        share._began = self._began
        share._ends = min(now_s() + seconds, self._ends)
        return share


def check_budget(config: SweepConfig, options: TuneOptions) -> None:
    """Refuse servers that cannot start, and a budget that their start and one pass over the levels would exceed.

    Raises:
        UserError: naming the budget that it takes, or what no server can be started with.
    """
    combinations = wanted(config, options.search)
    _check_lengths(config, options)
    if combinations and config.attach:
        raise UserError(
            "--search of num_steps, topk or draft_tokens starts servers: give --model and --draft, or --sim"
        )
    if config.sim is not None and any(c.topk != 1 for c in combinations):
        raise UserError(
            "simulated servers draft chains, topk 1: give topk=1 or leave it out (--search topk alone tries trees too)"
        )
    levels, settings = len(config.concurrency), options.at_each_length(config)
    if combinations:
        points, starts = levels + 2 * 2 * levels, 3
        what = "the reference and two combinations"
    else:
        points, starts = len(config.variants) * levels * len(settings), _starts_in_turn(config)
        what = "one pass over the levels" + (f" at {len(settings)} context lengths" if len(settings) > 1 else "")
    point_s = sum(each.point_s for each in settings) / len(settings)
    need_s, start_s = points * point_s, starts * START_S[kind_of(config)]
    if ranks_hysteresis(options.search):
        points += points_needed(2)
        need_s += points_needed(2) * config.point_s_at(config.max_concurrency)
        what += " and two rules under waves"
    if options.budget_s < need_s + start_s:
        raise UserError(
            f"--budget of {duration(options.budget_s)} is too short: {what} takes {points} points,"
            f" {duration(need_s)}, and the servers {duration(start_s)} to start; give more, fewer --concurrency levels"
            " or a shorter --duration"
        )


def plan(config: SweepConfig, options: TuneOptions) -> list[str]:
    """What will be done, and how long it takes, in lines for people."""
    combinations, settings = wanted(config, options.search), options.at_each_length(config)
    point_s = sum(each.point_s for each in settings) / len(settings)
    start_s = (1 + len(combinations) if combinations else _starts_in_turn(config)) * START_S[kind_of(config)]
    total = int(max(0.0, options.budget_s - start_s) / point_s)
    starts = 0 if config.attach else 1 + len(combinations) if combinations else len(server_plans(config))
    began = f"{starts} server starts (about {duration(start_s)} in all)" if starts else "no server start"
    lines = [f"plan: {began} and up to {total} points of {_took(settings)}, in {duration(options.budget_s)}"]
    if combinations:
        lines += _combinations_planned(combinations, config, options)
    else:
        first = len(config.variants) * len(config.concurrency) * len(settings)
        lines.append(
            f"  {first} points, about {duration(first * point_s)}: one pass over {len(config.concurrency)} levels"
            f" of {', '.join(config.variants)}{_at_lengths(options)}"
        )
    each = " of each length" if options.context_lengths else ""
    lines += [
        f"  then replicas of eagle3 and forced_off around the pivot{each}, until it is sharp",
        f"  then {_thresholds(options.trials)} live, and {len(config.concurrency)} points to confirm what is kept"
        f"{'; at the length with the smallest pivot' if options.context_lengths else ''}",
    ]
    if ranks_hysteresis(options.search):
        words = " and ".join(HYSTERESIS_WORDS[knob] for knob in HYSTERESIS if knob in options.search)
        lines.append(
            f"  then up to {options.trials} other {words} under ramps and bursts, in {FEWEST_ROUNDS} to {MOST_ROUNDS}"
            f" rounds of {len(WAVES)} points each"
        )
    return lines


def _combinations_planned(combinations: Sequence[Combination], config: SweepConfig, options: TuneOptions) -> list[str]:
    """The combinations, and how many of them the budget reaches for."""
    levels, start_s = len(config.concurrency), START_S[kind_of(config)]
    reference_s = start_s + levels * config.point_s
    each_s = start_s + 2 * levels * config.point_s
    reached = min(len(combinations), int((options.budget_s - reference_s) / each_s))
    shown = ", ".join(c.name for c in combinations)
    lines = [
        f"  {levels} points of the reference, then {len(combinations)} combinations, each started once: {shown}",
        f"  of each {2 * levels} points: one pass over {levels} levels of eagle3, forced_off ({duration(each_s)} with"
        " its start); one that is then clearly behind is left",
    ]
    if reached < len(combinations):
        all_s = reference_s + len(combinations) * each_s
        lines.append(f"  the budget reaches for {reached} of them, the first ones; all take {duration(all_s)} at least")
    return lines


def _check_lengths(config: SweepConfig, options: TuneOptions) -> None:
    """Refuse context lengths that cannot be sent, or that would be searched beside another axis."""
    if not options.context_lengths:
        return
    if config.dataset != "random":
        raise UserError(
            "--context-lengths makes random prompts: leave --dataset out, its prompts have their own length"
        )
    if options.search.keys() - {"threshold"} or options.objective != "score":
        raise UserError("--context-lengths is searched alone and by score: leave out --search and --objective")


def _thresholds(trials: int) -> str:
    return "one threshold" if trials == 1 else f"up to {trials} thresholds"


def _at_lengths(options: TuneOptions) -> str:
    return f", at context lengths {', '.join(map(str, options.context_lengths))}" if options.context_lengths else ""


def _took(settings: Sequence[SweepConfig]) -> str:
    """How long points take, from the smallest level to the largest."""
    ends = [each.point_s_at(level) for each in settings for level in each.concurrency]
    short, long = round(min(ends)), round(max(ends))
    return f"{short} s" if short == long else f"{short} to {long} s"


def kind_of(config: SweepConfig) -> str:
    """Where the servers come from: model, sim or attach."""
    return "model" if config.model is not None else "sim" if config.sim is not None else "attach"


def _starts_in_turn(config: SweepConfig) -> int:
    """How often servers are waited for; those that are up together also start together."""
    return 1 if config.together else len(server_plans(config))
