"""Several processes that train one model: ``torchrun --nproc_per_node=N run_experiment.py …``.

Formal guarantee: the run has the law of a run in one process. All ranks hold the same secret generators, draw the
same Poisson mask for a step and take turns at its records, so each record falls into the step by one Bernoulli(q) coin
and is computed once. Rank 0 alone adds the noise, once, before the sums are added up (Opacus' distributed
optimizers). A rank whose share of a batch is empty takes part in the step all the same. Ledger, logs and files are
rank 0's; rank 0's pool counts, so that rounding on another machine cannot make ranks disagree. What the processes send
each other (entropy, pools, sums before noise) is as secret as the data: the network between them is trusted.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class World:
    """The processes of this run and which of them this is."""

    rank: int = 0
    size: int = 1

    @property
    def main(self) -> bool:
        return self.rank == 0

    def share(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        if self.size == 1:
            return value
        box = [value if self.main else None]
        dist.broadcast_object_list(box, src=0)
        return box[0]


def current_world() -> World:
    """The process group that was joined, or this process alone."""
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size())
    return World()


@contextlib.contextmanager
def joined_world() -> Iterator[World]:
    """Join the process group that torchrun has announced in the environment, if there is one."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield current_world()
        return
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(local_rank())
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield current_world()
    finally:
        dist.destroy_process_group()


def local_rank() -> int:
    """Which process of this machine this is: the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))
