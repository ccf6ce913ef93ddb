"""``python -m cords_dp reproduce NAME``: run an experiment of the catalogue and draw it.

Each experiment leaves a folder with runs.csv (one row per run), curves.csv (one row per evaluated epoch), figures and
tables that are made from these files alone, and, where the paper prints numbers, comparison.csv.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from cords_dp.report.tables import (
    group_tables,
    paired_differences,
    paper_comparison,
    probability_tables,
    study_tables,
    to_markdown,
)
from cords_dp.runs.jobs import Job
from cords_dp.runs.sweep import Backend, run_jobs
from cords_dp.studies.catalogue import EXPERIMENTS, Choice, Experiment, experiment_jobs, gains_config
from cords_dp.studies.figures import draw
from cords_dp.studies.gains import gains_experiment
from cords_dp.studies.paper import CLAIMS, imbalance_table, published_frontier


def reproduce(name: str, preset: str, out: Path, backend: Backend, choice: Choice) -> dict[str, str]:
    """Run one experiment into ``out``; return what failed, by run. Prints its tables."""
    experiment = EXPERIMENTS[name]
    out.mkdir(parents=True, exist_ok=True)
    about = {"name": name, "title": experiment.title, "preset": preset, "paper": CLAIMS.get(name, "")}
    (out / "experiment.json").write_text(json.dumps(about, indent=2, ensure_ascii=False))
    if experiment.figure == "gains":
        gains_experiment(gains_config(preset, choice), out, not_private=False)
        draw("gains", out, name, experiment.title)
        return {}
    jobs = experiment_jobs(name, preset, choice)
    result = run_jobs(jobs, out, backend, title=name)
    if len(result.frame):
        collect_curves(jobs, out).to_csv(out / "curves.csv", index=False)
        if name == "frontier":
            published_frontier().to_csv(out / "published.csv", index=False)
        draw(experiment.figure, out, name, experiment.title)
        print(_tables(experiment, name, out))
    return result.failures


def _tables(experiment: Experiment, name: str, out: Path) -> str:
    """Render the experiment's tables as Markdown, also written to tables.md."""
    frame = pd.read_csv(out / "runs.csv")
    parts = [f"## {experiment.title}"]
    for title, table in study_tables(frame, out).items():
        parts.append(f"### {title}\n\n{to_markdown(table)}")
    for title, table in (group_tables(frame) | probability_tables(frame)).items():
        parts.append(f"### {title}\n\n{to_markdown(table)}")
    for title, table in paired_differences(frame, experiment.reference).items() if experiment.reference else ():
        parts.append(f"### {title}\n\n{to_markdown(table)}")
    if name == "imbalance":
        comparison = paper_comparison(frame, imbalance_table())
        comparison.to_csv(out / "comparison.csv", index=False)
        if len(comparison):
            parts.append(f"### Beside the paper\n\n{to_markdown(comparison)}")
    text = "\n\n".join(parts) + "\n"
    (out / "tables.md").write_text(text)
    return text


def collect_curves(jobs: Sequence[Job], out: Path) -> pd.DataFrame:
    """Collect the metrics of every finished run in one frame: one row per evaluated epoch."""
    parts = []
    for job in jobs:
        path = out / "runs" / job.id / "metrics.csv"
        if path.is_file():
            parts.append(pd.read_csv(path).assign(**job.labels))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
