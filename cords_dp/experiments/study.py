"""Selection against its rivals: the same ε, δ, k, epochs, batch, learning rate and model for every method.

``python -m cords_dp study NAME`` prints a table of mean ± standard deviation over seeds and writes a row a run to CSV.
The rivals: RandomDP, FullDP with all its epochs, and FullDP at equal compute, which takes as many steps as the subset
methods do.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from dotmap import DotMap
from tqdm import tqdm

from cords_dp.experiments.run import run_experiment
from cords_dp.presets import config_for, merge_into

_CUT = {"feature": "classimb", "classimb_ratio": 0.5, "balanced_validation": True}
_METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "GLISTERDP threshold": ("GLISTERDP", {"mechanism": "threshold"}),
    "GLISTERDP top_k": ("GLISTERDP", {"mechanism": "top_k"}),
    "GLISTERDP exponential": ("GLISTERDP", {"mechanism": "exponential", "greedy": "Frozen"}),
    "RandomDP": ("RandomDP", {}),
    "FullDP, equal compute": ("FullDP", {}),
    "FullDP": ("FullDP", {}),
}


@dataclass(frozen=True)
class Study:
    """A dataset, the fractions and the changes to its preset that all methods share."""

    dataset: str
    fractions: tuple[float, ...]
    changes: dict[str, Any] = field(default_factory=dict)


STUDIES = {
    "mnist-cut": Study("mnist", (0.1, 0.3), {"dataset": _CUT}),
    "mnist": Study("mnist", (0.1, 0.3)),
    "cifar10-cut": Study("cifar10", (0.1, 0.2, 0.3, 0.4, 0.5), {"dataset": _CUT}),
    "cifar10": Study("cifar10", (0.1, 0.3)),
    "synthetic": Study("synthetic", (0.1, 0.2, 0.3, 0.4, 0.5)),
    "digits": Study("digits", (0.3,)),
}


def run_study(
    name: str, out: Path, *, seeds: int = 3, epsilon: float = 3.0, overrides: dict[str, Any] | None = None
) -> pd.DataFrame:
    """Run every method of a study; finished runs are kept in ``out/runs.csv`` and not repeated."""
    study = STUDIES[name]
    out.mkdir(parents=True, exist_ok=True)
    path = out / "runs.csv"
    rows = pd.read_csv(path).to_dict("records") if path.is_file() else []
    done = {(r["method"], r["fraction"], r["seed"], r["epsilon"]) for r in rows}
    jobs = [job for job in _jobs(study, seeds, epsilon) if job not in done]
    for method, fraction, seed, _ in tqdm(jobs, desc=name, unit="run"):
        config = _config(study, method, fraction, seed, epsilon, overrides or {})
        result = run_experiment(config, out / "run", progress=False)
        rows.append(
            {
                "method": method,
                "fraction": fraction,
                "seed": seed,
                "epsilon": epsilon,
                "accuracy": result.accuracy,
                "epsilon_spent": result.epsilon,
                "seconds": result.train_seconds + result.selection_seconds,
            }
        )
        pd.DataFrame(rows).to_csv(path, index=False)
    return pd.DataFrame(rows)


def study_table(frame: pd.DataFrame) -> str:
    """Mean ± std of test accuracy in percent, methods × fractions, as Markdown."""
    fractions = sorted(f for f in frame["fraction"].unique() if f < 1)
    lines = ["| method | " + " | ".join(f"k = {f:g}" for f in fractions) + " |", "|---|" + "---|" * len(fractions)]
    for method in [m for m in _METHODS if m in set(frame["method"])]:
        cells = []
        for fraction in fractions:
            rows = frame[(frame["method"] == method) & (frame["fraction"].isin([fraction, 1.0]))]
            spread = 0.0 if len(rows) < 2 else 100 * rows["accuracy"].std()
            cells.append(f"{100 * rows['accuracy'].mean():.2f} ± {spread:.2f}" if len(rows) else "")
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _jobs(study: Study, seeds: int, epsilon: float) -> list[tuple[str, float, int, float]]:
    jobs = []
    for seed in range(seeds):
        for fraction in study.fractions:
            jobs += [(method, fraction, seed, epsilon) for method in _METHODS if method != "FullDP"]
        jobs.append(("FullDP", 1.0, seed, epsilon))
    return jobs


def _config(study: Study, method: str, fraction: float, seed: int, epsilon: float, overrides: dict[str, Any]) -> DotMap:
    strategy, dss_args = _METHODS[method]
    share = {"compute_fraction": fraction} if strategy == "FullDP" else {"fraction": fraction}
    config = config_for(
        study.dataset,
        strategy,
        dss_args={**dss_args, **share},
        privacy={"epsilon": epsilon},
        train_args={"print_every": 10**6, "seed": seed, "device": "cpu"},
        ckpt={"is_save": False},
    )
    merge_into(config, copy.deepcopy(study.changes))
    merge_into(config, copy.deepcopy(overrides))
    return DotMap(config)
