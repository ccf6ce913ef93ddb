"""What a run says about its test set: the chosen metrics, by class and by group."""

import numpy as np
import pytest
from sklearn import metrics as sk

from cords_dp.evaluation.measured import fitting, metrics_of

CLASSES = ("no", "yes")


@pytest.fixture
def predicted():
    rng = np.random.default_rng(0)
    labels = (rng.random(500) < 0.2).astype(np.int64)
    positive = np.clip(0.3 * labels + rng.beta(2, 4, 500), 0, 1)
    return labels, np.stack([1 - positive, positive], axis=1)


def test_all_that_fits_unless_something_is_chosen(predicted):
    labels, outputs = predicted
    found = metrics_of(labels, outputs, classes=CLASSES)
    assert set(fitting(regression=False)) | {"base_rate", "scores"} == set(found)
    assert list(found)[:2] == ["accuracy", "base_rate"]
    assert found["base_rate"] == pytest.approx(1 - labels.mean())
    assert found["auc"] == pytest.approx(sk.roc_auc_score(labels, outputs[:, 1]))
    assert found["confusion_matrix"] == sk.confusion_matrix(labels, outputs.argmax(axis=1)).tolist()
    assert found["by_class"][1]["recall"] == pytest.approx(sk.recall_score(labels, outputs.argmax(axis=1)))
    assert set(metrics_of(labels, outputs, classes=CLASSES, wanted=["auc"])) == {"auc", "scores"}


def test_each_group_by_itself(predicted):
    labels, outputs = predicted
    codes = np.arange(len(labels)) % 3
    found = metrics_of(labels, outputs, classes=CLASSES, groups=(codes, ("a", "b", "c", "d")))["by_group"]
    assert [row["group"] for row in found] == ["a", "b", "c"]  # nobody is in d
    own = codes == 1
    assert found[1]["records"] == own.sum()
    assert found[1]["auc"] == pytest.approx(sk.roc_auc_score(labels[own], outputs[own, 1]))
    assert found[1]["base_rate"] == pytest.approx(max(labels[own].mean(), 1 - labels[own].mean()))


def test_a_regression_has_no_classes():
    targets, outputs = np.array([[1.0], [2.0], [4.0]]), np.array([[1.5], [2.0], [3.0]])
    found = metrics_of(targets, outputs)
    assert set(found) == {"rmse", "mae", "r2"}
    assert found["mae"] == pytest.approx(0.5)
    assert found["r2"] == pytest.approx(sk.r2_score(targets, outputs))


def test_many_classes_have_no_confusion_matrix_unless_it_is_asked_for():
    rng = np.random.default_rng(0)
    labels, outputs = rng.integers(0, 30, 200), rng.dirichlet(np.ones(30), 200)
    classes = tuple(map(str, range(30)))
    assert "confusion_matrix" not in metrics_of(labels, outputs, classes=classes)
    assert len(metrics_of(labels, outputs, classes=classes, wanted=["confusion_matrix"])["confusion_matrix"]) == 30


def test_what_is_lost_in_the_noise_is_left_out_of_the_table_of_a_run():
    from cords_dp.runs.result import _metric_lines

    rows = [{"class": "a", "records": 3, "precision": None, "precision from": None, "precision to": None}]
    (head, line) = _metric_lines({"auc": {"value": None, "low": None, "high": None}, "by_class": rows})
    assert "nan" in line
    assert "precision" in head
