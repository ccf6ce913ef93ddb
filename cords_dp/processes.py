"""Trains one model in several processes: ``torchrun --nproc_per_node=N run_experiment.py …``.

Each process keeps and computes on its own part of the records only (`data.record_set`): a contiguous range of public
row numbers. Of tables and arrays it reads no other; published sets, and files of texts, are read whole and cut. Nothing
about records travels but sums.

Formal guarantee: the run has the law of a run in one process, and the same ledger.

* Coins: a record lies with one rank, which draws its coins from a generator of its own: a stream that is keyed by rank
  from one shared secret, so no two ranks toss alike (`generators.Streams`). Each record falls into each step by one
  Bernoulli, independent of all others.
* Noise: whatever is released is a sum over records. Every rank hands in the sum over its part; rank 0 alone charges the
  ledger on disk, adds the noise once, to its own part, and only then are the parts added up, in float64. No rank ever
  holds the sum over all records without noise (`selection.releases`, `training.step`). All get the same bits.
* A rank without records takes part in every sum and every step, with zeros: what the ranks do follows from the plan
  and from released values.
* What is not a sum over records, such as the best k of all scores, is refused (`Mechanism.sharded`).

Ledger, logs and files are rank 0's; the other ranks keep count in memory and refuse the same charges. What the
processes send each other (the secret, parts of sums) is as secret as the data: the network between them is trusted.

A process that dies ends the run. Nobody gets past the next sum, for it needs everybody; the others raise
`LostProcessError`. What was charged until then is in the ledger, so `--resume` continues, with any number of processes.
A process that hangs counts as lost after ``CORDS_DP_TIMEOUT`` seconds.

Threads: steps of a small net on short vectors take less than a millisecond. Torch's threads then spend more time
waiting for each other than computing, on a busy machine many times more: the first line of `make demo` said 18.3 s with
two threads and 3.9 s with one, on two cores that others used too. So such runs take one thread. Which runs these are
depends on the model and on the batch size, which are public.

Pieces of work are done side by side, in threads that have one core each (`in_order`). Threads inside small operations
wait for each other, and beside another busy process they wait long: on two cores with one of them busy, two threads
inside each operation were four times slower than one. Threads over whole pieces are not.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from cords_dp.errors import ConfigError, LostProcessError, MechanismError

TIMEOUT = "CORDS_DP_TIMEOUT"
_SECONDS = 3600.0  # ranks wait for each other's features, which may take long; a process that has died is seen at once


@dataclass(frozen=True)
class World:
    """This process's rank and the number of processes."""

    rank: int = 0
    size: int = 1

    @property
    def main(self) -> bool:
        return self.rank == 0

    def share(self, value: Any) -> Any:
        """Return rank 0's value, on every rank."""
        if self.size == 1:
            return value
        box = [value if self.main else None]
        with _together():
            dist.broadcast_object_list(box, src=0)
        return box[0]

    def add_up(self, part: Tensor) -> None:
        """Make ``part`` the sum of all ranks' parts, the same bits on every rank."""
        if self.size > 1:
            with _together():
                dist.all_reduce(part)

    def copy_from_main(self, tensors: Iterable[Tensor]) -> None:
        """Let tensors have rank 0's values."""
        if self.size > 1:
            with _together():
                for tensor in tensors:
                    dist.broadcast(tensor.detach(), src=0)

    def total(self, part: np.ndarray) -> np.ndarray:
        """Return the sum of all ranks' parts in float64; of one process alone its own part as it is."""
        part = np.asarray(part, dtype=np.float64)
        if self.size == 1:
            return part
        total = torch.from_numpy(part.copy()).to(_meeting_place())
        self.add_up(total)
        return total.cpu().numpy()

    def refuse_disagreement(self, value: Any, what: str, fix: str) -> None:
        """Refuse ranks with different public values: together they would not have the law that was charged."""
        if self.share(value) != value:
            raise MechanismError(f"the processes of this run disagree about {what}: {fix}")


def current_world() -> World:
    """Return the process group that was joined, or this process alone."""
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size())
    return World()


@contextlib.contextmanager
def joined_world() -> Iterator[World]:
    """Join the process group that torchrun has announced in the environment, if there is one."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield current_world()
        return
    patience = timedelta(seconds=_timeout())
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(local_rank())
    with _told_to_end(), _together():
        dist.init_process_group("nccl" if on_gpu else "gloo", timeout=patience)
    try:
        with _told_to_end():
            yield current_world()
    finally:
        dist.destroy_process_group()


def local_rank() -> int:
    """Return the number of this process on this machine: that of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def _meeting_place() -> torch.device:
    return torch.device("cuda", local_rank()) if dist.get_backend() == "nccl" else torch.device("cpu")


def _timeout() -> float:
    given = os.environ.get(TIMEOUT)
    try:
        seconds = _SECONDS if given is None else float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ConfigError(TIMEOUT, given, "must be a number of seconds")
    return seconds


_LOST = (
    "another process of this run has ended or does not answer; its own message says why. What was charged until then "
    "is in the ledger of rank 0: --resume continues from the last checkpoint"
)


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """Raise `LostProcessError` in place of torch's error about a lost process, which shows addresses and ports."""
    try:
        yield
    except LostProcessError:
        raise
    except RuntimeError as error:
        raise LostProcessError(f"{_LOST} ({type(error).__name__})") from error


@contextlib.contextmanager
def _told_to_end() -> Iterator[None]:
    """Turn SIGTERM, which torchrun sends once a process has died, into an error, so that the ledger is closed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: Any) -> None:
        raise LostProcessError(f"this process was told to end (SIGTERM): {_LOST}")

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


_SMALL = 20_000_000  # multiplications of a step's forward pass


def steps_are_small(model: nn.Module, record: Tensor, batch_size: int | None) -> bool:
    """Return whether records are vectors, nothing heavy is computed of them beforehand, and a batch is little work."""
    if record.dim() != 1 or getattr(model, "input_transform", None) is not None:
        return False
    return (batch_size or 1) * sum(weight.numel() for weight in model.parameters()) <= _SMALL


@contextlib.contextmanager
def threads_for_steps(model: nn.Module, record: Tensor, batch_size: int | None) -> Iterator[None]:
    """Use one thread for a run whose steps are small, and as many as before for others."""
    before = torch.get_num_threads()
    if steps_are_small(model, record, batch_size):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


Piece = TypeVar("Piece")
Result = TypeVar("Result")


@contextlib.contextmanager
def in_order(function: Callable[[Piece], Result], pieces: Iterable[Piece], workers: int) -> Iterator[Iterator[Result]]:
    """Yield ``function`` of each piece, in order. No more than two pieces for each worker are held at a time."""
    if workers <= 1:
        yield map(function, pieces)
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(workers)
    try:
        yield _results(pool, function, pieces, 2 * workers)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)


def _results(
    pool: ThreadPoolExecutor, function: Callable[[Piece], Result], pieces: Iterable[Piece], ahead: int
) -> Iterator[Result]:
    waiting: deque[Future[Result]] = deque()
    for piece in pieces:
        waiting.append(pool.submit(function, piece))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # glibc's M_TRIM_THRESHOLD and M_MMAP_MAX
_TWO_GIGABYTES = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let glibc keep freed blocks; return whether it could.

    Every step of a linear model allocates and frees tens of megabytes. glibc hands such blocks back to the kernel,
    which clears them anew for the next step; on virtual machines that can take a good part of a step's time.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _TWO_GIGABYTES))
