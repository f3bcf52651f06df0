"""The launcher takes its own arguments out and leaves SGLang's as they are."""

from __future__ import annotations

import pytest

from patched_worker import settings
from patched_worker.launch import main, parse
from patched_worker.settings import Refusal


def test_our_arguments_become_environment_and_the_rest_is_untouched() -> None:
    """Order and values of SGLang's arguments survive."""
    environment, rest = parse(
        ["--model-path", "m", "--speculative-disable-batch-threshold", "24", "--speculative-num-steps=3", "--tp", "8"]
    )

    assert environment == {settings.THRESHOLD: "24"}
    assert rest == ["--model-path", "m", "--speculative-num-steps=3", "--tp", "8"]


def test_minus_one_is_a_value_and_not_an_option() -> None:
    """Programs pass the wire's number for never."""
    environment, rest = parse(["--speculative-disable-batch-threshold", "-1"])

    assert (environment, rest) == ({settings.THRESHOLD: "-1"}, [])


def test_abbreviations_are_not_taken_from_sglang() -> None:
    """`--speculative-min` could be an option of SGLang's tomorrow."""
    assert parse(["--speculative-min", "3"]) == ({}, ["--speculative-min", "3"])


def test_every_argument_of_ours_is_known() -> None:
    """One environment variable each."""
    arguments = [
        *("--speculative-resume-batch-threshold", "6", "--speculative-min-dwell-steps", "2"),
        *("--speculative-policy-file", "r.json", "--speculative-draft-sync-steps", "1", "--allow-modified-source"),
    ]
    environment, rest = parse(arguments)

    assert rest == []
    assert environment == {
        settings.RESUME_AT: "6",
        settings.MIN_DWELL: "2",
        settings.POLICY_FILE: "r.json",
        settings.DRAFT_SYNC_STEPS: "1",
        settings.ALLOW_MODIFIED_SOURCE: "1",
    }


def test_threshold_and_policy_file_exclude_each_other() -> None:
    """Which of the two would win is not for us to guess."""
    with pytest.raises(Refusal, match="not both"):
        parse(["--speculative-disable-batch-threshold", "4", "--speculative-policy-file", "r.json"])


def test_a_start_without_a_policy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patched worker without a rule is a mistake of the command line, not a wish."""
    for name in (settings.THRESHOLD, settings.POLICY_FILE):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(Refusal, match="speculative-disable-batch-threshold"):
        main(["--model-path", "m"])


def test_auto_its_bounds_and_the_trace_are_ours() -> None:
    """All of them travel in the environment."""
    environment, rest = parse(
        [
            "--speculative-disable-batch-threshold=auto",
            "--speculative-policy-file=r.json",
            "--speculative-auto-min=2",
            "--speculative-auto-max=64",
            "--speculative-auto-dry-run",
            "--speculative-trace-file=t",
            "--port=1",
        ]
    )

    assert rest == ["--port=1"]
    assert environment == {
        settings.THRESHOLD: "auto",
        settings.POLICY_FILE: "r.json",
        settings.AUTO_MIN: "2",
        settings.AUTO_MAX: "64",
        settings.AUTO_DRY_RUN: "1",
        settings.TRACE_FILE: "t",
    }
