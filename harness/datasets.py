"""Prompts from files: ShareGPT JSON, MT-bench question.jsonl, OpenAI chat JSONL and plain prompt JSONL.

The format is told from the first entry. Only what a user says first is kept: later turns would need the answers that
other models gave. Acceptance depends on the text, so a prompt is used as it is but for a short salt in front of it,
which keeps one point's prompts out of the next one's prefix cache.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec

from harness.config import MAX_TOKENS
from harness.errors import UserError

Message = dict[str, Any]


class Sample(msgspec.Struct, frozen=True):
    """One prompt of a data set.

    Attributes:
        messages: as a chat has them; a plain prompt is one message of the user.
        output_tokens: where the data set bounds the answer itself.
    """

    messages: tuple[Message, ...]
    output_tokens: int | None = None

    @property
    def text(self) -> str:
        """The messages' words without a template: what /generate and completions get where there is no tokenizer."""
        return "\n\n".join(str(message["content"]) for message in self.messages)


class _Checked(msgspec.Struct):
    """What a sample must be to be sent: the readers take only what they need from entries of any origin."""

    messages: Annotated[tuple[_Message, ...], msgspec.Meta(min_length=1)]
    output_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)] | None


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]]


def read_dataset(path: Path) -> list[Sample]:
    """Read prompts in the file's order.

    Raises:
        UserError: it cannot be read, holds nothing, or an entry is none of the formats.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the data set {path}: {error}; give a JSON or JSON-lines file") from error
    samples = [sample for number, entry in _entries(path, text) if (sample := _sample(path, number, entry)) is not None]
    if not samples:
        raise UserError(f"the data set {path} holds no prompt; give ShareGPT, MT-bench, chat or prompt entries")
    return samples


def salted(samples: list[Sample], salt: str) -> Iterator[Sample]:
    """The samples without end, in an order and with prefixes that depend on the salt; a new pass is salted anew."""
    order = list(range(len(samples)))
    turn = 0
    while True:
        random.Random(f"{salt}/{turn}").shuffle(order)
        for place in order:
            mark = hashlib.sha256(f"{salt}/{turn}/{place}".encode()).hexdigest()[:8]
            yield _with_prefix(samples[place], f"[{mark}] ")
        turn += 1


@cache
def tokenizer_of(path: str) -> Any:
    """The Hugging Face tokenizer in a local folder, with its chat template.

    Raises:
        UserError: transformers is missing, or the folder holds no tokenizer.
    """
    try:
        from transformers import AutoTokenizer  # type: ignore[import-not-found,unused-ignore]  # optional
    except ImportError:
        raise UserError(
            "a tokenizer needs the package transformers; install it, or leave --tokenizer out: the server applies "
            "its own"
        ) from None
    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(f"no tokenizer in {path}: {error}; give a local model folder") from error


def templated_ids(sample: Sample, tokenizer: Any) -> list[int]:
    """Token ids of the sample under the tokenizer's chat template; of its bare text where it has none."""
    if tokenizer.chat_template is None:
        ids: list[int] = tokenizer.encode(sample.text)
        return ids
    text = tokenizer.apply_chat_template(list(sample.messages), add_generation_prompt=True, tokenize=False)
    templated: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return templated


def _entries(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    """(line or position, entry) of a JSON list, or of JSON lines."""
    if text.lstrip().startswith("["):
        yield from enumerate(_decoded(path, 1, text), start=1)
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield number, _decoded(path, number, line)


def _decoded(path: Path, number: int, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UserError(f"{path}:{number} is not JSON ({error}); mend the line") from error


def _sample(path: Path, number: int, entry: Any) -> Sample | None:
    """The sample of an entry; None where it is well-formed and says nothing of a user's."""
    if isinstance(entry, str):
        return _prompt(entry)
    if isinstance(entry, dict):
        for read in (_sharegpt, _mt_bench, _chat, _plain):
            try:
                found, sample = read(entry)
                if sample is not None:
                    msgspec.convert(msgspec.structs.asdict(sample), _Checked)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
                raise UserError(f"{path}: entry {number} is malformed ({error!r}); mend it") from error
            if found:
                return sample
    raise UserError(f"{path}: entry {number} is no ShareGPT, MT-bench, chat or prompt entry; mend or remove it")


def _prompt(text: str, output_tokens: int | None = None) -> Sample | None:
    return Sample(({"role": "user", "content": text},), output_tokens) if text.strip() else None


def _sharegpt(entry: dict[str, Any]) -> tuple[bool, Sample | None]:
    turns = entry.get("conversations", entry.get("conversation"))
    if turns is None:
        return False, None
    said = (turn["value"] for turn in turns if turn["from"] in ("human", "user"))
    return True, _prompt(next(said, ""))


def _mt_bench(entry: dict[str, Any]) -> tuple[bool, Sample | None]:
    return ("turns" in entry), _prompt(entry["turns"][0]) if "turns" in entry else None


def _chat(entry: dict[str, Any]) -> tuple[bool, Sample | None]:
    body = entry.get("body", entry)  # the batch format wraps it
    if "messages" not in body:
        return False, None
    messages = list(body["messages"])
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    return True, Sample(tuple(messages), limit) if messages else None


def _plain(entry: dict[str, Any]) -> tuple[bool, Sample | None]:
    text = entry.get("prompt", entry.get("text"))
    if text is None:
        return False, None
    return True, _prompt(str(text), entry.get("output_tokens", entry.get("max_tokens")))


def _with_prefix(sample: Sample, prefix: str) -> Sample:
    first, *rest = sample.messages
    content = first["content"]
    parts = isinstance(content, list)  # of text and images
    salted_content = [{"type": "text", "text": prefix}, *content] if parts else prefix + str(content)
    return Sample(({**first, "content": salted_content}, *rest), sample.output_tokens)
