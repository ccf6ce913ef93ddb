"""Estimates from released tables how D's labels came about: the likelihood of a label.

Let p = softmax(logits) be the model of the validation set's world, P_V(y | x), and m[y, o] = P_D(class y, label o) /
P_V(y). Then a record of D with features x has the label o with probability Σ_y p_y·m[y, o] / Σ_y p_y·Σ_o m[y, o]. The
loss of a record is minus the logarithm of that (`models.losses.LikelihoodLoss`): classes that D has too few of are
allowed for, and so are labels that were moved from one class to another. m = 1 on the diagonal is the plain loss,
m = diag(class ratios) the balanced softmax, m without class ratios the forward correction of label noise. The model
itself speaks for V's world, so predictions use it as it is.

Under a draw with chances c[o, ŷ] (label, class predicted at the last look) the labels in a batch are those of the
thinned D: the denominator becomes Σ_y p_y·S[y, ŷ] with S[y, ŷ] = Σ_o m[y, o]·c[o, ŷ]. The draw and the loss then do
not correct for the same difference twice.

Formal guarantee: m is a function of released noisy tables alone. A record's loss, and so its gradient, is a function of
that record, of released weights and of released tables, and is clipped as any other: no event is added, and no value
of m, however wrong, can raise ε.

Estimating m. A[y, ŷ], how the classes are predicted, comes from V's table, whose labels are taken as right. D's is
Σ_y P(y, o)·A[y, ŷ] plus noise: for each label o a mixture of A's rows, whose weights B[o, y] = P(class y | label o)
an EM algorithm finds, started near the diagonal and with a pseudo-count on it. (Least squares is not stable where a
class is rare.) Where the tables differ by no more than noise, B stays the identity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cords_dp.errors import MechanismError
from cords_dp.selection.tables import table_ratios

_STEPS = 50  # of the EM algorithm
_OUTSET = 0.2  # the share of a label's records that it begins with in other classes
_PRIOR = 1.0  # pseudo-records on the diagonal, in deviations of a row's noise
_VISIBLE = 3.0  # deviations of a cell, by noise and by sampling, that a move between two classes has to exceed
_NOISY = 2.0  # deviations of a cell's noise that it has to exceed to be counted as wrong labels of some kind
_POWER = 1.5  # of ratios of class shares, once predictions are known
_LEAST = 1e-12  # of the largest entry: no label is impossible


@dataclass(frozen=True)
class LabelLikelihood:
    """m[y, o] and S[y, ŷ], by class and label and by class and prediction. Functions of released values."""

    given: np.ndarray
    drawn: np.ndarray

    def __post_init__(self) -> None:
        for name in ("given", "drawn"):
            values = np.array(getattr(self, name), dtype=np.float64)
            if values.ndim != 2 or values.shape[0] != values.shape[1] or values.shape != np.shape(self.given):
                raise MechanismError("a likelihood has a row and a column for each class")
            if not (np.isfinite(values) & (values > 0)).all():
                raise MechanismError("a likelihood's entries must be positive numbers")
            values.flags.writeable = False
            object.__setattr__(self, name, values)

    @property
    def classes(self) -> int:
        return len(self.given)

    @classmethod
    def under(cls, given: np.ndarray, chances: np.ndarray) -> LabelLikelihood:
        """Return the likelihood m under a draw with ``chances[label, predicted class]``."""
        floor = _LEAST * float(given.max())
        given = np.maximum(given, floor)
        return cls(given, np.maximum(given @ chances, floor))


def of_class_shares(ratio: np.ndarray) -> np.ndarray:
    """Return m where only the ratio of V's class shares to D's is known."""
    return np.diag(1 / np.clip(ratio, 1e-3, 1e3))


def of_tables(
    on_d: np.ndarray, on_v: np.ndarray, sigma_d: float, sigma_v: float, classes_of: np.ndarray | None = None
) -> np.ndarray:
    """Estimate m from two noisy tables: by label and predicted class, or by label and whether both are the same.

    Ratios of class shares are raised to a power: clipped and noisy steps learn less of a ratio than it says.
    ``classes_of``: the result of `class_given_label`, where it is known already.
    """
    groups = on_d.shape[1]
    rows_d, rows_v = np.maximum(on_d.sum(axis=1), max(sigma_d, 1.0)), on_v.sum(axis=1)
    if classes_of is None:
        classes_of = class_given_label(on_d, on_v, sigma_d, sigma_v)
    joint = rows_d[:, None] * classes_of  # records by label and class
    in_class = joint.sum(axis=0)
    deviation = groups**0.5
    _, (ratio,) = table_ratios(in_class[None], rows_v[None], sigma_d * deviation, sigma_v * deviation)
    label_given = joint / np.maximum(in_class, 1e-9)
    return label_given.T / np.clip(ratio, 1e-3, 1e3)[:, None] ** _POWER


def class_given_label(on_d: np.ndarray, on_v: np.ndarray, sigma_d: float, sigma_v: float) -> np.ndarray:
    """Estimate B[o, y], the share of class y among D's records with label o: the identity where nothing else shows."""
    least = _VISIBLE * _deviation(on_d, on_v, sigma_d, sigma_v) if on_d.shape[1] == len(on_d) else 0.0
    moved = _moved(on_d, on_v, sigma_d, sigma_v, least)
    return moved + np.diag(1 - moved.sum(axis=1))


