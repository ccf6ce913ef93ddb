"""`PrivateTuning`: a tuning of rows in memory, which leaves no file with records and shows nothing of its trials."""

from __future__ import annotations

import tempfile
import warnings

import numpy as np
import pandas as pd
import pytest
from frames import SCHEMA, blobs, patients, quick

from cords_dp import PrivateRegressor, PrivateTuning, load_model
from cords_dp.accounting import Account
from cords_dp.errors import ConfigError
from cords_dp.estimators import repeats

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
    with pytest.warns(UserWarning, match="fitted 2 times"):
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


def test_what_cannot_be_tuned_is_refused():
    X, y = blobs(60)
    with pytest.raises(ConfigError, match="PrivateClassifier with a budget"):
        PrivateTuning(PrivateRegressor(), SEARCH).fit(X, y)
    with pytest.raises(ConfigError, match="search"):
        PrivateTuning(quick(3.0, data_norm=5.0), {"epsilon": [1, 2]}).fit(pd.DataFrame(X), y)
