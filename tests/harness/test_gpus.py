"""Which GPUs count as a server's: by its arguments, its environment, and whether it is on this machine at all."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import servers
from harness.endpoint import Endpoint
from harness.gpus import container_gpus, server_gpus, visible_gpus
from harness.nearby import attached_to
from harness.records import Gpu, ServerGpus

MACHINE = tuple(Gpu(index, f"GPU-{letter * 8}-0000") for index, letter in enumerate("aabc"))
INFO = {"tp_size": 1, "pp_size": 1, "dp_size": 1, "base_gpu_id": 0, "gpu_id_step": 1, "nnodes": 1}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (None, [0, 1, 2, 3]),
        ("2", [2]),
        ("3, 1", [3, 1]),
        ("GPU-bbbb,GPU-cccccccc-0000", [2, 3]),
        ("0,7,1", [0]),  # CUDA stops at what it does not know
        ("GPU-a,2", []),  # two GPUs begin so
        ("", []),
        ("-1", []),
        ("MIG-1234", None),
    ],
)
def test_what_the_variable_leaves(text: str | None, left: list[int] | None) -> None:
    """Numbers and UUIDs, whole or cut short, in the order given."""
    got = visible_gpus(text, MACHINE)
    assert (None if got is None else [gpu.index for gpu in got]) == left


@pytest.mark.parametrize(
    ("env", "info", "counted"),
    [
        ({}, INFO, [0]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, INFO, [2]),
        ({}, INFO | {"tp_size": 2, "base_gpu_id": 1}, [1, 2]),
        ({"CUDA_VISIBLE_DEVICES": "3,2,1,0"}, INFO | {"tp_size": 2, "gpu_id_step": 2}, [3, 1]),
        ({}, INFO | {"tp_size": 2, "dp_size": 2}, [0, 1, 2, 3]),
        ({}, INFO | {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True}, [0, 1]),
        ({}, INFO | {"tp_size": 4, "nnodes": 2}, [0, 1]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, INFO | {"tp_size": 4}, [1]),
    ],
)
def test_ranks_take_gpus_as_sglang_gives_them(env: dict[str, str], info: dict[str, Any], counted: list[int]) -> None:
    """Base, step, ranks of every kind, among the visible ones."""
    got = server_gpus(MACHINE, env, info)
    assert [gpu.index for gpu in got.counted] == counted
    assert got.known_from == "the server's arguments and environment"


@pytest.mark.parametrize(
    ("env", "info", "counted", "words"),
    [
        (None, INFO, [0, 1, 2, 3], "all of this machine: the server's environment cannot be read"),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1"}, INFO, [0, 1, 2, 3], "all of this machine: CUDA_VISIBLE_DEVICES=MIG-1"),
        ({"CUDA_VISIBLE_DEVICES": "1,2"}, None, [1, 2], "all that CUDA_VISIBLE_DEVICES leaves"),
        ({"CUDA_VISIBLE_DEVICES": "1,2"}, {"tp_size": "two"}, [1, 2], "all that CUDA_VISIBLE_DEVICES leaves"),
    ],
)
def test_what_is_not_known_is_said(env: Any, info: Any, counted: list[int], words: str) -> None:
    """Then more GPUs count than are the server's, never silently."""
    got = server_gpus(MACHINE, env, info)
    assert [gpu.index for gpu in got.counted] == counted
    assert got.known_from.startswith(words)
    assert server_gpus((), env, info) == ServerGpus()


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("all", [0, 1, 2, 3]),
        ("2", [2]),
        ("3,1", [1, 3]),  # the container numbers them in this machine's order
        ("GPU-cccccccc-0000, 0", [0, 3]),
        (None, None),
        ("", None),
        ("void", None),
        ("none", None),
        ("0,7", None),
        ("GPU-dddddddd-0000", None),
        ("MIG-1234", None),
    ],
)
def test_what_a_container_was_given(text: str | None, given: list[int] | None) -> None:
    """Numbers and UUIDs; nothing is guessed where the variable does not say it."""
    got = container_gpus(text, MACHINE)
    assert (None if got is None else [gpu.index for gpu in got]) == given


@pytest.mark.parametrize(
    ("env", "counted", "words"),
    [
        ({"NVIDIA_VISIBLE_DEVICES": "2"}, [2], "the server's arguments and environment, in a container with NVIDIA_"),
        ({"NVIDIA_VISIBLE_DEVICES": "1,3", "CUDA_VISIBLE_DEVICES": "1"}, [3], "the server's arguments and environment"),
        ({"NVIDIA_VISIBLE_DEVICES": "1,3", "CUDA_VISIBLE_DEVICES": "MIG-1"}, [1, 3], "all of its container: CUDA_VIS"),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, [0], "the server's arguments and environment"),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, [0, 1, 2, 3], "all of this machine: the server's container has NVIDIA_VI"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, [0, 1, 2, 3], "all of this machine: the server's container has no NVIDIA_VIS"),
    ],
)
def test_a_container_numbers_its_own_gpus(env: dict[str, str], counted: list[int], words: str) -> None:
    """CUDA counts from 0 what the container was given; within our own container the variable tells nothing more."""
    got = server_gpus(MACHINE, env, INFO, contained=True)
    assert [gpu.index for gpu in got.counted] == counted
    assert got.known_from.startswith(words)
    ours = {name: text for name, text in env.items() if name == "CUDA_VISIBLE_DEVICES"}
    assert server_gpus(MACHINE, env, INFO) == server_gpus(MACHINE, ours, INFO)


def test_an_attached_server_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its listener's environment counts when that is SGLang, as a container's only where it has a root of its own;
    another listener tells nothing; far away, none counts."""
    monkeypatch.setattr(servers, "machine_gpus", lambda: MACHINE)
    listen = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"
    listen += "; sys.stdin.read()"
    for mark, counted in (("sglang.launch_server", [2]), ("another", [0, 1, 2, 3])):
        with subprocess.Popen(
            [sys.executable, "-c", listen, mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "2", "NVIDIA_VISIBLE_DEVICES": "3"},
        ) as process:
            assert process.stdout is not None
            endpoint = Endpoint(f"http://127.0.0.1:{int(process.stdout.readline())}")
            seen = attached_to(endpoint)
            got = servers._gpus(endpoint, None, INFO, seen)
            with monkeypatch.context() as elsewhere:
                elsewhere.setattr(Path, "samefile", lambda root, other: False)
                contained = servers._gpus(endpoint, None, INFO, seen)
            process.communicate()
        assert (None if seen is None else seen.pid) == (process.pid if mark == "sglang.launch_server" else None)
        assert [gpu.index for gpu in got.counted] == counted
        assert ("in a container" in contained.known_from) == (mark == "sglang.launch_server")
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: [(0, 0, 0, "", ("192.0.2.1", 0))])
    away = Endpoint("http://gpu-box:30000")
    far = servers._gpus(away, None, INFO, attached_to(away))
    assert (far.counted, far.known_from) == ((), "none of this machine: the server is on another one")
