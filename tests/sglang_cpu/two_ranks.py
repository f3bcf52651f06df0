"""Two ranks of one server, as processes that talk over gloo; each prints what it decided, as one line of JSON."""

from __future__ import annotations

import hashlib
import json
import os
import sys

import torch.distributed
import torch.multiprocessing

from patched_worker.autopilot import Autopilot
from patched_worker.policy import Policy
from patched_worker.ranks import broadcaster
from tests.patched_worker.streams import DRAFTS, Machine, around

STEPS = 6000


def rank(number: int, port: int) -> None:
    """Decode on synthetic traffic; the second rank's times are nonsense."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=number, world_size=2)
    exchange = broadcaster(torch.distributed.group.WORLD)
    pilot = Autopilot(DRAFTS, Policy.from_threshold(256), exchange=exchange, leading=number == 0)
    machine, batches, decided = Machine(pilot, noise=0.02 + 0.3 * number, seed=number), around(80), hashlib.sha256()
    for index in range(STEPS):
        batch = batches(index)
        machine.run(1, lambda _, batch=batch: batch)
        decided.update(f"{pilot.flipped} {pilot.policy.threshold};".encode())
    found = {"decisions": decided.hexdigest(), "moved": pilot.moved, "policy_id": pilot.policy.policy_id}
    os.write(1, json.dumps(found).encode() + b"\n")  # in one piece: both ranks write to the same pipe
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(rank, (int(sys.argv[1]),), nprocs=2)
