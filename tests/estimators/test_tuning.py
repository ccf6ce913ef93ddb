"""`PrivateTuning`: a tuning of rows in memory, which leaves no file with records and shows nothing of its trials."""

from __future__ import annotations

import tempfile
import warnings

import numpy as np
import pandas as pd
import pytest
from frames import SCHEMA, blobs, patients, quick
from sklearn.base import is_classifier, is_regressor

from cords_dp import PrivateRegressor, PrivateTuning, load_model
from cords_dp.accounting import Account
from cords_dp.data.sources.base import find_source
from cords_dp.errors import ConfigError, DataError
from cords_dp.estimators import records, repeats
from cords_dp.estimators.tuning import _written

SEARCH = {"lr": "loguniform(0.1, 1)", "num_epochs": [2, 3]}


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    repeats.forget()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)


def test_a_tuning_of_vectors_keeps_one_model_within_one_budget(tmp_path, capfd):
    X, y = blobs(600)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tuned = PrivateTuning(quick(3.0, data_norm=5.0, classes=[0, 1]), SEARCH, trials=2).fit(X, y)
    assert capfd.readouterr() == ("", "")
    assert tuned.privacy_.epsilon <= 3.0
    assert "all trials" in tuned.privacy_.statement
    assert set(tuned.best_params_) == {"optimizer.lr", "train_args.num_epochs"}
    assert tuned.score(X, y) > 0.8
    assert list((tmp_path / "temporary").glob("cords_dp*")) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["temporary"]
    with pytest.warns(UserWarning, match="read 2 times"):
        quick(1.0, data_norm=5.0, classes=[0, 1], num_epochs=1).fit(X, y)


def test_a_tuning_of_a_table_under_an_account(tmp_path):
    Account.open(tmp_path / "account", epsilon=8.0, delta=1e-4)
    X, y = patients(600)
    estimator = quick(3.0, schema=SCHEMA, account=tmp_path / "account", validation_fraction=0.2)
    tuned = PrivateTuning(estimator, {"lr": [0.5, 1.0]}, trials=1.5, out=tmp_path / "out").fit(X, y)
    assert tuned.classes_.tolist() == ["no", "yes"]
    assert 0 < tuned.score(X, y) <= 1
    assert len(Account.read(tmp_path / "account").holdings()) == 1
    np.testing.assert_allclose(load_model(tmp_path / "out").predict_proba(X), tuned.predict_proba(X))
    assert not list((tmp_path / "out").rglob("*.parquet"))
    assert (tuned.save(tmp_path / "saved") / "privacy.md").read_text() == (tmp_path / "out" / "privacy.md").read_text()


@pytest.mark.parametrize("kind", [records.VECTORS, records.TABLE, records.TEXTS])
def test_what_trials_are_tested_on_is_made_up(kind, tmp_path):
    """Exact metrics of a test set are no secret: none of the records may be in it."""
    (X, y), estimator = patients(50), quick(schema=SCHEMA)
    if kind != records.TABLE:
        X, y = blobs(50)
        X = X if kind == records.VECTORS else [f"text {place}" for place in range(50)]
        estimator = quick(data_norm=5.0, classes=[0, 1])
    y = estimator._checked_target(X, y)
    given, _ = estimator._given(kind, X, y)
    section = _written(kind, X, y, given, tmp_path)
    splits = find_source(kind).build(section, np.random.default_rng(0))
    x, labels = splits.test.batch(np.arange(len(splits.test)))
    assert labels.tolist() == [0, 1]
    assert (x[0] == x[1]).all()
    assert len(splits.train) + len(splits.validation) == 50


def test_trials_are_compared_by_any_metric():
    X, y = patients(900)
    estimator = quick(20.0, schema=SCHEMA, validation_fraction=0.4)
    tuned = PrivateTuning(estimator, {"lr": [0.5, 1.0]}, trials=1.5, metric="auc").fit(X, y)
    assert 0 <= tuned.best_score_ <= 1
    assert "score histograms" in tuned.privacy_.statement
    assert is_classifier(tuned)


def test_a_regression_is_tuned_by_its_error():
    X, _ = patients(900)
    cost = pd.Series(X["age"] * 10 + 5, name="cost")
    schema = {**SCHEMA, "target": {"name": "cost", "range": [0, 1100]}}
    estimator = PrivateRegressor(3.0, schema=schema, num_epochs=3, config={"privacy": {"accountant": "rdp"}})
    tuned = PrivateTuning(estimator, {"lr": [0.5, 1.0]}, trials=1.5).fit(X, cost)
    assert tuned.predict(X).shape == (900,)
    assert is_regressor(tuned)
    assert not hasattr(tuned, "classes_")


def test_what_cannot_be_tuned_is_refused():
    X, y = blobs(60)
    with pytest.raises(ConfigError, match="with a budget"):
        PrivateTuning(quick(None, data_norm=5.0), SEARCH).fit(X, y)
    with pytest.raises(ConfigError, match="DataFrame with a schema"):
        PrivateTuning(PrivateRegressor(data_norm=5.0), SEARCH).fit(X, y.astype(float))
    with pytest.raises(ConfigError, match="--metric"):
        PrivateTuning(quick(3.0, data_norm=5.0, classes=[0, 1]), SEARCH, metric="rmse").fit(X, y)
    with pytest.raises(DataError, match="owners"):
        PrivateTuning(quick(3.0, data_norm=5.0, classes=[0, 1]), SEARCH).fit(X, y, owners=y)
    with pytest.raises(ConfigError, match="search"):
        PrivateTuning(quick(3.0, data_norm=5.0), {"epsilon": [1, 2]}).fit(pd.DataFrame(X), y)
