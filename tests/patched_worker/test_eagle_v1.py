"""What the v1 off step does to SGLang's objects, on stand-ins; on the real SGLang it is tested in tests/sglang_cpu."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from patched_worker import plain_graph_early
from patched_worker.control import Identity
from patched_worker.eagle_v1 import DecodingTarget, OffStep, worker_class
from patched_worker.policy import Policy
from patched_worker.settings import Refusal, Settings


def _module(monkeypatch: pytest.MonkeyPatch, name: str, **content: object) -> None:
    module = ModuleType(name)
    module.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    """The three names of SGLang that are imported on the way."""
    for package in ("sglang", "sglang.srt", "sglang.srt.speculative", "sglang.srt.model_executor", "sglang.srt.utils"):
        _module(monkeypatch, package)
    _module(monkeypatch, "sglang.srt.speculative.spec_info", SpeculativeAlgorithm=SimpleNamespace(NONE="none"))
    _module(monkeypatch, "sglang.srt.model_executor.forward_batch_info", ForwardMode=SimpleNamespace(DECODE="decode"))
    _module(monkeypatch, "sglang.srt.utils.common", get_available_gpu_memory=lambda device, gpu_id: 80.0)


class Target:
    """A ModelRunner that notes from which arguments its backend and graphs are built."""

    device, gpu_id = "cuda", 0

    def __init__(self, graph_runner: object, fails: bool = False) -> None:
        self.server_args = SimpleNamespace(
            speculative_algorithm="EAGLE3",
            speculative_num_steps=3,
            speculative_num_draft_tokens=4,
            speculative_eagle_topk=1,
            enable_return_hidden_states=False,
        )
        self.spec_algorithm = "eagle3"
        self.init_new_workspace = False
        self.attn_backend: object = "for verify"
        self.graph_runner = graph_runner
        self.fails = fails
        self.seen: dict[str, object] = {}

    def _get_attention_backend(self, init_new_workspace: bool) -> str:
        self.init_new_workspace = init_new_workspace
        self.seen = dict(vars(self.server_args), algorithm=self.spec_algorithm)
        if self.fails:
            raise MemoryError
        return "for plain decode"


class Graphs:
    """A CudaGraphRunner that notes the backend it captures on."""

    capture_bs = (1, 2)
    capture_forward_mode = SimpleNamespace(is_decode=lambda: True)
    capture_hidden_mode = SimpleNamespace(is_full=lambda: True)

    def __init__(self, target: Any) -> None:
        self.captured_on = target.attn_backend


@pytest.mark.usefixtures("sglang")
def test_plain_decode_is_built_as_by_a_server_without_speculation() -> None:
    """Backend and graphs see no speculative argument, and ask for the hidden states that the draft needs."""
    target = Target(Graphs(SimpleNamespace(attn_backend="for verify")))

    runner, backend = plain_graph_early.capture(target)

    assert (backend, runner.captured_on) == ("for plain decode", "for plain decode")
    assert target.seen == {
        "speculative_algorithm": None,
        "speculative_num_steps": None,
        "speculative_num_draft_tokens": None,
        "speculative_eagle_topk": None,
        "enable_return_hidden_states": True,
        "algorithm": "none",
    }


class VerifyGraphs(Graphs):
    """A CudaGraphRunner that captures a verify, whatever it is asked for."""

    capture_forward_mode = SimpleNamespace(is_decode=lambda: False)


@pytest.mark.usefixtures("sglang")
def test_graphs_of_another_forward_are_refused() -> None:
    """A plain step that replayed a verify would answer with wrong tokens: the server does not start."""
    with pytest.raises(Refusal, match="for the plain decode"):
        plain_graph_early.capture(Target(VerifyGraphs(SimpleNamespace(attn_backend="for verify"))))


@pytest.mark.usefixtures("sglang")
@pytest.mark.parametrize("fails", [False, True])
def test_arguments_and_backend_are_put_back(fails: bool) -> None:
    """Also when building fails: a server that went on with half of them would speculate wrongly."""
    target = Target(None, fails)
    before = dict(vars(target.server_args))

    if fails:
        with pytest.raises(MemoryError):
            plain_graph_early.capture(target)
    else:
        assert plain_graph_early.capture(target) == (None, "for plain decode")

    assert vars(target.server_args) == before
    assert (target.spec_algorithm, target.attn_backend, target.init_new_workspace) == ("eagle3", "for verify", False)


@pytest.mark.usefixtures("sglang")
def test_decode_batch_counts_the_new_token_in_tensors_of_its_own() -> None:
    """The lengths grow by one for the forward only: the scheduler's own tensors stay as they are."""
    lengths = np.array([5, 9])
    batch = SimpleNamespace(
        forward_mode="verify",
        spec_info=object(),
        seq_lens=lengths,
        seq_lens_cpu=lengths,
        seq_lens_sum=14,
        extend_seq_lens=[5, 9],
        extend_prefix_lens=[0, 0],
        extend_logprob_start_lens=[0, 0],
    )
    sent: list[tuple[Any, bool]] = []
    worker = SimpleNamespace(
        forward_batch_generation=lambda batch, is_verify: sent.append((batch, is_verify)), model_runner="the target's"
    )
    target = DecodingTarget(worker)

    target.forward_batch_generation(batch, is_verify=True)

    assert sent == [(batch, True)]
    assert (batch.forward_mode, batch.spec_info, batch.seq_lens_sum) == ("decode", None, 16)
    assert batch.seq_lens.tolist() == batch.seq_lens_cpu.tolist() == [6, 10]
    assert (batch.extend_seq_lens, batch.extend_prefix_lens, batch.extend_logprob_start_lens) == (None, None, None)
    assert lengths.tolist() == [5, 9]
    assert target.model_runner == "the target's"


@pytest.mark.usefixtures("sglang")
def test_worker_is_as_before_after_an_off_step_that_raises() -> None:
    """A step that fails leaves no half-switched worker behind."""
    target = Target(None)
    target_worker = SimpleNamespace(model_runner=target)
    worker = SimpleNamespace(
        target_worker=target_worker, speculative_num_steps=3, speculative_num_draft_tokens=4, topk=2
    )
    off = OffStep(worker, "0.5.9")

    def step() -> None:
        with off._off():
            assert (worker.speculative_num_steps, worker.speculative_num_draft_tokens, worker.topk) == (0, 1, 2)
            assert isinstance(worker.target_worker, DecodingTarget)
            assert target.attn_backend == "for plain decode"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        step()

    assert (worker.speculative_num_steps, worker.speculative_num_draft_tokens) == (3, 4)
    assert worker.target_worker is target_worker
    assert target.attn_backend == "for verify"


def test_steps_between_draft_extends_are_refused() -> None:
    """There is no ring: the draft-extend is part of v1's every step."""
    identity = Identity("sglang.Worker", "patched_worker.eagle_v1", "0.5.12.post1", "0123456789ab")

    with pytest.raises(Refusal, match=r"SPECPIVOT_DRAFT_SYNC_STEPS: EAGLEWorker brings .* leave it out"):
        worker_class(object, identity, Settings(Policy.from_threshold(4), draft_sync_steps=8))
