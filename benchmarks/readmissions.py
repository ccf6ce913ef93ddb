"""How good are the probabilities of a private classifier where positives are rare? A hospital-like table, made up.

20,000 patients of whom 7 in 100 come back (tests/hospital.py), 8,000 others to be predicted, the defaults of
`config_for`. Prints AUC, log loss and calibration error beside those of always saying the base rate and of
scikit-learn's logistic regression without privacy. No constant of the learning rate's rule was chosen on this table.

    python benchmarks/readmissions.py [--seeds 3]     (two minutes)
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

from cords_dp import load_model
from cords_dp.config import config_for
from cords_dp.evaluation.metrics import classifier_metrics
from cords_dp.report.tables import to_markdown
from cords_dp.runs.run import run_experiment

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from hospital import SCHEMA, WARDS, rarely_readmitted, write_csv

METHODS = {"FullDP": {}, "GLISTERDP": {"dss_args": {"fraction": 0.3}}, "RandomDP": {"dss_args": {"fraction": 0.3}}}
EPSILONS = (0.5, 1.0, 3.0, 8.0)
_SCORES = {"auc": "AUC", "log_loss": "log loss", "calibration_error": "calibration error"}


def cells(rows: list[dict[str, str]]) -> tuple[np.ndarray, np.ndarray]:
    """Return what scikit-learn is given, numbers around 0 and a column for each ward, and who came back."""
    wards = [[row["ward"] == ward for ward in WARDS] for row in rows]
    numbers = [[float(row["age"]) / 25 - 2.4, np.log(float(row["creatinine"])), row["sex"] == "f"] for row in rows]
    x = np.hstack([np.array(part, dtype=float) for part in (numbers, wards)])
    return x, np.array([row["readmitted"] == "yes" for row in rows], dtype=int)


def scored(positive: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    return classifier_metrics(labels, np.stack([1 - positive, positive], axis=1), tuple(_SCORES))


def private(folder: Path, method: str, epsilon: float, seed: int, labels: np.ndarray) -> dict[str, float]:
    out = folder / f"{method}-{epsilon}-{seed}"
    config = config_for(
        "table",
        method,
        dataset={"path": str(folder / "old.csv"), "schema": SCHEMA, "datadir": str(folder / "data"), "test": "public"},
        train_args={"device": "cpu", "seed": seed, "results_dir": str(out)},
        ckpt={"dir": str(out), "is_save": False},
        privacy={"epsilon": epsilon},
        **METHODS[method],
    )
    run_experiment(config, out, progress=False)
    return scored(load_model(out).predict_file(folder / "new.csv")["p_yes"].to_numpy(), labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    logging.disable(logging.INFO)
    old, new = ([{**row, "notes": ""} for row in rarely_readmitted(n, seed)] for n, seed in ((20_000, 0), (8_000, 1)))
    (x, y), (x_new, labels) = cells(old), cells(new)
    free = LogisticRegression(max_iter=1000).fit(x, y).predict_proba(x_new)[:, 1]
    found = [
        {"method": "base rate", "ε": "none", **scored(np.full(len(labels), y.mean()), labels)},
        {"method": "logistic regression, not private", "ε": "none", **scored(free, labels)},
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_csv(folder / "old.csv", old)
        write_csv(folder / "new.csv", new)
        for method in METHODS:
            for epsilon in EPSILONS:
                runs = pd.DataFrame([private(folder, method, epsilon, seed, labels) for seed in range(seeds)])
                found.append({"method": method, "ε": f"{epsilon:g}", **runs.mean()})
    print(to_markdown(pd.DataFrame(found).rename(columns=_SCORES).round(4)))


if __name__ == "__main__":
    main()
