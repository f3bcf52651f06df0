"""What is sent: request lists that are drawn from a seed, encoded once and hashed.

A list depends on the seed, the concurrency and the repeat, never on the variant, so every variant of a point gets
the same bytes and no two points share a prefix that a cache could serve. The default data set is random token ids:
their length is exact on every tokenizer, and none is needed.

A closed loop of C users begins as if it had always run: the first C requests are such as are found under way at a
random moment. Users who all begin at the beginning grow and end together for several answers' length, and what a window
measures meanwhile (short contexts, no prefill, then many at once) is not what C users cost.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count, islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from harness.api import API_PATHS as API_PATHS
from harness.api import Api as Api
from harness.api import PlannedRequest as PlannedRequest
from harness.datasets import Sample, read_dataset, salted, templated_ids, tokenizer_of
from harness.records import Workload

HASHED_REQUESTS = 64  # of each point: a point is bounded by time, so its list has no end to hash up to
RESERVED_IDS = 1000  # low ids are bytes and special tokens in every common vocabulary
# Where there is no tokenizer, text of a chat is made from these; how many tokens it has only the server knows.
_WORDS = (
    "river stone cloud paper green morning bridge garden winter music copper silver window letter forest "
    "mountain island harbor candle mirror engine summer yellow travel market planet answer number circle "
    "orange simple quiet village ocean branch signal carbon velvet record ladder pocket thunder bottle corner "
    "desert fabric "
)


class WorkloadPlan(msgspec.Struct, frozen=True):
    """How the requests of a run are made.

    Attributes:
        dataset: "random", or a file that harness.datasets reads.
        input_tokens: length of a random prompt; in words for a chat.
        output_tokens: length of the answer, where the data set does not bound it itself.
        range_ratio: random lengths are uniform in [mean * (1 - range_ratio), mean * (1 + range_ratio)]. Equal lengths
            (0) let a closed loop fall into step: all requests end together, or none do, and throughput hangs on which.
        vocab_size: random ids stay below it.
        ignore_eos: the server must generate exactly output_tokens.
        sampling: sampling parameters beyond those, as the API names them.
        tokenizer: folder of a tokenizer, whose chat template then makes ids of a data set's messages.
        under_way: the first `concurrency` requests of a list are found under way.
    """

    dataset: str = "random"
    input_tokens: int = 128
    output_tokens: int = 128
    range_ratio: float = 0.0
    seed: int = 0
    api: Api = "generate"
    model: str = "default"
    vocab_size: int = 32000
    ignore_eos: bool = True
    sampling: dict[str, Any] = {}
    tokenizer: str | None = None
    under_way: bool = False

    def requests(self, concurrency: int, repeat: int) -> Iterator[PlannedRequest]:
        """The endless request list of one point: made as it is read.

        Raises:
            UserError: the data set or the tokenizer cannot be read.
        """
        salt, found = f"{self.seed}/{concurrency}/{repeat}", concurrency if self.under_way else 0
        return self._random(salt, found) if self.dataset == "random" else self._from_file(salt, found)

    def describe(self, concurrency: Sequence[int], repeats: int) -> Workload:
        """The manifest's entry; its hash covers the first HASHED_REQUESTS bodies of every point."""
        digest = hashlib.sha256()
        for level in concurrency:
            for repeat in range(1, repeats + 1):
                for planned in islice(self.requests(level, repeat), HASHED_REQUESTS):
                    digest.update(planned.body)
        return Workload(
            dataset=self.dataset,
            input_tokens=self.input_tokens if self.dataset == "random" else None,
            output_tokens=self.output_tokens,
            range_ratio=self.range_ratio if self.dataset == "random" else None,
            seed=self.seed,
            sha256=digest.hexdigest(),
            api=self.api,
            tokenizer=self.tokenizer,
            under_way=self.under_way,
        )

    @property
    def shares_prefix(self) -> bool:
        """Whether requests begin alike by design, with a chat template, so that cached tokens are expected."""
        return self.api == "chat" or self.tokenizer is not None

    def _lengths(self, salt: str, under_way: bool) -> tuple[int, int]:
        """(prompt tokens, output tokens); of a request under way, what it has said already is part of its prompt."""
        prompts, outputs = (
            (max(1, round(mean * (1 - self.range_ratio))), round(mean * (1 + self.range_ratio)))
            for mean in (self.input_tokens, self.output_tokens)
        )
        (prompt,) = _draw(f"{salt}/0", 1, prompts[0], prompts[1] + 1)
        if not under_way:
            (output,) = _draw(f"{salt}/1", 1, outputs[0], outputs[1] + 1)
            return prompt, output
        output = _length_found(*outputs, _share(f"{salt}/1"))
        said = int(output * _share(f"{salt}/2"))
        return prompt + said, output - said

    def _random(self, salt: str, found: int) -> Iterator[PlannedRequest]:
        for index in count():
            prompt_tokens, output_tokens = self._lengths(f"{salt}/{index}", index < found)
            if self.api == "chat":
                yield self._planned(index, _random_text(f"{salt}/{index}", prompt_tokens), output_tokens)
            else:
                yield self._planned(index, draw_ids(self, f"{salt}/{index}", prompt_tokens), output_tokens)

    def _from_file(self, salt: str, found: int) -> Iterator[PlannedRequest]:
        """Of a request found under way only the rest of its answer is asked for: what comes before it is not known."""
        tokenizer = tokenizer_of(self.tokenizer) if self.tokenizer and self.api != "chat" else None
        for index, sample in enumerate(salted(_samples(self.dataset), salt)):
            prompt: Any = list(sample.messages) if self.api == "chat" else sample.text
            if tokenizer is not None:
                prompt = templated_ids(sample, tokenizer)
            output_tokens = sample.output_tokens or self.output_tokens
            said = int(output_tokens * _share(f"{salt}/{index}")) if index < found else 0
            yield self._planned(index, prompt, output_tokens - said)

    def _planned(self, index: int, prompt: Any, output_tokens: int) -> PlannedRequest:
        known = len(prompt) if self.api != "chat" and isinstance(prompt, list) else None
        body = encode_body(self, prompt, output_tokens)
        return PlannedRequest(index, body, known, output_tokens if self.ignore_eos else None)