def is_spread(on_d: np.ndarray, on_v: np.ndarray, sigma_d: float, sigma_v: float) -> bool:
    """Say whether wrong labels come from all classes rather than from one or two.

    Moves count as soon as they exceed the noise: spread over many cells, each may be too small for `class_given_label`.
    """
    least = _NOISY * sigma_d if on_d.shape[1] == len(on_d) else 0.0
    moved = _moved(on_d, on_v, sigma_d, sigma_v, least)
    return bool(moved.max(axis=1).sum() < 0.5 * moved.sum())


def _moved(on_d: np.ndarray, on_v: np.ndarray, sigma_d: float, sigma_v: float, least: np.ndarray | float) -> np.ndarray:
    """Return B without its diagonal, and without cells of no more than ``least`` records."""
    classes, groups = on_d.shape
    _, tilt = table_ratios(on_d, on_v, sigma_d, sigma_v)
    if np.allclose(tilt, 1.0):
        return np.zeros((classes, classes))
    found = _by_prediction(on_d, on_v, sigma_d, sigma_v) if groups == classes else _right_or_wrong(tilt, on_v)
    rows = np.maximum(on_d.sum(axis=1, keepdims=True), 1.0)
    return np.where(np.eye(classes, dtype=bool) | (found * rows <= least), 0.0, found)


def _deviation(on_d: np.ndarray, on_v: np.ndarray, sigma_d: float, sigma_v: float) -> np.ndarray:
    """Return the deviation of the difference of D's cells from those that V's rows call for, where nothing differs."""
    rows_d, rows_v = (np.maximum(on.sum(axis=1, keepdims=True), 1.0) for on in (on_d, on_v))
    share = np.clip(on_v / rows_v, 0.0, 1.0)
    sampling = share * (1 - share) * (rows_d + rows_d**2 / rows_v)
    return np.sqrt(sigma_d**2 + (sigma_v * rows_d / rows_v) ** 2 + sampling)


def _by_prediction(on_d: np.ndarray, on_v: np.ndarray, sigma_d: float, sigma_v: float) -> np.ndarray:
    classes = len(on_d)
    predicted = np.maximum(on_v, 0.0) + max(sigma_v, 1.0) * np.eye(classes)
    predicted /= predicted.sum(axis=1, keepdims=True)
    counts = np.maximum(on_d, 0.0)
    prior = _PRIOR * sigma_d * classes**0.5 * np.eye(classes)
    found = np.full((classes, classes), _OUTSET / (classes - 1))
    np.fill_diagonal(found, 1 - _OUTSET)
    for _ in range(_STEPS):
        expected = np.maximum(found @ predicted, 1e-12)
        found = found * ((counts / expected) @ predicted.T) + prior
        found /= np.maximum(found.sum(axis=1, keepdims=True), 1e-12)
    return found


def _right_or_wrong(tilt: np.ndarray, on_v: np.ndarray) -> np.ndarray:
    """Estimate B from how often predictions are right, beside V; wrong labels are spread over the other classes."""
    classes = len(tilt)
    right = np.minimum(1.0, 1 / np.maximum(tilt[:, 0], 1e-3))
    shares = np.maximum(on_v.sum(axis=1), 0.0) + 1.0
    others = np.where(np.eye(classes, dtype=bool), 0.0, shares)
    others /= others.sum(axis=1, keepdims=True)
    return np.diag(right) + (1 - right)[:, None] * others
