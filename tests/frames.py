"""X and y that the tests of the estimators make up."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cords_dp import PrivateClassifier

QUICK = {"privacy": {"accountant": "rdp"}}  # of all upper bounds the one that takes no time


def blobs(n=600, width=5, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    return rng.normal(size=(n, width)) + 1.5 * (2 * y[:, None] - 1), y


SCHEMA = {
    "columns": {"age": {"range": [0, 100]}, "sex": {"categories": ["f", "m"]}},
    "target": {"name": "ill", "classes": ["no", "yes"]},
    "ignore": ["id"],
}


def patients(n=800, seed=0):
    rng = np.random.default_rng(seed)
    age, sex = rng.uniform(0, 100, n), rng.choice(["f", "m"], n)
    ill = np.where(age + 20 * (sex == "m") + rng.normal(0, 10, n) > 60, "yes", "no")
    return pd.DataFrame({"id": np.arange(n), "age": age, "sex": sex}), pd.Series(ill, name="ill")


def quick(epsilon=3.0, **parameters):
    return PrivateClassifier(epsilon, **{"config": QUICK, "num_epochs": 5, **parameters})