def encode_body(plan: WorkloadPlan, prompt: Any, output_tokens: int) -> bytes:
    """The JSON body for a prompt.

    Args:
        plan: names the API, model and sampling.
        prompt: token ids, a text, or (chat) a list of messages.
        output_tokens: the most tokens to generate; exactly so many with ignore_eos.
    """
    if plan.api == "generate":
        name = "text" if isinstance(prompt, str) else "input_ids"
        sampling = {"temperature": 0, "max_new_tokens": output_tokens, "ignore_eos": plan.ignore_eos} | plan.sampling
        return msgspec.json.encode({name: prompt, "sampling_params": sampling, "stream": True})
    content = {"prompt": prompt} if plan.api == "completions" else {"messages": _messages(prompt)}
    common = {
        "model": plan.model,
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": plan.ignore_eos,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    return msgspec.json.encode(content | common | plan.sampling)


def _messages(prompt: Any) -> Any:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def _random_text(salt: str, words: int) -> str:
    vocabulary = _WORDS.split()
    return " ".join(vocabulary[i] for i in _draw(salt, words, 0, len(vocabulary)))


def _length_found(low: int, high: int, share: float) -> int:
    """The length of an answer found at a random moment, where lengths are the whole numbers from low to high: one that
    takes twice as long is found twice as often. Every token is taken to last equally long, and a prefill no time.

    Args:
        share: uniform in [0, 1).
    """
    below, above = (low - 0.5) ** 2, (high + 0.5) ** 2  # (L + 1/2)^2 - (L - 1/2)^2 is 2 L: each length's due exactly
    return int(math.sqrt(below + share * (above - below)) + 0.5)


def draw_ids(plan: WorkloadPlan, salt: str, count: int) -> list[int]:
    """Random token ids inside the plan's vocabulary."""
    return _draw(salt, count, min(RESERVED_IDS, plan.vocab_size // 8), plan.vocab_size)


@cache
def _samples(path: str) -> list[Sample]:
    return read_dataset(Path(path))


def _share(salt: str) -> float:
    """Uniform in [0, 1)."""
    (drawn,) = _draw(salt, 1, 0, 1 << 24)
    return drawn / (1 << 24)


def _draw(salt: str, count: int, low: int, high: int) -> list[int]:
    """`count` whole numbers in [low, high): from SHAKE, so equal on every machine and library version."""
    raw = np.frombuffer(hashlib.shake_128(salt.encode()).digest(4 * count), dtype="<u4")
    drawn: list[int] = (low + raw % np.uint32(high - low)).tolist()
    return drawn
