"""Request lists: drawn from a seed, of exact length, equal for every variant and different for every point."""

from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from harness.workload import PlannedRequest, WorkloadPlan


def first(plan: WorkloadPlan, count: int, concurrency: int = 8, repeat: int = 1) -> list[PlannedRequest]:
    return list(islice(plan.requests(concurrency, repeat), count))


def lengths_of(planned: list[PlannedRequest]) -> list[tuple[int, int]]:
    return [(each.prompt_tokens or 0, each.output_tokens or 0) for each in planned]


@pytest.mark.parametrize("length", [1, 2, 32, 8192])
def test_random_prompts_have_exactly_their_length(length: int) -> None:
    """As many ids as planned, all inside the vocabulary, and the plan says so."""
    planned = first(WorkloadPlan(input_tokens=length, output_tokens=9), 3)
    for number, request in enumerate(planned):
        body = msgspec.json.decode(request.body)
        assert len(body["input_ids"]) == length == request.prompt_tokens
        assert all(1000 <= i < 32000 for i in body["input_ids"])
        assert body["sampling_params"] == {"temperature": 0, "max_new_tokens": 9, "ignore_eos": True}
        assert body["stream"] is True
        assert (request.index, request.output_tokens) == (number, 9)


def test_a_list_is_the_same_each_time() -> None:
    """Bytes are drawn from SHAKE: this hash holds on every machine and library version."""
    assert first(WorkloadPlan(), 20) == first(WorkloadPlan(), 20)
    described = WorkloadPlan(input_tokens=4).describe([1, 2], 2)
    assert described.sha256 == "d5779d195d39e1802ca1485b4b5dc3c27c17672a6b49433889968688d0259018"


def test_points_share_no_prefix() -> None:
    """Seed, concurrency and repeat each change every prompt from its first ids on."""
    lists = [
        first(WorkloadPlan(seed=seed), 20, concurrency, repeat)
        for seed in (0, 1)
        for concurrency in (4, 8)
        for repeat in (1, 2)
    ]
    heads = {bytes(request.body[:40]) for requests in lists for request in requests}
    assert len(heads) == 8 * 20


def test_a_small_vocabulary_is_respected() -> None:
    """A test model's vocabulary bounds the ids."""
    body = msgspec.json.decode(first(WorkloadPlan(vocab_size=300), 1)[0].body)
    assert max(body["input_ids"]) < 300


def test_stopping_early_can_be_allowed() -> None:
    """Without ignore_eos no number of output tokens is demanded."""
    (request,) = first(WorkloadPlan(ignore_eos=False), 1)
    assert request.output_tokens is None


def test_openai_bodies_ask_for_usage_in_every_chunk() -> None:
    """completions takes ids; chat takes text, whose length only the server knows."""
    (completions,) = first(WorkloadPlan(api="completions", model="m", input_tokens=6), 1)
    body = msgspec.json.decode(completions.body)
    assert len(body["prompt"]) == 6 == completions.prompt_tokens
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    (chat,) = first(WorkloadPlan(api="chat", model="m", input_tokens=6, sampling={"top_p": 0.5}), 1)
    body = msgspec.json.decode(chat.body)
    assert len(body["messages"][0]["content"].split()) == 6
    assert (body["model"], body["max_tokens"], body["top_p"], chat.prompt_tokens) == ("m", 128, 0.5, None)


def test_random_lengths_spread_around_their_mean() -> None:
    """With a range ratio lengths vary inside it, keep their mean, and are what the bodies ask for."""
    plan = WorkloadPlan(input_tokens=64, output_tokens=100, range_ratio=0.5, seed=3)
    planned = list(islice(plan.requests(8, 1), 400))
    outputs = [p.output_tokens or 0 for p in planned]
    assert (min(outputs), max(outputs)) == (50, 150)
    assert abs(sum(outputs) / 400 - 100) < 5
    assert {len(msgspec.json.decode(p.body)["input_ids"]) for p in planned} <= set(range(32, 97))


def test_the_first_request_of_each_user_is_found_under_way() -> None:
    """The loop begins as if it had always run: long answers are found more often, anywhere on their way, with what they
    have said in their prompt; the requests after those are whole."""
    plan = WorkloadPlan(input_tokens=64, output_tokens=400, range_ratio=0.5, seed=3)
    found = replace(plan, under_way=True)
    whole, lengths = (lengths_of(first(each, 4500, concurrency=4000)) for each in (plan, found))
    assert lengths[4000:] == whole[4000:]
    prompts, rest = (np.array(column) for column in zip(*lengths[:4000], strict=True))
    said = prompts - np.array([prompt for prompt, _ in whole[:4000]])
    answers = said + rest
    assert (said >= 0).all()
    assert (rest >= 1).all()
    assert 200 <= answers.min() < answers.max() <= 600
    # of lengths uniform in [a, b], those found have the mean 2/3 (b^3 - a^3) / (b^2 - a^2)
    assert abs(answers.mean() - 2 / 3 * (600**3 - 200**3) / (600**2 - 200**2)) < 6
    assert abs((said / answers).mean() - 0.5) < 0.02
    assert abs(np.corrcoef(said / answers, answers)[0, 1]) < 0.05


def test_a_loop_that_starts_under_way_is_steady_at_once() -> None:
    """Users who take a token a step end as evenly in the first answer's length as later; if all are new, none does."""
    plan = WorkloadPlan(input_tokens=8, output_tokens=100, range_ratio=0.5)

    def ends(work: WorkloadPlan) -> list[int]:
        """How many requests end in each tenth of an answer's length, over three such lengths."""
        lengths = iter(lengths_of(first(work, 3000, concurrency=500)))
        at = [next(lengths)[1] for _ in range(500)]
        counts = [0] * 30
        while at[user := min(range(500), key=at.__getitem__)] < 300:
            counts[at[user] // 10] += 1
            at[user] += next(lengths)[1]
        return counts

    steady, together = ends(replace(plan, under_way=True)), ends(plan)
    assert 0.6 * 50 < min(steady) <= max(steady) < 1.5 * 50
    assert max(together[:5]) == 0
    assert max(together) > 1.4 * 50


def test_a_data_set_is_found_under_way_with_less_to_say(tmp_path: Path) -> None:
    """What a user has heard of a recorded answer is not known, so the prompt stays and only the rest is asked for."""
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(f'{{"prompt": "question {number}"}}\n' for number in range(9)))
    plan = WorkloadPlan(dataset=str(file), output_tokens=1000)
    asked = [request.output_tokens or 0 for request in first(replace(plan, under_way=True), 40, concurrency=30)]
    assert asked[30:] == [1000] * 10
    assert len(set(asked[:30])) > 20
    assert all(1 <= each <= 1000 for each in asked)
