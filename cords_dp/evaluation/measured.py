"""Puts together what a run says about its test set: ``result.json``, section ``metrics``.

`metrics_of` measures exactly, for a test set that is declared public. `metrics_released` returns a dict of the same
shape from what was released of a private one, each number with its interval: ``{"value", "low", "high"}``.

    {"accuracy": 0.92, "base_rate": 0.928, "auc": 0.71, …,     numbers
     "by_class": [{"class": "no", "records": …}, …],           precision and recall of each class
     "confusion_matrix": [[…], …],                             rows: true class, columns: predicted class
     "by_group": [{"group": "F", "records": …, …}, …],         the numbers again, for each value of a column
     "scores": {"positive": …, "edges": […], "counts": […]},   for a threshold (`evaluation.threshold`)
     "released": {"sigma": …, "vector": […], …}}               of a private test set: what all of this follows from
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cords_dp.evaluation import metrics
from cords_dp.evaluation.released import EDGES, ReleasedTest
from cords_dp.evaluation.threshold import ScoreHistogram

BY_CLASS, CONFUSION = "by_class", "confusion_matrix"
_MOST_CLASSES = 20  # of which a confusion matrix is shown unless it is asked for


def chosen(wanted: Sequence[str] | None, *, classes: int) -> tuple[str, ...]:
    """Return the metrics to measure: those that are wanted, or all that fit; ``classes`` is 0 for a regression."""
    if wanted is not None:
        return tuple(wanted)
    tables = () if not classes else (BY_CLASS, CONFUSION) if classes <= _MOST_CLASSES else (BY_CLASS,)
    return (*metrics.names(regression=not classes), *tables)


def fitting(*, regression: bool) -> tuple[str, ...]:
    """Return the names that a config may choose from."""
    return metrics.names(regression=True) if regression else (*metrics.names(regression=False), BY_CLASS, CONFUSION)


def metrics_of(
    targets: np.ndarray,
    outputs: np.ndarray,
    *,
    classes: Sequence[str] = (),
    wanted: Sequence[str] | None = None,
    groups: tuple[np.ndarray, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Measure a model on records that are public: exact values.

    outputs: probabilities of ``classes``; of a regression, which has no classes, predictions in the unit of the
    targets. groups: each record's place in a list of names.
    """
    names = chosen(wanted, classes=len(classes))
    found: dict[str, Any] = dict(_numbers(targets, outputs, names, classes))
    if groups is not None:
        found["by_group"] = list(_by_group(targets, outputs, names, classes, *groups))
    if not classes:
        return found
    confusion = metrics.confusion_matrix(targets, outputs.argmax(axis=1), len(classes))
    if BY_CLASS in names:
        found[BY_CLASS] = by_class(confusion, classes)
    if CONFUSION in names:
        found[CONFUSION] = confusion.astype(int).tolist()
    if len(classes) == 2:
        found["scores"] = ScoreHistogram.of(targets, outputs[:, 1], positive=classes[1]).to_dict()
    return found


def metrics_released(
    released: ReleasedTest, *, classes: Sequence[str] = (), wanted: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the metrics of a private test set: post-processing of its one noisy release."""
    names, measured = chosen(wanted, classes=len(classes)), released.metrics()
    single = [*names, *(["base_rate"] if "accuracy" in names else [])]
    found = {name: row for name, row in measured.items() if name in single}
    if "by_group" in measured:
        found["by_group"] = measured["by_group"]
    if BY_CLASS in names:
        found[BY_CLASS] = [{**row, "class": classes[row["class"]]} for row in measured["by_class"]]
    if CONFUSION in names:
        found[CONFUSION] = measured[CONFUSION]
    if len(classes) == 2:
        found["scores"] = released_histogram(released, positive=classes[1]).to_dict()
    return {**found, "released": released.to_json()}


def released_histogram(released: ReleasedTest, *, positive: str) -> ScoreHistogram:
    """Return the noisy histogram of the positive class's probability, of a classifier of two classes."""
    edges = np.concatenate([[0.0], EDGES, [1.0]])
    return ScoreHistogram(positive, edges, released.blocks["scores"][0], released.deviation("scores"))


def by_class(confusion: np.ndarray, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Return precision and recall of each class."""
    rows = zip(classes, confusion.sum(axis=1), metrics.precision(confusion), metrics.recall(confusion), strict=True)
    return [{"class": c, "records": int(n), "precision": float(p), "recall": float(r)} for c, n, p, r in rows]


def _numbers(
    targets: np.ndarray, outputs: np.ndarray, names: Sequence[str], classes: Sequence[str]
) -> dict[str, float]:
    if not classes:
        return metrics.regression_metrics(targets, outputs, names)
    single = [name for name in names if name in metrics.CLASSIFIER_METRICS]
    found = metrics.classifier_metrics(targets, outputs, single)
    if "accuracy" in found:  # beside it, for 92 % says little where always saying "no" has 92.8 %
        confusion = metrics.confusion_matrix(targets, targets, len(classes))
        found = {"accuracy": found.pop("accuracy"), "base_rate": metrics.base_rate(confusion), **found}
    return found


def _by_group(
    targets: np.ndarray,
    outputs: np.ndarray,
    names: Sequence[str],
    classes: Sequence[str],
    codes: np.ndarray,
    values: Sequence[str],
) -> Iterator[Mapping[str, Any]]:
    for code, value in enumerate(values):
        own = codes == code
        if own.any():
            yield {"group": value, "records": int(own.sum()), **_numbers(targets[own], outputs[own], names, classes)}
