"""Adult beside what a practitioner would use instead: the same splits, budgets and seeds, in one run.

    python3 -m venv peers && peers/bin/pip install "scikit-learn<1.8" interpret-core diffprivlib pandas
    python benchmarks/adult.py --peers peers/bin/python

Ours pay for D and for V; the peers train on D ∪ V together, and their ε is what they state themselves. Prints a table
and writes every run to runs.csv. See `benchmarks/adult_peers.py` for the peers' settings.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cords_dp.data.build import build_dataset
from cords_dp.data.sources.table.schema import Categorical, Numeric, load_schema
from cords_dp.evaluation.metrics import classifier_metrics
from cords_dp.noise.generators import Streams
from cords_dp.report.tables import mean_std, to_markdown
from cords_dp.runs.sweep import run_jobs
from cords_dp.runs.workers import LocalWorkers
from cords_dp.studies.adult import SCHEMA, fetch_adult
from cords_dp.studies.catalogue import Choice, experiment_jobs

_OURS = ("GLISTERDP", "FullDP")
_SCORES = {"auc": "AUC", "log_loss": "log loss", "calibration_error": "calibration error"}
_RANGES = {"fnlwgt": [0, 1_500_000]}  # the peers may use it; ours ignore it
_DELTA = 1e-5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", required=True, help="python of the environment that has the peers")
    parser.add_argument("--epsilon", type=float, action="append", help="budgets (default 0.5, 1, 3)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--share", type=float, default=0.3, help="of the records that GLISTERDP trains on (default 0.3)"
    )
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("runs/adult-peers"))
    parser.add_argument("--workers", type=int)
    args = parser.parse_args()
    epsilons = args.epsilon or [0.5, 1.0, 3.0]
    frame = pd.concat([_ours(args, epsilons), _theirs(args, epsilons)], ignore_index=True)
    frame.to_csv(args.out / "runs.csv", index=False)
    groups = [column for column in frame if column.startswith("accuracy")]
    by_method = frame.groupby(["scenario", "epsilon", "method"], sort=False)
    scores = by_method[list(_SCORES)].mean().map("{:.3f}".format).rename(columns=_SCORES)
    print(to_markdown(by_method[groups].agg(mean_std).join(scores).reset_index()))


def _ours(args: argparse.Namespace, epsilons: Sequence[float]) -> pd.DataFrame:
    choice = Choice(methods=_OURS, shares=(args.share,), epsilons=epsilons, seeds=args.seeds)
    frame = run_jobs(experiment_jobs("adult", "cpu", choice), args.out, LocalWorkers(args.workers), title="ours").frame
    frame["epsilon"], frame["seconds"] = frame["budget"], frame["train_seconds"] + frame["selection_seconds"]
    wanted = ["method", "epsilon", "seed", "scenario", "seconds", *_SCORES]
    return frame[[*wanted, *(column for column in frame if column.startswith("accuracy"))]]


def _theirs(args: argparse.Namespace, epsilons: Sequence[float]) -> pd.DataFrame:
    """The peers on the very records of our runs."""
    train, test = fetch_adult(args.data)
    records, cases = pd.read_csv(train), []
    with tempfile.TemporaryDirectory() as folder:
        for job in experiment_jobs("adult", "cpu", Choice(methods=("FullDP",), epsilons=(1.0,), seeds=args.seeds)):
            splits = build_dataset(job.config, Streams(job.labels["seed"]).numpy("data"))
            rows = np.concatenate([splits.train.rows, splits.validation.rows])
            path = Path(folder) / f"{len(cases)}.csv"
            records.iloc[np.sort(rows)].to_csv(path, index=False)
            cases.append({"train": str(path), "test": str(test), **{k: job.labels[k] for k in ("seed", "scenario")}})
        request = {**_public_facts(), "cases": cases, "epsilons": epsilons, "delta": _DELTA, "group": "sex"}
        command = [args.peers, str(Path(__file__).with_name("adult_peers.py"))]
        request["folder"] = folder
        answer = subprocess.run(command, input=json.dumps(request), stdout=subprocess.PIPE, text=True, check=True)
        return pd.DataFrame([_scored(json.loads(line)) for line in answer.stdout.splitlines()])


def _scored(row: dict[str, Any]) -> dict[str, Any]:
    """Return a peer's row with the scores of the probabilities that it has left in a file."""
    saved = np.load(row.pop("saved"))
    return row | classifier_metrics(saved["labels"], saved["given"], tuple(_SCORES))


def _public_facts() -> dict[str, dict]:
    columns = load_schema(SCHEMA).columns
    ranges = {c.name: [c.low, c.high] for c in columns if isinstance(c, Numeric)}
    categories = {c.name: list(c.categories) for c in columns if isinstance(c, Categorical)}
    return {"ranges": ranges | _RANGES, "categories": categories}


if __name__ == "__main__":
    main()
