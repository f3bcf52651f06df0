"""Prompts come out of every file format, salted per point; broken files are named."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.datasets import read_dataset, salted, templated_ids
from harness.errors import UserError
from harness.workload import WorkloadPlan

SHAREGPT = [
    {"id": "a", "conversations": [{"from": "human", "value": "Hi?"}, {"from": "gpt", "value": "Hello."}]},
    {"id": "b", "conversations": [{"from": "gpt", "value": "nobody asked"}]},
    {"id": "c", "conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "Why\n\u00e9?"}]},
]
LINES: dict[str, list[Any]] = {
    "mt_bench": [{"question_id": 81, "category": "writing", "turns": ["Compose.", "Rewrite."]}],
    "chat": [{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}]}],
    "batch": [{"custom_id": "1", "body": {"messages": [{"role": "user", "content": "Go."}], "max_tokens": 7}}],
    "prompt": [{"prompt": "One."}, {"text": "Two.", "output_tokens": 5}, "Three."],
}


def write(path: Path, entries: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(entry) for entry in entries) + "\n\n", encoding="utf-8")
    return path


def test_sharegpt_gives_what_a_human_said_first(tmp_path: Path) -> None:
    """Conversations without a human turn are left out."""
    file = tmp_path / "sharegpt.json"
    file.write_text(json.dumps(SHAREGPT), encoding="utf-8")
    assert [sample.text for sample in read_dataset(file)] == ["Hi?", "Why\n\u00e9?"]


@pytest.mark.parametrize(
    ("kind", "texts", "limits"),
    [
        ("mt_bench", ["Compose."], [None]),
        ("chat", ["Be brief.\n\nGo."], [None]),
        ("batch", ["Go."], [7]),
        ("prompt", ["One.", "Two.", "Three."], [None, 5, None]),
    ],
)
def test_json_lines(tmp_path: Path, kind: str, texts: list[str], limits: list[int | None]) -> None:
    """The format is told from the entries; a limit on the answer is kept."""
    samples = read_dataset(write(tmp_path / "data.jsonl", LINES[kind]))
    assert [sample.text for sample in samples] == texts
    assert [sample.output_tokens for sample in samples] == limits


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "data:1 is not JSON"),
        ('{"prompt": "x"}\n{"question": 1}', "entry 2 is no ShareGPT"),
        ('[{"conversations": [{"value": 1}]}]', "entry 1 is malformed"),
        ('{"turns": []}', "entry 1 is malformed"),
        ('{"messages": []}', "holds no prompt"),
        ("", "holds no prompt"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, text: str, words: str) -> None:
    """One line that names file, place and remedy."""
    file = tmp_path / "data"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=words):
        read_dataset(file)
    with pytest.raises(UserError, match="cannot read the data set"):
        read_dataset(tmp_path / "missing")


def test_salt_changes_order_and_prefix(tmp_path: Path) -> None:
    """No two points, and no two passes of one point, share the beginning of a prompt."""
    samples = read_dataset(write(tmp_path / "data.jsonl", [f"prompt {i}" for i in range(50)]))
    one, again, other = (list(islice(salted(samples, salt), 100)) for salt in ("0/8/1", "0/8/1", "0/8/2"))
    assert one == again
    assert len({sample.text[:10] for sample in one + other}) == 200
    assert {sample.text[11:] for sample in one[:50]} == {sample.text for sample in samples}
    assert [sample.text[11:] for sample in one[:50]] != [sample.text[11:] for sample in other[:50]]


@pytest.mark.parametrize("api", ["generate", "completions", "chat"])
def test_a_data_set_as_workload(tmp_path: Path, api: Any) -> None:
    """Each API gets text or messages as it takes them; nobody claims to know the prompt's tokens."""
    file = write(tmp_path / "data.jsonl", LINES["batch"])
    plan = WorkloadPlan(dataset=str(file), api=api, output_tokens=9)
    (planned,) = islice(plan.requests(4, 1), 1)
    body = msgspec.json.decode(planned.body)
    prompt = body.get("text") or body.get("prompt") or body["messages"][0]["content"]
    assert prompt.endswith("] Go.")
    assert (planned.prompt_tokens, planned.output_tokens) == (None, 7)
    assert plan.describe([4], 1).input_tokens is None


class FakeTokenizer:
    """Counts words, and marks the template's ends."""

    chat_template: str | None = "yes"

    def apply_chat_template(self, messages: Any, add_generation_prompt: bool, tokenize: bool) -> str:
        return "<u> " + " ".join(message["content"] for message in messages) + " <a>"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [len(word) for word in text.split()] + [0] * add_special_tokens


def test_a_tokenizers_template_makes_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tokenizer the prompt is sent as ids, so its length is exact."""
    file = write(tmp_path / "data.jsonl", LINES["chat"])
    monkeypatch.setattr("harness.workload.tokenizer_of", lambda path: FakeTokenizer())
    (planned,) = islice(WorkloadPlan(dataset=str(file), tokenizer="here").requests(1, 1), 1)
    ids = msgspec.json.decode(planned.body)["input_ids"]
    assert ids == [3, 10, 2, 6, 3, 3]
    assert planned.prompt_tokens == 6
    bare = FakeTokenizer()
    bare.chat_template = None
    assert templated_ids(read_dataset(file)[0], bare)[-1] == 0
