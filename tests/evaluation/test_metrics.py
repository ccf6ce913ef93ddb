"""Every metric against scikit-learn's, on random predictions with ties and rare classes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from cords_dp.evaluation import metrics


def predictions(classes: int, *, seed: int = 0, n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Labels, the first class rare, and informative probabilities, rounded so that many are equal."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, size=n, p=np.r_[0.05, np.full(classes - 1, 0.95 / (classes - 1))])
    logits = rng.normal(size=(n, classes)) + 1.3 * (labels[:, None] == np.arange(classes))
    raw = np.round(np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True), 2) + 1e-3
    return labels, raw / raw.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_classifiers_against_scikit_learn(classes):
    labels, p = predictions(classes)
    found = metrics.classifier_metrics(labels, p)
    predicted = p.argmax(axis=1)
    if classes == 2:
        areas = sklearn_metrics.roc_auc_score(labels, p[:, 1]), sklearn_metrics.average_precision_score(labels, p[:, 1])
    else:
        one_hot = np.eye(classes)[labels]
        areas = (
            sklearn_metrics.roc_auc_score(labels, p, multi_class="ovr", average="macro"),
            sklearn_metrics.average_precision_score(one_hot, p, average="macro"),
        )
    wanted = {
        "accuracy": sklearn_metrics.accuracy_score(labels, predicted),
        "balanced_accuracy": sklearn_metrics.balanced_accuracy_score(labels, predicted),
        "auc": areas[0],
        "average_precision": areas[1],
        "log_loss": sklearn_metrics.log_loss(labels, p),
    }
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("classes", [2, 5])
def test_confusion_precision_and_recall_against_scikit_learn(classes):
    labels, p = predictions(classes, seed=1)
    predicted = p.argmax(axis=1)
    confusion = metrics.confusion_matrix(labels, predicted, classes)
    assert np.array_equal(confusion, sklearn_metrics.confusion_matrix(labels, predicted))
    ours = metrics.precision(confusion), metrics.recall(confusion)
    theirs = sklearn_metrics.precision_recall_fscore_support(labels, predicted, zero_division=np.nan)[:2]
    np.testing.assert_allclose(ours, theirs)
    assert metrics.base_rate(confusion) == np.bincount(labels).max() / len(labels)


def test_calibration_error_by_hand():
    """Three records at confidence 0.9, two of them right; one at 0.6 that is wrong."""
    p = np.array([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.4, 0.6]])
    labels = np.array([0, 1, 1, 0])
    assert metrics.calibration_error(labels, p) == pytest.approx((3 * (0.9 - 2 / 3) + 0.6) / 4)


@pytest.mark.parametrize("targets", [1, 2])
def test_regressions_against_scikit_learn(targets):
    rng = np.random.default_rng(3)
    y = rng.normal(size=(50, targets)).squeeze()
    predicted = y + rng.normal(size=y.shape)
    found = metrics.regression_metrics(y, predicted)
    assert found == pytest.approx(
        {
            "rmse": math.sqrt(sklearn_metrics.mean_squared_error(y, predicted)),
            "mae": sklearn_metrics.mean_absolute_error(y, predicted),
            "r2": sklearn_metrics.r2_score(y, predicted),
        }
    )


def test_what_cannot_be_said_is_nan():
    """One class alone has no AUC, and what is not there no recall; a probability of 0 has a finite log loss."""
    p = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    labels = np.array([0, 0])
    found = metrics.classifier_metrics(labels, p)
    assert math.isnan(found["auc"])
    assert math.isfinite(found["log_loss"])
    assert np.isnan(metrics.recall(metrics.confusion_matrix(labels, p.argmax(axis=1), 3))).tolist() == [
        False,
        True,
        True,
    ]
    nothing = metrics.classifier_metrics(np.array([], dtype=int), np.zeros((0, 2)))
    assert all(math.isnan(value) for value in nothing.values())
    assert all(math.isnan(value) for value in metrics.regression_metrics(np.array([]), np.array([])).values())
    assert math.isnan(metrics.r2(np.ones(3), np.zeros(3)))
