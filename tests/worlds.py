"""Several ranks as threads of one process, for what needs no gloo: torch.distributed's calls meet at a barrier."""

from __future__ import annotations

import copy
import threading

import torch

_PATIENCE = 60.0


class Meeting:
    """Every rank hands something in and gets what all have handed in."""

    def __init__(self, size):
        self.size, self._barrier, self._slots = size, threading.Barrier(size), [None] * size

    def exchange(self, rank, value):
        self._slots[rank] = value
        self._barrier.wait(_PATIENCE)
        found = list(self._slots)
        self._barrier.wait(_PATIENCE)  # nobody hands in the next before all have read
        return found

    def give_up(self):
        self._barrier.abort()


def together(monkeypatch, size, work):
    """What ``work(rank)`` returns on each of ``size`` ranks, for which `current_world` is theirs."""
    here, meeting, results, problems = threading.local(), Meeting(size), [None] * size, []

    def all_reduce(tensor):
        parts = meeting.exchange(here.rank, tensor.clone())
        tensor.copy_(torch.stack(parts).sum(dim=0))

    def broadcast(tensor, src):
        tensor.copy_(meeting.exchange(here.rank, tensor.clone())[src])

    def broadcast_object_list(box, src):
        sent = meeting.exchange(here.rank, copy.deepcopy(box))[src]  # rank src keeps the very object that it has sent
        box[:] = box if here.rank == src else copy.deepcopy(sent)  # and each of the others has one of its own

    def run(rank):
        here.rank = rank
        try:
            results[rank] = work(rank)
        except BaseException as error:
            problems.append(error)
            meeting.give_up()

    with monkeypatch.context() as patch:
        for name, value in {
            "is_initialized": lambda: hasattr(here, "rank"),
            "get_rank": lambda: here.rank,
            "get_world_size": lambda: size,
            "get_backend": lambda: "gloo",
            "all_reduce": all_reduce,
            "broadcast": broadcast,
            "broadcast_object_list": broadcast_object_list,
        }.items():
            patch.setattr(f"cords_dp.processes.dist.{name}", value)
        ranks = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
        for thread in ranks:
            thread.start()
        for thread in ranks:
            thread.join()
    if problems:  # the first; the others' barrier was broken
        raise problems[0]
    return results
