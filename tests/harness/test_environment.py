"""Facts about the machine that a manifest holds: how its CPUs hang together."""

import os
from pathlib import Path
from typing import Any

from harness.environment import collect_environment, cpu_topology


def machine(system: Path, siblings: dict[int, str], sockets: dict[int, int], nodes: int) -> Path:
    """A stand-in for /sys/devices/system."""
    for number in siblings:
        topology = system / "cpu" / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{siblings[number]}\n")
        (topology / "physical_package_id").write_text(f"{sockets[number]}\n")
    (system / "cpu" / "cpufreq").mkdir(parents=True)  # which is no CPU
    for node in range(nodes):
        (system / "node" / f"node{node}").mkdir(parents=True)
    return system


def facts(system: Path) -> dict[str, Any]:
    """The topology without what the kernel has counted."""
    return {name: value for name, value in cpu_topology(system).items() if name != "steal_since_boot"}


def test_threads_cores_sockets_and_nodes_are_counted(tmp_path: Path) -> None:
    """Two sockets of two cores with two threads each; a core whose sibling is offline has one."""
    pairs = {0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5", 2: "2,6", 6: "2,6", 3: "3"}
    system = machine(tmp_path, pairs, {number: number % 4 // 2 for number in pairs}, nodes=2)
    assert facts(system) == {
        "logical_cpus": 7,
        "cores": 4,
        "threads_per_core": 2,
        "sockets": 2,
        "numa_nodes": 2,
    }


def test_what_the_kernel_does_not_show_is_not_guessed(tmp_path: Path) -> None:
    """An empty /sys, and a file that cannot be read."""
    nothing = dict.fromkeys(("logical_cpus", "cores", "threads_per_core", "sockets", "numa_nodes"))
    assert facts(tmp_path) == nothing
    (machine(tmp_path, {0: "0"}, {0: 0}, nodes=0) / "cpu/cpu0/topology/thread_siblings_list").unlink()
    assert facts(tmp_path) == nothing | {"sockets": 1}


def test_this_machine_has_cpus() -> None:
    """As many as there are to run on, or more; a share of their time may have been stolen."""
    topology = collect_environment()["cpu_topology"]
    if topology["logical_cpus"] is not None:  # a sandbox may hide them
        assert topology["logical_cpus"] >= len(os.sched_getaffinity(0))
        assert topology["logical_cpus"] >= topology["cores"] >= topology["sockets"] >= 1
    if topology["steal_since_boot"] is not None:
        assert 0 <= topology["steal_since_boot"] < 1
