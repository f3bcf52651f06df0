"""What is sent: request lists that are drawn from a seed, encoded once and hashed.

A list depends on the seed, the concurrency and the repeat, never on the variant, so every variant of a point gets
the same bytes and no two points share a prefix that a cache could serve. The default data set is random token ids:
their length is exact on every tokenizer, and none is needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from harness.api import API_PATHS as API_PATHS
from harness.api import Api as Api
from harness.api import PlannedRequest as PlannedRequest
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
        input_tokens, output_tokens: length of prompt and answer, in tokens.
        vocab_size: random ids stay below it.
        ignore_eos: the server must generate exactly output_tokens.
        sampling: sampling parameters beyond those, as the API names them.
    """

    dataset: str = "random"
    input_tokens: int = 128
    output_tokens: int = 128
    seed: int = 0
    api: Api = "generate"
    model: str = "default"
    vocab_size: int = 32000
    ignore_eos: bool = True
    sampling: dict[str, Any] = {}

    def requests(self, concurrency: int, repeat: int) -> Iterator[PlannedRequest]:
        """The endless request list of one point: made as it is read."""
        index = 0
        while True:
            yield self._request(concurrency, repeat, index)
            index += 1

    def describe(self, concurrency: Sequence[int], repeats: int) -> Workload:
        """The manifest's entry; its hash covers the first HASHED_REQUESTS bodies of every point."""
        digest = hashlib.sha256()
        for level in concurrency:
            for repeat in range(1, repeats + 1):
                for _, planned in zip(range(HASHED_REQUESTS), self.requests(level, repeat), strict=False):
                    digest.update(planned.body)
        return Workload(
            dataset=self.dataset,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            seed=self.seed,
            sha256=digest.hexdigest(),
            api=self.api,
        )

    def _request(self, concurrency: int, repeat: int, index: int) -> PlannedRequest:
        salt = f"{self.seed}/{concurrency}/{repeat}/{index}"
        if self.api == "chat":
            prompt: Any = _random_text(salt, self.input_tokens)
            known = None
        else:
            prompt = _draw(salt, self.input_tokens, min(RESERVED_IDS, self.vocab_size // 8), self.vocab_size)
            known = self.input_tokens
        body = encode_body(self, prompt, self.output_tokens)
        return PlannedRequest(index, body, known, self.output_tokens if self.ignore_eos else None)


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


def _draw(salt: str, count: int, low: int, high: int) -> list[int]:
    """`count` whole numbers in [low, high): from SHAKE, so equal on every machine and library version."""
    raw = np.frombuffer(hashlib.shake_128(salt.encode()).digest(4 * count), dtype="<u4")
    drawn: list[int] = (low + raw % np.uint32(high - low)).tolist()
    return drawn
