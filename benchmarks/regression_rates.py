"""Which learning rate suits a private regression on a table? The amount of noise in ``optimizer.lr="auto"``.

Made-up tables of 4, 12 and 30 columns with 700, 3,500 and 20,000 records, whose target is spread over its public range,
skewed, or takes up a small part of it; ε = 0.5, 1, 3, 8; 5 and 20 epochs by the plan of a run, with the defaults of
`config_for` (momentum 0.9, weights averaged). DP-SGD on a linear model is simulated at fourteen rates with three seeds,
and the R² on 4,000 other records of what a rule would choose is compared with that of the best rate of the setting.

    python benchmarks/regression_rates.py     (five minutes)
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pyarrow as pa

from cords_dp.config import config_for
from cords_dp.data.sources.table.encoding import Encoding
from cords_dp.data.sources.table.schema import read_schema
from cords_dp.planning import PrivacyPlan
from cords_dp.training.resolve import resolve

SEEDS, HELD_OUT, MOMENTUM, DECAY, CLIP = 3, 4000, 0.9, 0.9, 1.0
RATES = 2.0 ** np.arange(-9, 5)
STABLE = (1 + MOMENTUM) / 4  # half of the rate at which steps on records of length 1, and a bias, swing up
SETTINGS = list(
    itertools.product(["skewed", "spread", "narrow"], [4, 12, 30], [700, 3500, 20000], [0.5, 1, 3, 8], [5, 20])
)


def made_up(kind: str, columns: int, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Encoded records, and targets in [−1, 1]: numbers, bins and categories in turn, the first six count most."""
    known, chunk, signal = {}, {}, np.zeros(n)
    for i in range(columns):
        if i % 3 == 0:
            values = rng.beta(2, 4, n) * 100
            known[f"c{i}"], effect = {"range": [0, 100]}, (values - 33) / 17
        elif i % 3 == 1:
            values = rng.normal(50, 15, n)
            known[f"c{i}"], effect = {"range": [0, 100], "bins": 10}, np.abs(values - 50) / 15 - 0.8
        else:
            codes = rng.choice(5, n, p=[0.5, 0.2, 0.15, 0.1, 0.05])
            values = np.array(list("abcde"))[codes]
            known[f"c{i}"], effect = {"categories": list("abcde")}, np.array([-0.5, 0.3, 0.8, 0, 2])[codes]
        chunk[f"c{i}"] = pa.array(values)
        signal += effect * (1 if i < 6 else 0.3)
    y = signal / signal.std() + rng.normal(0, 0.7, n)
    y = {"skewed": np.exp(0.8 * y + 1.3).clip(0, 60) / 30 - 1, "spread": 0.35 * y, "narrow": 0.08 * y + 0.3}[kind]
    encoding = Encoding(read_schema({"target": {"name": "y", "range": [-1, 1]}, "columns": known}))
    rows = encoding.rows({**chunk, "y": pa.array(y)})
    return encoding.vectors(rows).astype(np.float64), rows["label"].astype(np.float64)


def plan_of(n: int, epsilon: float, epochs: int) -> PrivacyPlan:
    config = config_for(
        "own",
        "FullDP",
        train_args={"num_epochs": epochs, "device": "cpu"},
        privacy={"epsilon": epsilon, "accountant": "rdp"},
        loss={"type": "MeanSquaredLoss"},
    )
    plan = resolve(config, own_data=True, own_model=True, plan=False).plan(n, n // 10)
    assert plan is not None
    return plan


def trained(x: np.ndarray, y: np.ndarray, rate: float, plan: PrivacyPlan, rng: np.random.Generator) -> np.ndarray:
    """Weights and bias after DP-SGD on the squared error, averaged as `training.averaging` does."""
    rows = np.hstack([x, np.ones((len(x), 1))])
    lengths = np.linalg.norm(rows, axis=1)
    weights, velocity, mean = np.zeros((3, rows.shape[1]))
    for step in range(1, plan.shape.steps + 1):
        drawn = rng.random(len(rows)) < plan.shape.rate
        slopes = 2 * (rows[drawn] @ weights - y[drawn])
        slopes /= np.maximum(1, np.abs(slopes) * lengths[drawn] / CLIP)
        noise = rng.normal(0, plan.sigma * CLIP, len(weights))
        velocity = MOMENTUM * velocity + (rows[drawn].T @ slopes + noise) / plan.shape.batch_size
        weights = weights - rate * velocity
        decay = min(DECAY, (1 + step) / (10 + step))
        mean = decay * mean + (1 - decay) * weights
    return mean


def explained(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """R² of predictions that are moved into the public range."""
    errors = np.clip(x @ weights[:-1] + weights[-1], -1, 1) - y
    return float(1 - (errors**2).sum() / ((y - y.mean()) ** 2).sum())


def measured(kind: str, columns: int, n: int, epsilon: float, epochs: int) -> tuple[np.ndarray, float]:
    """R² at each rate, mean over seeds, and how much noise a rate of 1 would bring into the output."""
    plan, found = plan_of(n, epsilon, epochs), []
    for seed in range(SEEDS):
        x, y = made_up(kind, columns, n + HELD_OUT, np.random.default_rng([seed, columns, n]))
        for place, rate in enumerate(RATES):
            weights = trained(x[:n], y[:n], rate, plan, np.random.default_rng([seed, place]))
            found.append(explained(weights, x[n:], y[n:]))
    noise = plan.sigma * CLIP * math.sqrt(plan.shape.steps) / (plan.shape.batch_size * (1 - MOMENTUM))
    return np.reshape(found, (SEEDS, -1)).mean(axis=0), noise


def main() -> None:
    table = [measured(*setting) for setting in SETTINGS]
    print(f"R² below that of the best rate, over {len(table)} settings (no more than 1 is counted)")
    print("noise   bound on the rate   mean    median  nine in ten within")
    for amount, bound in itertools.product((0.05, 0.07, 0.1, 0.14, 0.2), (STABLE / 2, STABLE, 2 * STABLE, math.inf)):
        missed = []
        for scores, noise in table:
            rate = min(amount / noise, bound, RATES[-1])
            missed.append(min(1.0, scores.max() - np.interp(np.log(rate), np.log(RATES), scores)))
        middle = f"{np.mean(missed):<7.3f} {np.median(missed):<7.3f}"
        print(f"{amount:<7} {bound:<19.4g} {middle} {np.quantile(missed, 0.9):.3f}")


if __name__ == "__main__":
    main()
