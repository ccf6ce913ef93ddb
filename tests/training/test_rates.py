"""The planned learning rate of a classifier: probabilities that are worth something, at every ε."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from builders import make_plan
from hospital import SCHEMA, rarely_readmitted, write_csv
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from torch import nn

from cords_dp import load_model
from cords_dp.config import config_for
from cords_dp.models.heads import LinearHead
from cords_dp.runs.run import run_experiment
from cords_dp.training.optim import planned_learning_rate

SGD = {"type": "sgd", "lr": "auto", "momentum": 0.9}


def rate_of(model: nn.Module, epsilon: float, *, n: int = 20_000, sgd: dict | None = None, **privacy) -> float:
    plan = make_plan("FullDP", epsilon=epsilon, epochs=20, n=n, n_validation=n // 10, accountant="rdp", **privacy)
    return planned_learning_rate({"optimizer": {**SGD, **(sgd or {})}}, plan, model)


def head(columns: int = 5, classes: int = 2, length: float = 1.0) -> LinearHead:
    return LinearHead(classes, (columns,), input_norm=length)


def test_no_budget_makes_the_steps_of_a_logistic_regression_swing():
    """2·(1+μ)/λ with λ = (1² + 1)/2 is where they would; momentum and Nesterov's move it."""
    rates = [rate_of(head(), epsilon, max_grad_norm=1.4) for epsilon in (0.5, 1, 3, 8, 50)]
    assert rates == sorted(rates)
    assert rates[0] < rates[1]
    assert rates[-2:] == pytest.approx([0.75 * 3.8] * 2)
    assert rate_of(head(), 50, max_grad_norm=1.4, sgd={"momentum": 0.0}) == pytest.approx(0.75 * 2)
    assert rate_of(head(), 50, max_grad_norm=1.4, sgd={"nesterov": True}) == pytest.approx(0.75 * 3.8 / 2.8)
    assert rate_of(head(length=2.0), 50, max_grad_norm=1.4) == pytest.approx(0.75 * 3.8 / 2.5)
    assert rate_of(head(), 50, max_grad_norm=1.4, sgd={"lr_scale": 3.0}) == pytest.approx(3 * 0.75 * 3.8)


def test_the_noise_of_all_steps_adds_up_to_1_in_the_logits():
    """Where no step could swing: whatever ε, the number of classes and of columns."""
    for epsilon, model in ((0.1, head()), (0.3, head()), (0.3, head(300, 20))):
        plan = make_plan("FullDP", epsilon=epsilon, epochs=20, n=20_000, n_validation=2_000, max_grad_norm=1.4)
        noise = rate_of(model, epsilon, max_grad_norm=1.4) * plan.sigma * 1.4 * plan.shape.steps**0.5
        assert noise / plan.shape.batch_size / 0.1 == pytest.approx(1.0)


def test_clipped_features_are_ranked_as_before():
    """Nearly every gradient is clipped: the rate knows neither curvature nor weights, whatever ε is."""
    plan = make_plan("FullDP", epsilon=50.0, max_grad_norm=0.1, epochs=20, n=20_000, n_validation=2_000)
    for model in (head(64, 10, 8.0), head(64, 2, 8.0)):
        rate = planned_learning_rate({"optimizer": SGD}, plan, model)
        noise = rate * plan.sigma * 0.1 * plan.shape.steps**0.5 * 8 / plan.shape.batch_size / 0.1
        assert noise == pytest.approx(2.5)
    unit = rate_of(head(), 50, max_grad_norm=1.4, clipping="automatic")
    assert unit > 10 * rate_of(head(), 50, max_grad_norm=1.4)


