"""A private evaluation of rows: charged, added up, right within its intervals, and blind to single rows."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from frames import SCHEMA, blobs, patients, quick
from scipy import stats

from cords_dp import PrivateRegressor, choose_threshold
from cords_dp.accounting import Account, Ledger
from cords_dp.errors import BudgetExceededError, ConfigError
from cords_dp.estimators import evaluation, repeats
from cords_dp.evaluation.released import vector_size


@pytest.fixture(autouse=True)
def forgotten():
    repeats.forget()


@pytest.fixture(scope="module")
def model():
    X, y = blobs(800)
    return quick(3.0, data_norm=5.0, classes=[0, 1]).fit(X, y)


def noisy(metric):
    return metric["low"] <= metric["value"] <= metric["high"]


def test_the_metrics_are_those_of_the_rows_within_their_intervals(model):
    X, y = blobs(4000, seed=1)
    found = model.evaluate(X, y, epsilon=2.0)
    assert found.metrics["accuracy"]["low"] <= model.score(X, y) <= found.metrics["accuracy"]["high"]
    assert abs(found.metrics["accuracy"]["value"] - model.score(X, y)) < 0.01
    assert all(noisy(found.metrics[name]) for name in ("auc", "log_loss", "balanced_accuracy"))
    assert found.epsilon <= 2.0
    assert "zero-out of one record of the 4,000 records" in found.statement
    assert "accuracy" in str(found)
    assert choose_threshold(found.metrics["scores"], recall=0.9).recall > 0.8


def test_the_noise_is_that_of_the_charged_event(model):
    X, y = blobs(300, seed=2)
    vectors, sigmas = [], set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(20):
            found = model.evaluate(X, y, epsilon=1.0)
            vectors.append(found.metrics["released"]["vector"])
            (entry,) = found.ledger["entries"]
            assert entry["dataset"] == "T"
            sigmas.add(entry["event"]["sigma"])
    (sigma,) = sigmas
    spread = np.array(vectors) - np.mean(vectors, axis=0)
    assert spread.shape == (20, vector_size(2))
    assert stats.kstest(spread.ravel() / sigma / np.sqrt(19 / 20), "norm").pvalue > 1e-4


def test_nothing_is_drawn_before_it_is_charged(model, monkeypatch):
    def refused(self, *_):
        raise BudgetExceededError("no")

    drawn = []
    monkeypatch.setattr("cords_dp.selection.releases.gaussian_release", lambda *a, **k: drawn.append(a))
    monkeypatch.setattr(Ledger, "charge", refused)
    with pytest.raises(BudgetExceededError):
        model.evaluate(*blobs(100))
    assert drawn == []


def test_one_row_moves_the_sum_by_one_at_most(model, monkeypatch):
    """The row is replaced by one whose label is no class, which contributes nothing."""
    sums = []
    original = evaluation.release_sum
    monkeypatch.setattr("cords_dp.estimators.evaluation.release_sum", lambda t, **k: sums.append(t) or original(t, **k))
    X, y = blobs(100, seed=3)
    model.evaluate(X, y)
    for row in range(5):
        other = y.copy()
        other[row] = 7
        model.evaluate(X, other)
        assert 0.3 < np.linalg.norm(sums[0] - sums[-1]) <= 1 + 1e-9


def test_an_owner_moves_it_no_further(model, monkeypatch):
    sums = []
    original = evaluation.release_sum
    monkeypatch.setattr("cords_dp.estimators.evaluation.release_sum", lambda t, **k: sums.append(t) or original(t, **k))
    X, y = blobs(100, seed=3)
    owners = np.arange(100) // 10
    found = model.evaluate(X, y, owners=owners)
    other = np.where(owners == 4, 7, y)
    model.evaluate(X, other, owners=owners)
    assert np.linalg.norm(sums[0] - sums[1]) <= 1 + 1e-9
    assert (found.unit, found.rows) == ("owner", 10)


def test_evaluations_of_the_same_rows_add_up(model, tmp_path):
    X, y = blobs(200, seed=4)
    model.evaluate(X, y, epsilon=0.5)
    with pytest.warns(UserWarning, match="2 times"):
        again = model.evaluate(X, y, epsilon=0.5)
    assert again.repeated.epsilon == pytest.approx(1.0)
    path = tmp_path / "account"
    Account.open(path, epsilon=1.2, delta=2e-5)
    under = quick(1.0, data_norm=5.0, classes=[0, 1]).fit(X, y).set_params(account=path)
    under.evaluate(X, y, epsilon=0.9)
    assert len(Account.read(path).holdings()) == 1
    with pytest.raises(BudgetExceededError):
        under.evaluate(X, y, epsilon=0.9)


def test_groups_of_a_column(model):
    X, y = patients(3000, seed=1)
    doctor = quick(3.0, schema=SCHEMA).fit(*patients(800))
    rows = doctor.evaluate(X, y, by="sex", epsilon=3.0).metrics["by_group"]
    assert [row["group"] for row in rows] == ["f", "m"]
    assert sum(row["records"] for row in rows) == pytest.approx(3000, abs=60)
    with pytest.raises(ConfigError, match="by"):
        model.evaluate(*blobs(50), by="sex")


def test_a_regression_needs_a_public_range():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 3))
    y = np.clip(50 + 10 * X[:, 0], 0, 100)
    config = {"privacy": {"accountant": "rdp"}}
    model = PrivateRegressor(8.0, data_norm=4.0, target_range=(0, 100), num_epochs=8, config=config).fit(X, y)
    exact = np.abs(model.predict(X) - y).mean()
    found = [model.evaluate(X, y, epsilon=8.0).metrics["mae"] for _ in range(10)]
    held = sum(mae["low"] <= exact <= mae["high"] for mae in found)
    assert held >= 6  # of intervals of 95 %: fewer in 1 of 15,000 suites
    without = PrivateRegressor(8.0, data_norm=4.0, num_epochs=2, config=config).fit(X, y / 100)
    with pytest.raises(ConfigError, match="target_range"):
        without.evaluate(X, y / 100)


def test_what_is_fitted_stays_as_it_was(model):
    X, y = blobs(80)
    before = dict(model.__dict__)
    model.evaluate(X, pd.Series(y, name="other"))
    assert {name: before[name] for name in ("classes", "_target_name")} == {
        name: model.__dict__[name] for name in ("classes", "_target_name")
    }


@pytest.mark.parametrize(("wrong", "key"), [({"epsilon": 0.0}, "epsilon"), ({"delta": 0.5}, "delta")])
def test_a_budget_that_protects_nobody_is_refused(model, wrong, key):
    with pytest.raises(ConfigError, match=key):
        model.evaluate(*blobs(50), **wrong)
