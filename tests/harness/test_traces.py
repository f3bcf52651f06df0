"""Public trace formats become schedules with exact lengths."""

from pathlib import Path

import msgspec
import pytest

from harness.errors import UserError
from harness.traces import TraceRow, read_trace, replay
from harness.workload import WorkloadPlan

MOONCAKE = """\
{"timestamp": 3000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 1000, "input_length": 600, "output_length": 4, "hash_ids": [0, 9]}
"""
BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,GPT-4,0,0,0,Conversation log
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""


def test_mooncake(tmp_path: Path) -> None:
    """Milliseconds, from the first arrival, in order."""
    file = tmp_path / "trace.jsonl"
    file.write_text(MOONCAKE)
    assert read_trace(file, speedup=2.0) == [TraceRow(0.0, 600, 4, (0, 9)), TraceRow(1.0, 1100, 5, (0, 1, 2))]


def test_the_format_is_told_by_content(tmp_path: Path) -> None:
    """A name says nothing: JSON lines in a .txt, a CSV without a suffix."""
    lines, table = tmp_path / "trace.txt", tmp_path / "trace"
    lines.write_text("\n" + MOONCAKE)
    table.write_text(AZURE)
    assert [row.input_tokens for row in read_trace(lines)] == [600, 1100]
    assert [row.input_tokens for row in read_trace(table)] == [4808, 3180]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (BURSTGPT, [TraceRow(0.0, 472, 18), TraceRow(40.5, 1, 1)]),
        (AZURE, [TraceRow(0.0, 4808, 10), TraceRow(0.052, 3180, 8)]),
    ],
)
def test_csv_traces(tmp_path: Path, text: str, rows: list[TraceRow]) -> None:
    """BurstGPT and Azure are told by their columns; an empty request becomes one token."""
    file = tmp_path / "trace.csv"
    file.write_text(text)
    got = read_trace(file)
    assert [row.at_s for row in got] == pytest.approx([row.at_s for row in rows], abs=1e-5)
    assert [(row.input_tokens, row.output_tokens) for row in got] == [(r.input_tokens, r.output_tokens) for r in rows]


def test_replay_shares_prefixes_as_the_trace_did(tmp_path: Path) -> None:
    """Equal block ids are equal tokens, other blocks differ, lengths and times are the trace's."""
    file = tmp_path / "trace.jsonl"
    file.write_text(MOONCAKE)
    first, second = replay(read_trace(file), WorkloadPlan(), 1)
    one, two = (msgspec.json.decode(planned.body)["input_ids"] for planned in (first, second))
    assert (len(one), len(two)) == (600, 1100) == (first.prompt_tokens, second.prompt_tokens)
    assert one[:512] == two[:512]
    assert one[512:] != two[512:600]
    assert (first.due_s, second.due_s, first.output_tokens) == (0.0, 2.0, 4)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.jsonl", '{"timestamp": 1}', "t.jsonl:1 is no Mooncake"),
        ("t.csv", "Timestamp,Request tokens,Response tokens\n1,x,3", "t.csv:2 is no"),
        ("t.csv", "", "holds no request"),
    ],
)
def test_broken_traces_are_named(tmp_path: Path, name: str, text: str, words: str) -> None:
    """The message names the line."""
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(UserError, match=words):
        read_trace(file)
    with pytest.raises(UserError, match="cannot read the trace"):
        read_trace(tmp_path / "none.csv")
