"""scikit-learn's face of a run: its contract, its privacy, and the same plan, ledger and refusals as any other face."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from frames import QUICK, SCHEMA, blobs, patients, quick
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from cords_dp import PrivateClassifier, PrivateRegressor, load_model
from cords_dp.accounting import Account
from cords_dp.accounting.events import merge
from cords_dp.errors import BudgetExceededError, ConfigError, DataError, PrivacyWarning
from cords_dp.estimators import records, repeats
from cords_dp.estimators.parameters import config_of
from cords_dp.models.features import register_features, registered_features
from cords_dp.training.resolve import resolve

FRESH = "two fits are equal only without noise, which is fresh and secret whatever random_state says"
NO_RECORD_DECIDES = "a record that cannot be used contributes nothing: whether a fit ends with an error tells of none"
OF_BOTH = {"check_fit_idempotent": FRESH, "check_supervised_y_2d": FRESH}
CONTRADICTIONS = {
    PrivateClassifier: OF_BOTH | {"check_classifier_data_not_an_array": FRESH},
    PrivateRegressor: OF_BOTH
    | {
        "check_regressor_data_not_an_array": FRESH,
        "check_regressors_int": FRESH,
        "check_supervised_y_no_nan": NO_RECORD_DECIDES,
    },
}


@pytest.fixture(autouse=True)
def first_fit():
    repeats.forget()
    records._told.clear()
    yield
    repeats.forget()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("epsilon", [8.0, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_scikit_learn_s_contract_but_for_what_contradicts_privacy(kind, epsilon):
    """Without noise all that compares two fits holds, so it is noise alone that contradicts those checks."""
    allowed = CONTRADICTIONS[kind]
    if epsilon is None:
        allowed = {name: reason for name, reason in allowed.items() if reason != FRESH}
    estimator = kind(epsilon=epsilon, data_norm=5.0, config=QUICK, random_state=0)
    results = check_estimator(estimator, on_fail=None)
    failed = {found["check_name"]: found["exception"] for found in results if found["status"] == "failed"}
    assert failed.keys() <= allowed.keys(), failed
    assert len([found for found in results if found["status"] == "passed"]) > 40


# --- X in all its kinds --------------------------------------------------------------------------------------------


def test_a_table_by_its_schema():
    X, y = patients()
    model = quick(schema=SCHEMA).fit(X, y)
    assert model.score(X, y) > 0.75
    assert model.classes_.tolist() == ["no", "yes"]
    assert (model.n_features_in_, model.feature_names_in_.tolist()) == (3, ["id", "age", "sex"])
    shuffled = X[["sex", "age"]].assign(other=1)
    np.testing.assert_array_equal(model.predict_proba(shuffled), model.predict_proba(X))


def test_a_schema_is_a_dict_a_file_or_an_object(tmp_path):
    import yaml

    from cords_dp.data.sources.table.schema import read_schema

    X, y = patients(200)
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(SCHEMA))
    plans = {
        quick(schema=schema, num_epochs=1).fit(X, y).privacy_.plan.fingerprint
        for schema in (SCHEMA, tmp_path / "schema.yaml", read_schema(SCHEMA))
    }
    assert len(plans) == 1


def test_a_frame_without_a_schema_gets_a_template_and_no_value_is_in_it():
    X, y = patients(50)
    with pytest.raises(ConfigError, match="a DataFrame needs a schema") as refused:
        quick().fit(X, y)
    template = str(refused.value)
    assert '"age": {range: TODO}' in template
    assert '"sex": {categories: TODO}' in template
    assert 'name: "ill"' in template
    assert str(X["age"][0]) not in template


def test_labels_of_a_table_come_back_in_the_type_of_y():
    X, y = patients(300)
    schema = {**SCHEMA, "target": {"name": "ill", "classes": ["0", "1"]}}
    model = quick(schema=schema, num_epochs=1).fit(X, (y == "yes").astype(int))
    assert model.classes_.tolist() == [0, 1]
    assert model.predict(X).dtype.kind == "i"
    with pytest.raises(ConfigError, match="y holds int64"):
        quick(schema=SCHEMA, num_epochs=1).fit(X, (y == "yes").astype(int))


def test_a_schema_without_a_target_is_completed_by_y():
    X, y = patients(300)
    schema = {key: value for key, value in SCHEMA.items() if key != "target"}
    model = quick(schema=schema, classes=["yes", "no"], num_epochs=1).fit(X, y)
    assert model.classes_.tolist() == ["yes", "no"]
    regression = PrivateRegressor(3.0, schema={"columns": {"sex": SCHEMA["columns"]["sex"]}, "ignore": ["id"]},
                                  target_range=(0, 100), config=QUICK)  # fmt: skip
    ages = regression.fit(X[["id", "sex"]], X["age"]).predict(X)
    assert ((ages >= 0) & (ages <= 100)).all()


def test_images_as_bytes():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 120)
    X = rng.integers(0, 80, (120, 8, 8, 3)).astype(np.uint8)
    X[y == 1, :4] += 150
    model = quick(20.0, num_epochs=4, features="scattering").fit(X, y)
    assert model.score(X, y) > 0.8
    assert model._loaded.card.pixels is not None


def test_texts_need_features_and_say_so():
    with pytest.raises(ConfigError, match="sentence:FOLDER"):
        quick().fit(["good", "bad"] * 10, [1, 0] * 10)


def test_texts_by_features_of_ones_own():
    def letters(input_shape):
        return lambda x: torch.stack([(x == ord(letter)).sum(dim=1) for letter in "abcdefgh"], dim=1).float() + 1

    register_features("letters", letters)
    try:
        X, y = ["bad face"] * 60 + ["hedge"] * 60, [0] * 60 + [1] * 60
        model = quick(8.0, features="letters", max_length=16).fit(X, y)
        assert model.score(pd.Series(X), y) == 1.0
        assert model.predict(np.array(["a bad face", "edge"])).tolist() == [0, 1]
    finally:
        registered_features().pop("letters")


def test_numbers_of_a_frame_may_have_bounds_instead_of_a_schema():
    X, y = blobs()
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = quick(bounds=(-4, 4), classes=[0, 1]).fit(frame, y)
    assert model.feature_names_in_.tolist() == list("abcde")
    assert model.score(frame, y) > 0.8


@pytest.mark.parametrize("parameters", [{"bounds": (1, 0)}, {"data_norm": -1.0}, {"bounds": (0, 1), "data_norm": 2.0}])
def test_bounds_that_are_none_are_refused(parameters):
    with pytest.raises(ConfigError, match=r"model\.args"):
        quick(**parameters).fit(*blobs(50))


@pytest.mark.parametrize("bounds", [{"data_norm": 3.0}, {"bounds": (-2, 2)}, {"bounds": (-np.ones(4), np.ones(4))}])
def test_no_row_is_longer_than_1_by_its_bounds(bounds):
    from cords_dp.models.heads import LinearHead

    head = LinearHead(2, (4,), **{key: v if np.isscalar(v) else tuple(v) for key, v in bounds.items()})
    rows = head.rows(torch.tensor(np.random.default_rng(0).normal(0, 50, (64, 4)), dtype=torch.float32))
    assert rows.norm(dim=1).max() <= 1 + 1e-6
    one = head.rows(torch.ones(1, 4) / 100)
    torch.testing.assert_close(head.rows(torch.cat([torch.ones(1, 4) / 100, 1e6 * torch.ones(1, 4)]))[:1], one)


# --- the same run as any other ---------------------------------------------------------------------------------------


def test_plan_ledger_and_statement_are_those_of_a_run():
    X, y = blobs()
    model = PrivateClassifier(2.0, data_norm=5.0, classes=[0, 1], num_epochs=4).fit(X, y)
    run = resolve(config_of(model, records.VECTORS), own_data=True, plan=False)
    plan = run.plan(len(X), 0)
    privacy = model.privacy_
    assert privacy.plan.fingerprint == plan.fingerprint
    planned, charged = (merge([e.event for e in entries]) for entries in (plan.entries(), privacy.charges.entries))
    assert charged == planned
    assert 1.9 < privacy.epsilon <= 2.0
    assert privacy.spent.delta == privacy.delta == 1e-5
    assert "(ε = 1.99" in privacy.statement
    assert privacy.ledger["entries"]


def test_a_strategy_that_selects_splits_v_off_and_others_train_on_all():
    X, y = blobs(400)
    full = quick(data_norm=5.0).fit(X, y).privacy_.plan
    glister = quick(data_norm=5.0, strategy="GLISTERDP", validation_fraction=0.2).fit(X, y).privacy_.plan
    assert (full.shape.n, full.shape.n_validation) == (400, 0)
    assert (glister.shape.n, glister.shape.n_validation) == (320, 80)
    assert glister.sigma_validation is not None


def test_a_config_s_mistakes_are_told_and_nothing_is_fitted():
    with pytest.raises(ConfigError, match="epsilon"):
        quick(-1.0, data_norm=5.0).fit(*blobs(50))
    with pytest.raises(ConfigError, match="Full"):
        quick(strategy="Full", data_norm=5.0, batch_size=20, lr=0.1).fit(*blobs(50))


@pytest.mark.filterwarnings("ignore:epsilon=None")
@pytest.mark.parametrize("epsilon", [3.0, None])
def test_a_label_that_is_no_class_contributes_nothing(epsilon):
    X, y = blobs(300)
    strange = np.where(np.arange(300) < 290, y, 7)
    model = quick(epsilon, data_norm=5.0, classes=[0, 1], num_epochs=2).fit(X, strange)
    assert np.isfinite(model.predict_proba(X)).all()
    assert model.score(X, y) > 0.8


STRANGE = ["Jane Doe", None, {"Jane": "Doe"}, object(), 10**400]


@pytest.mark.parametrize("kind", [lambda x: x, pd.DataFrame, lambda x: x.tolist()], ids=["array", "frame", "list"])
@pytest.mark.parametrize("value", STRANGE, ids=["text", "missing", "dict", "object", "huge"])
def test_a_value_that_is_no_number_decides_nothing_and_is_not_quoted(kind, value):
    X, y = blobs(300)
    given = X.astype(object)
    given[3, 1] = value
    model = quick(bounds=(-5, 5), classes=[0, 1]).fit(kind(given), y)
    assert np.isfinite(model.predict_proba(kind(given))).all()
    assert model.score(kind(X.astype(object)), y) > 0.8
    spoilt = X.copy()
    spoilt[3, 1] = np.nan
    np.testing.assert_array_equal(model.predict_proba(kind(given)), model.predict_proba(kind(spoilt)))


def test_a_missing_label_decides_nothing_where_labels_are_read_or_numbers():
    X, y = blobs(300)
    names = np.where(y > 0, "ill", "well").astype(object)
    names[7] = None
    with pytest.warns(PrivacyWarning, match="set of labels"):
        assert quick(bounds=(-5, 5)).fit(X, names).classes_.tolist() == ["ill", "well"]
    with pytest.raises(DataError, match="several types"):
        quick(bounds=(-5, 5)).fit(X, np.where(y > 0, "ill", 7.0 * (y + 1).astype(object)))
    numbers = (y / 2).astype(object)
    numbers[7] = "Jane Doe"
    regression = PrivateRegressor(3.0, bounds=(-5, 5), target_range=(0, 1), config=QUICK).fit(X, numbers)
    assert np.isfinite(regression.predict(X)).all()


def test_a_score_leaves_out_rows_without_a_label():
    X, y = blobs(300)
    names = np.where(y > 0, "ill", "well").astype(object)
    model = quick(bounds=(-5, 5), classes=["ill", "well"]).fit(X, names)
    lacking = names.copy()
    lacking[::3] = None
    rest = np.arange(300) % 3 > 0
    assert model.score(pd.DataFrame(X), pd.Series(lacking)) == model.score(X[rest], names[rest])
    assert model.score(X, lacking, sample_weight=rest) == model.score(X[rest], names[rest])


def test_errors_show_no_values():
    X, y = blobs(100)
    for given, target in ((X[:, 0], y), (X * 1j, y), (X, y * 1j)):
        with pytest.raises(ValueError) as refused:
            quick(bounds=(-5, 5), classes=[0, 1]).fit(given, target)
        assert "[" not in str(refused.value)
    with pytest.raises(DataError, match="dates"):
        quick(bounds=(-5, 5), classes=[0, 1]).fit(pd.DataFrame({"a": pd.Timestamp("2020-01-01")}, index=range(100)), y)


def test_a_text_that_is_missing_is_an_empty_one():
    for given in (["words"] * 49 + [None], np.array(["words"] * 49 + [None], dtype=object)):
        assert records.kind_of(given, schema=None, bounded=False) == records.TEXTS


def test_a_row_that_is_not_finite_decides_nothing():
    X, y = blobs(300)
    X[:3] = np.nan
    model = quick(data_norm=5.0, classes=[0, 1]).fit(X, y)
    assert np.isfinite(model.predict_proba(X)).all()
    assert model.score(X[3:], y[3:]) > 0.8


def test_global_generators_stay_as_they_were():
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002 - it is the global one
    quick(data_norm=5.0, num_epochs=1).fit(*blobs(60))
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002


def test_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quick(data_norm=5.0, num_epochs=1).fit(*blobs(60))
    assert list(tmp_path.iterdir()) == []


# --- the label set ---------------------------------------------------------------------------------------------------


def test_the_label_set_of_y_is_taken_as_public_with_one_warning_and_a_line_in_the_statement():
    X, y = blobs(60)
    with pytest.warns(PrivacyWarning, match="set of labels is read from y"):
        model = quick(data_norm=5.0, num_epochs=1).fit(X, y)
    assert "which was read from y" in model.privacy_.statement
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        declared = quick(data_norm=5.0, num_epochs=1, classes=[0, 1]).fit(*blobs(60, seed=1))
    assert "which was read from y" not in declared.privacy_.statement


# --- files and pickles -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["table", "vectors"])
def test_a_pickle_holds_no_record(kind):
    """No row stands in the bytes: not as it was given, nor in the form in which a run reads it."""
    if kind == "table":
        X, y = patients(200)
        model = quick(schema=SCHEMA, num_epochs=1, strategy="GLISTERDP").fit(X, y)
        given = model._given(records.TABLE, X, y.to_numpy())[0]
        rows = [*X["age"].to_numpy(), *given.records.store.stored]
    else:
        X, y = blobs(200)
        model = quick(data_norm=5.0, num_epochs=1, strategy="GLISTERDP").fit(X, y)
        rows = [*X, *X.astype(np.float32), *X[:, :2], *X[:, :2].astype(np.float32)]
    content = pickle.dumps(model)
    assert not [row for row in rows if row.tobytes() in content]
    assert not [number for number in np.asarray(X.iloc[:, 1] if kind == "table" else X).ravel()
                if repr(float(number)).encode() in content]  # fmt: skip
    assert np.asarray(y == y[0]).tobytes() not in content
    assert len(content) < 30_000
    again = pickle.loads(content)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.privacy_.statement == model.privacy_.statement


def test_a_saved_model_predicts_in_another_process(tmp_path):
    X, y = patients(300)
    folder = quick(schema=SCHEMA, num_epochs=2).fit(X, y).save(tmp_path / "model")
    X.to_csv(tmp_path / "new.csv", index=False)
    code = (
        "import sys, cords_dp; model = cords_dp.load_model(sys.argv[1])\n"
        "print(','.join(model.predict_file(sys.argv[2])['prediction']))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(folder), str(tmp_path / "new.csv")], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip().split(",") == load_model(folder).predict(X).tolist()
    report = json.loads((folder / "privacy.json").read_text())
    assert report["private"]
    assert (folder / "privacy.md").read_text().startswith("# Privacy")


def test_a_saved_regression_predicts_in_the_target_s_unit(tmp_path):
    X, _ = blobs(400)
    y = 500 + 100 * X[:, 0]
    model = PrivateRegressor(8.0, bounds=(-5, 5), target_range=(0, 1000), config=QUICK).fit(X, y)
    assert model.score(X, y) > 0.2
    np.testing.assert_allclose(load_model(model.save(tmp_path)).predict(X), model.predict(X))


# --- scikit-learn's tools --------------------------------------------------------------------------------------------


def test_a_pipeline_after_a_public_transformer_and_clones():
    X, y = blobs(300)
    pipeline = make_pipeline(FunctionTransformer(np.tanh), quick(bounds=(-1, 1), classes=[0, 1]))
    assert pipeline.fit(X, y).score(X, y) > 0.8
    copy = clone(pipeline.set_params(privateclassifier__epsilon=1.5))
    assert copy[-1].epsilon == 1.5
    assert not hasattr(copy[-1], "privacy_")


def test_an_account_admits_fits_and_refuses_what_exceeds_it(tmp_path):
    Account.open(tmp_path / "account", epsilon=2.0, delta=1e-4)
    X, y = blobs(200)
    estimator = quick(1.0, data_norm=5.0, classes=[0, 1], num_epochs=1, account=tmp_path / "account")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the account keeps the total: nothing to warn of
        first = estimator.fit(X, y)
    assert first.privacy_.repeated is None
    holdings = Account.read(tmp_path / "account").holdings()
    assert [h.state for h in holdings.values()] == ["settled"]
    refused = 0
    for _ in range(9):
        try:
            clone(estimator).fit(X, y)
        except BudgetExceededError:
            refused += 1
    assert 0 < refused < 9
    assert len(Account.read(tmp_path / "account").holdings()) == 10 - refused


def test_without_a_budget_it_says_so_loudly():
    X, y = blobs(300)
    with pytest.warns(PrivacyWarning, match="NOT PRIVATE"):
        model = quick(None, data_norm=5.0, classes=[0, 1]).fit(X, y)
    assert model.privacy_.plan.noiseless
    assert math.isinf(model.privacy_.epsilon)
    assert "NOT PRIVATE" in model.privacy_.statement
    assert model.score(X, y) > 0.9


def test_y_is_needed_and_as_long_as_x():
    with pytest.raises(ValueError, match="requires y"):
        quick().fit(blobs(20)[0], None)
    with pytest.raises(DataError, match="20 records and y 10"):
        quick().fit(blobs(20)[0], blobs(10)[1])


def test_a_threshold_decides_between_two_classes():
    X = np.random.default_rng(0).normal(size=(300, 3))
    y = (X[:, 0] > 0).astype(int)
    model = PrivateClassifier(epsilon=8.0, classes=[0, 1], bounds=(-4, 4), num_epochs=2).fit(X, y)
    positive = model.predict_proba(X)[:, 1]
    assert np.array_equal(model.predict(X, threshold=0.3), (positive >= 0.3).astype(int))
    assert np.array_equal(model.predict(X), (positive > 0.5).astype(int))
    with pytest.raises(ConfigError, match="probability"):
        model.predict(X, threshold=1.5)
    three = PrivateClassifier(epsilon=8.0, classes=[0, 1, 2], bounds=(-4, 4), num_epochs=1).fit(X, y)
    with pytest.raises(ConfigError, match="two classes"):
        three.predict(X, threshold=0.5)


def test_a_statement_speaks_of_no_test_set_where_none_is_shown():
    X = np.random.default_rng(0).normal(size=(200, 3))
    model = PrivateClassifier(epsilon=1.0, classes=[0, 1], bounds=(-4, 4), num_epochs=1).fit(X, (X[:, 0] > 0) * 1)
    assert "test set" not in model.privacy_.statement
