"""Many runs: resumable, watched, and one CSV at the end.

Each finished run has a folder ``runs/ID`` below the output folder, whose ``result.json`` is written last: where it is,
the run is done and is never repeated. Everything else (runs.csv, errors) is made from these folders, so a driver
that is killed loses only the runs in flight.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pandas as pd

from cords_dp.files import write_durably
from cords_dp.progress import shown_bar
from cords_dp.report.metrics import metric_numbers
from cords_dp.runs.jobs import RESULT, Job
from cords_dp.runs.workers import Failed, Finished, Happening, Started

__all__ = ["Backend", "SweepResult", "collect", "is_finished", "run_jobs"]


class Backend(Protocol):
    """Where jobs run."""

    def run(self, jobs: Sequence[Job]) -> Iterator[Happening]: ...


@dataclass(frozen=True)
class SweepResult:
    """A row for every finished run, and what went wrong with the others."""

    frame: pd.DataFrame
    failures: dict[str, str]


def run_jobs(
    jobs: Sequence[Job], out: Path, backend: Backend, *, title: str = "sweep", progress: bool = True
) -> SweepResult:
    """Run every job that is not finished yet; write ``out/runs.csv``."""
    jobs = list({job.id: job for job in jobs}.values())
    pending = [job for job in jobs if not is_finished(job, out)]
    failures: dict[str, str] = {}
    running = 0
    done = len(jobs) - len(pending)
    with shown_bar(total=len(jobs), initial=done, desc=title, unit="run", smoothing=0, shown=progress) as bar:
        for happening in backend.run(pending) if pending else ():
            if isinstance(happening, Started):
                running += 1
            else:
                running -= 1
                bar.update()
            if isinstance(happening, Finished):
                _store(happening.job, happening.files, out)
                collect(jobs, out).to_csv(out / "runs.csv", index=False)
            elif isinstance(happening, Failed):
                failures[happening.job.name] = happening.error
                write_durably(out / "failed" / f"{happening.job.id}.txt", happening.error.encode())
            bar.set_postfix_str(f"{running} running, {len(failures)} failed")
    frame = collect(jobs, out)
    out.mkdir(parents=True, exist_ok=True)
    frame.to_csv(out / "runs.csv", index=False)
    return SweepResult(frame, failures)


def is_finished(job: Job, out: Path) -> bool:
    """Return whether a job's result is there."""
    return (out / "runs" / job.id / RESULT).is_file()


def collect(jobs: Sequence[Job], out: Path) -> pd.DataFrame:
    """Return one row per finished run: its labels, its result, its config's hash and the versions of what it ran on."""
    rows = []
    for job in jobs:
        if is_finished(job, out):
            result = json.loads((out / "runs" / job.id / RESULT).read_text())
            versions = result.pop("versions", {})
            numbers = metric_numbers(result)  # tables of classes stay in the runs' folders
            for name in ("out", "metrics", "classes"):
                result.pop(name, None)
            result.update({name: value for name, value in numbers.items() if name not in result})
            result.update({key: value for key, value in job.labels.items() if key not in result})
            rows.append({**job.labels, **result, "config_hash": job.id, **{f"v_{k}": v for k, v in versions.items()}})
    return pd.DataFrame(rows)


def _store(job: Job, files: dict[str, bytes], out: Path) -> None:
    for name in sorted(files, key=RESULT.__eq__):  # the result last
        write_durably(out / "runs" / job.id / name, files[name])
    (out / "failed" / f"{job.id}.txt").unlink(missing_ok=True)
