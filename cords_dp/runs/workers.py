"""Runs the jobs of a sweep in worker processes on this machine, or as tasks on a Ray cluster.

Both yield what happens as it happens; neither knows about tables or folders. A worker that dies takes only its own job
with it: the job is tried once more in a new worker.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import sys
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from typing import Any

from cords_dp.config import to_plain
from cords_dp.extras import need
from cords_dp.runs.jobs import Job, Work

_TRIES = 2  # a job whose worker died, for instance for want of memory, gets a second chance


@dataclass(frozen=True)
class Started:
    job: Job


@dataclass(frozen=True)
class Finished:
    job: Job
    files: dict[str, bytes]


@dataclass(frozen=True)
class Failed:
    job: Job
    error: str


Happening = Started | Finished | Failed


# --- this machine ----------------------------------------------------------------------------------


class LocalWorkers:
    """Processes that stay alive from job to job and share the cores.

    Importing CORDS and torch takes longer than many a job, so one process does it for all, and workers are its forks.
    """

    def __init__(self, workers: int | None = None):
        cores = available_cores()
        self.workers = min(cores, workers or cores)
        self.threads = max(1, cores // self.workers)

    def prepare(self) -> None:
        """Begin the imports while the caller continues."""
        if isinstance(_processes(), ForkServerContext):
            forkserver.ensure_running()

    def run(self, jobs: Sequence[Job]) -> Iterator[Happening]:
        waiting = deque((job, 1) for job in jobs)
        idle = [_Worker(self.threads) for _ in range(min(self.workers, len(jobs)))]
        busy: list[_Worker] = []
        try:
            while waiting or busy:
                while waiting and idle:
                    worker = idle.pop()
                    job, attempt = waiting.popleft()
                    worker.start(job, attempt)
                    busy.append(worker)
                    yield Started(job)
                ready = wait([worker.connection for worker in busy])
                for worker in [w for w in busy if w.connection in ready]:
                    busy.remove(worker)
                    job, attempt = worker.job, worker.attempt
                    outcome = worker.outcome()
                    if isinstance(outcome, Failed) and not worker.alive:
                        worker.close()
                        worker = _Worker(self.threads)
                        if attempt < _TRIES:
                            waiting.appendleft((job, attempt + 1))
                            idle.append(worker)
                            continue
                    idle.append(worker)
                    yield outcome
        finally:
            for worker in [*idle, *busy]:
                worker.close()


class _Worker:
    """One process and the pipe to it. The process ends when the pipe does, so none outlives its driver."""

    job: Job
    attempt: int

    def __init__(self, threads: int):
        context = _processes()
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, threads), daemon=True)
        self.process.start()
        theirs.close()
        self.alive = True

    def start(self, job: Job, attempt: int) -> None:
        self.job, self.attempt = job, attempt
        with contextlib.suppress(BrokenPipeError):  # found out by `outcome`
            self.connection.send((job.work, to_plain(job.config)))

    def outcome(self) -> Finished | Failed:
        try:
            kind, value = self.connection.recv()
        except (EOFError, OSError):
            self.alive = False
            self.process.join()
            return Failed(self.job, f"the worker process died (exit code {self.process.exitcode})")
        return Finished(self.job, value) if kind == "files" else Failed(self.job, value)

    def close(self) -> None:
        self.connection.close()  # the process ends by itself, unless it is in the middle of a run
        self.process.join(timeout=1)
        self.process.terminate()
        self.process.join()


def _processes() -> Any:
    """Return how workers are begun: as forks of a server that has imported what a run needs, where that is safe.

    The server imports and does nothing else: it has no threads, no open GPU and no random numbers drawn, which is what
    a fork of the driver itself could not promise.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["cords_dp.runs.run"])
    return context


def _serve(connection: Connection, threads: int) -> None:
    """Serve as a worker: work and configs come in, files or an error go out."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch

    torch.set_num_threads(threads)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        while True:
            try:
                work, config = connection.recv()
            except (EOFError, OSError, KeyboardInterrupt):
                return
            with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
                connection.send(_guarded(work, config))


def _guarded(work: Work, config: dict[str, Any]) -> tuple[str, Any]:
    try:
        return "files", work(config)
    except Exception:
        return "error", traceback.format_exc()


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class InThisProcess:
    """Runs one job after the other, here, without a word: what is shown could be counted."""

    def run(self, jobs: Sequence[Job]) -> Iterator[Happening]:
        for job in jobs:
            yield Started(job)
            with (
                open(os.devnull, "w") as nowhere,
                contextlib.redirect_stdout(nowhere),
                contextlib.redirect_stderr(nowhere),
            ):
                kind, value = _guarded(job.work, to_plain(job.config))
            yield Finished(job, value) if kind == "files" else Failed(job, value)


# --- a Ray cluster ---------------------------------------------------------------------------------


class RayTasks:
    """One Ray task per job. ``address`` None starts a cluster on this machine; "auto" or host:port joins one."""

    def __init__(self, address: str | None = None, *, cpus: float = 1, gpus: float = 0):
        need("ray", extra="ray", what="running on Ray")
        self.address, self.cpus, self.gpus = address, cpus, gpus

    def run(self, jobs: Sequence[Job]) -> Iterator[Happening]:
        import ray

        started_here = not ray.is_initialized()
        if started_here:
            ray.init(address=self.address, log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
        task = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=_TRIES - 1)(_guarded)
        try:
            yield from self._watch(ray, task, jobs)
        finally:
            if started_here:
                ray.shutdown()

    def _watch(self, ray: Any, task: Any, jobs: Sequence[Job]) -> Iterator[Happening]:
        # as many tasks as there are places for them: what is shown as running does run
        places = max(1, int(ray.cluster_resources().get("CPU", 1) / self.cpus))
        waiting, running = deque(jobs), dict[Any, Job]()
        while waiting or running:
            while waiting and len(running) < places:
                job = waiting.popleft()
                running[task.remote(job.work, to_plain(job.config))] = job
                yield Started(job)
            (reference,), _ = ray.wait(list(running), num_returns=1)
            job = running.pop(reference)
            try:
                kind, value = ray.get(reference)
            except ray.exceptions.RayError as error:
                kind, value = "error", f"{type(error).__name__}: {error}"
            yield Finished(job, value) if kind == "files" else Failed(job, value)
