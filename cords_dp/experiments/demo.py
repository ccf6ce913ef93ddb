"""The demo: the three private strategies on data that comes with scikit-learn."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from dotmap import DotMap

from cords_dp.config import config_for
from cords_dp.experiments.run import run_experiment
from cords_dp.report.plots import accuracy_curves

_STRATEGIES: tuple[tuple[str, str, dict[str, float]], ...] = (
    ("FullDP", "all records", {}),
    ("FullDP", "all records, equal compute", {"compute_fraction": 0.3}),
    ("RandomDP", "30 % at random", {"fraction": 0.3}),
    ("GLISTERDP", "30 % by GLISTER-DP", {"fraction": 0.3}),
)


def run_demo(out: Path, *, epsilon: float = 3.0, progress: bool = True) -> pd.DataFrame:
    """Train each strategy on the digits, write a table and a picture into ``out``, return the table."""
    rows, curves = [], {}
    for strategy, label, dss_args in _STRATEGIES:
        print(f"\n=== {strategy}: {label}", flush=True)
        cfg = DotMap(
            config_for(
                "digits",
                strategy,
                dss_args=dss_args,
                privacy={"epsilon": epsilon},
                train_args={"print_every": 1, "device": "cpu"},
            )
        )
        folder = out / label.replace(" %", "pct").replace(",", "").replace(" ", "-").lower()
        result = run_experiment(cfg, folder, progress=progress)
        curves[f"{strategy} ({label})"] = pd.read_csv(folder / "metrics.csv")
        rows.append(
            {
                "strategy": strategy,
                "trains on": label,
                "test accuracy": f"{100 * result.accuracy:.1f} %",
                "epsilon": f"{result.epsilon:.2f}",
                "delta": f"{result.delta:.0e}",
                "seconds": f"{result.train_seconds + result.selection_seconds:.1f}",
            }
        )
    table = pd.DataFrame(rows)
    picture = accuracy_curves(curves, out / "demo.png", title=f"Digits, trained with ε = {epsilon:g}")
    table.to_csv(out / "demo.csv", index=False)
    print(f"\n{table.to_string(index=False)}\n\npicture: {picture}\nevery run's files: {out}/*/")
    return table