def test_own_classifiers_clip_little_and_others_as_before():
    budget = {"privacy": {"epsilon": 1.0}}
    assert config_for("table", "FullDP", **budget)["privacy"]["max_grad_norm"] == 1.4
    owned = config_for("table", "FullDP", dataset={"owner": "patient"}, **budget)  # a mean is shorter than its parts
    assert owned["privacy"]["max_grad_norm"] == 0.7
    mlp = config_for("table", "FullDP", model={"architecture": "MLPHead"}, **budget)
    assert mlp["privacy"]["max_grad_norm"] == 4.0
    own = config_for("table", "FullDP", privacy={"epsilon": 1.0, "max_grad_norm": 0.7})
    assert own["privacy"]["max_grad_norm"] == 0.7
    assert "max_grad_norm" not in config_for("table", "FullDP", loss={"type": "MeanSquaredLoss"}, **budget)["privacy"]
    assert config_for("arrays", "FullDP", **budget)["privacy"]["max_grad_norm"] == 0.1
    assert "privacy" not in config_for("table", "Full")


def readmissions(folder, epsilons, *, n, epochs, seed=0, **changes):
    """Write a table whose positives are rare; return what is true of new patients and what each budget predicts."""
    flat = [[{**row, "notes": ""} for row in rarely_readmitted(count, place)] for place, count in enumerate((n, 8000))]
    for name, rows in zip(("old", "new"), flat, strict=True):
        write_csv(folder / f"{name}.csv", rows)
    true, predicted = np.array([row["readmitted"] == "yes" for row in flat[1]]), []
    for epsilon in epsilons:
        config = config_for(
            "table",
            "FullDP",
            dataset={"path": str(folder / "old.csv"), "schema": SCHEMA, "datadir": str(folder / "data")},
            train_args={"num_epochs": epochs, "device": "cpu", "seed": seed, "results_dir": str(folder / "r")},
            ckpt={"dir": str(folder / "r"), "is_save": False},
            privacy={"epsilon": epsilon, "accountant": "rdp", "reproducible_noise": True},
            **changes,
        )
        run_experiment(config, folder / f"run-{epsilon}", progress=False)
        frame = load_model(folder / f"run-{epsilon}").predict_file(folder / "new.csv")
        predicted.append(frame["p_yes"].to_numpy())
    return flat[0], true, predicted


def test_more_budget_does_not_make_probabilities_worse(tmp_path):
    """At ε = 20 the rate of old (2.5 in the logits) swung: the log loss was twice the base rate's."""
    rows, true, (some, much) = readmissions(tmp_path, (1.0, 20.0), n=6000, epochs=10)
    share = np.mean([row["readmitted"] == "yes" for row in rows])
    base = log_loss(true, np.full(len(true), share))
    assert log_loss(true, much) < min(base - 0.008, log_loss(true, some) + 0.004)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_hospital_s_rare_readmissions(tmp_path, seed):
    """Log loss below the base rate's at every ε, and AUC at ε = 1 within 2 points of a model without privacy."""
    epsilons = (0.5, 1.0, 3.0, 8.0)
    rows, true, predicted = readmissions(tmp_path, epsilons, n=20_000, epochs=20, seed=seed)
    labels = np.array([row["readmitted"] == "yes" for row in rows])
    assert 0.06 < labels.mean() < 0.08
    base = log_loss(true, np.full(len(true), labels.mean()))
    losses = [log_loss(true, p) for p in predicted]
    assert max(losses) < base - 0.01
    assert all(later < earlier + 0.002 for earlier, later in itertools.pairwise(losses))
    new = [dict(row) for row in rarely_readmitted(8000, 1)]
    free = LogisticRegression(max_iter=1000).fit(cells(rows), labels).predict_proba(cells(new))[:, 1]
    assert roc_auc_score(true, predicted[1]) > roc_auc_score(true, free) - 0.02


def cells(rows: list[dict[str, str]]) -> np.ndarray:
    """What scikit-learn is given: numbers around 0, and a column for each ward."""
    wards = [[row["ward"] == ward for ward in ("cardiology", "medicine", "surgery")] for row in rows]
    numbers = [[float(row["age"]) / 25 - 2.4, np.log(float(row["creatinine"])), row["sex"] == "f"] for row in rows]
    return np.hstack([np.array(numbers, dtype=float), np.array(wards, dtype=float)])
