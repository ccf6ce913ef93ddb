"""Computes the numbers that a decision about a model needs: pure functions of arrays, nothing is released here.

A classifier's metrics are functions of (labels, probabilities) or of a confusion matrix, whose rows are the true and
whose columns the predicted classes; a regression's are functions of (targets, predictions). They agree with
scikit-learn's (tests/evaluation/test_metrics.py), whose import would take as long as a small run. What cannot be said,
such as the recall of a class that does not occur, is NaN.

AUC and average precision are those of the second of two classes; of several classes the plain mean over one class
against the rest, of the classes that occur.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

CLASSIFIER_METRICS: Mapping[str, str] = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "auc": "AUC",
    "average_precision": "average precision",
    "log_loss": "log loss",
    "calibration_error": "calibration error",
}
REGRESSION_METRICS: Mapping[str, str] = {"rmse": "RMSE", "mae": "MAE", "r2": "R²"}
LOWER_IS_BETTER = frozenset({"log_loss", "calibration_error", "rmse", "mae"})
CALIBRATION_BINS = 15
_LEAST = 1e-15  # a probability of 0 would make the log loss infinite


def names(*, regression: bool) -> tuple[str, ...]:
    """Return the metrics of a classifier or of a regression, in the order in which they are shown."""
    return tuple(REGRESSION_METRICS if regression else CLASSIFIER_METRICS)


def classifier_metrics(
    labels: np.ndarray, probabilities: np.ndarray, wanted: Sequence[str] = tuple(CLASSIFIER_METRICS)
) -> dict[str, float]:
    """Return the wanted metrics of a classifier, by name."""
    confusion = confusion_matrix(labels, probabilities.argmax(axis=1), probabilities.shape[1])
    computed: dict[str, Callable[[], float]] = {
        "accuracy": lambda: accuracy(confusion),
        "balanced_accuracy": lambda: balanced_accuracy(confusion),
        "auc": lambda: auc(labels, probabilities),
        "average_precision": lambda: average_precision(labels, probabilities),
        "log_loss": lambda: log_loss(labels, probabilities),
        "calibration_error": lambda: calibration_error(labels, probabilities),
    }
    return {name: computed[name]() for name in wanted}


def regression_metrics(
    targets: np.ndarray, predictions: np.ndarray, wanted: Sequence[str] = tuple(REGRESSION_METRICS)
) -> dict[str, float]:
    """Return the wanted metrics of a regression, by name, in the unit of the arrays."""
    computed = {"rmse": rmse, "mae": mae, "r2": r2}
    return {name: computed[name](targets, predictions) for name in wanted}


# --- of a confusion matrix ---------------------------------------------------------------------------------------


def confusion_matrix(labels: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """Count records by true class (rows) and predicted class (columns)."""
    cells = np.asarray(labels, dtype=np.int64) * classes + np.asarray(predicted, dtype=np.int64)
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes).astype(np.float64)


def accuracy(confusion: np.ndarray) -> float:
    """Return the share of records that are predicted right."""
    return _ratio(np.trace(confusion), confusion.sum())


def balanced_accuracy(confusion: np.ndarray) -> float:
    """Return the mean recall of the classes that occur."""
    return _mean(recall(confusion))


def recall(confusion: np.ndarray) -> np.ndarray:
    """Return, for each class, which share of its records is predicted as it."""
    return _ratios(np.diag(confusion), confusion.sum(axis=1))


def precision(confusion: np.ndarray) -> np.ndarray:
    """Return, for each class, which share of the records predicted as it belong to it."""
    return _ratios(np.diag(confusion), confusion.sum(axis=0))


def base_rate(confusion: np.ndarray) -> float:
    """Return the accuracy of always predicting the most frequent class."""
    return _ratio(confusion.sum(axis=1).max(), confusion.sum())


# --- of probabilities --------------------------------------------------------------------------------------------


def auc(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Return the chance that a record of a class has a higher probability of it than one of another class."""
    return _one_against_rest(labels, probabilities, _binary_auc)


def average_precision(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Return the precision over all thresholds, weighted by the recall that each adds."""
    return _one_against_rest(labels, probabilities, _binary_average_precision)


def log_loss(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Return the mean of −log of the true class's probability."""
    if not len(labels):
        return float("nan")
    given = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    return float(-np.log(np.clip(given, _LEAST, 1.0)).mean())


def calibration_error(labels: np.ndarray, probabilities: np.ndarray, bins: int = CALIBRATION_BINS) -> float:
    """Return by how much confidence and accuracy differ, on average over records, in bins of equal width.

    The confidence is the probability of the predicted class.
    """
    if not len(labels):
        return float("nan")
    confidence = probabilities.max(axis=1).astype(np.float64)
    right = probabilities.argmax(axis=1) == labels
    cells = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(cells, weights=right - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(labels))


def _one_against_rest(
    labels: np.ndarray, probabilities: np.ndarray, score: Callable[[np.ndarray, np.ndarray], float]
) -> float:
    classes = probabilities.shape[1]
    measured = (1,) if classes == 2 else range(classes)
    return _mean(np.array([score(labels == c, probabilities[:, c].astype(np.float64)) for c in measured]))


def _binary_auc(positive: np.ndarray, scores: np.ndarray) -> float:
    """Return the AUC; equal scores count half."""
    _, group, size = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(size) - (size - 1) / 2)[group]
    ones, zeros = positive.sum(), (~positive).sum()
    return _ratio(ranks[positive].sum() - ones * (ones + 1) / 2, ones * zeros)


def _binary_average_precision(positive: np.ndarray, scores: np.ndarray) -> float:
    if not positive.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)  # of each group of equal scores
    found = np.cumsum(positive[order])[last]
    return float(np.sum(np.diff(found, prepend=0) / found[-1] * found / (last + 1)))


# --- of a regression ---------------------------------------------------------------------------------------------


def rmse(targets: np.ndarray, predictions: np.ndarray) -> float:
    """Return the root of the mean squared error."""
    return float(np.sqrt(np.mean(_squares(targets, predictions)))) if len(targets) else float("nan")


def mae(targets: np.ndarray, predictions: np.ndarray) -> float:
    """Return the mean absolute error."""
    return float(np.mean(np.abs(np.asarray(targets) - np.asarray(predictions)))) if len(targets) else float("nan")


def r2(targets: np.ndarray, predictions: np.ndarray) -> float:
    """Return the share of the targets' variance that is explained; of several targets the mean."""
    if not len(targets):
        return float("nan")
    error = _squares(targets, predictions).mean(axis=0)
    return _mean(np.atleast_1d(1 - _ratios(error, np.var(np.asarray(targets, dtype=np.float64), axis=0))))


def _squares(targets: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    return (np.asarray(targets, dtype=np.float64) - np.asarray(predictions, dtype=np.float64)) ** 2


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else float("nan")


def _ratios(parts: np.ndarray, wholes: np.ndarray) -> np.ndarray:
    return np.divide(parts, wholes, out=np.full(np.shape(parts), np.nan), where=np.asarray(wholes) > 0)


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")
