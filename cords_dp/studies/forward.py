"""A rival of the likelihood: the forward correction of label noise.

`forward_correction` draws uniformly and puts how labels were moved into the loss, without class shares and without
what was predicted for a record. It looks once, after a fifth of the epochs, and trains by the plain loss until then.

Formal guarantees
-----------------
Unit: one record of D, zero-out. `forward_correction` releases noisy tables of D and V, by label and predicted class,
before training and once more at the look: a record is in at most one cell, so each has sensitivity 1 and is a Gaussian
event. T[y, o], the share of class y that has the label o, is a function of them, and a record's loss one of that record
and of T; its gradient is clipped: the event (q, σ).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from cords_dp import register_strategy
from cords_dp.config import SubsetSettings
from cords_dp.planning import EpochPlan, Sizes, register_mechanism, subset_schedule
from cords_dp.selection import (
    LabelLikelihood,
    Pool,
    Records,
    Releases,
    SelectionContext,
    Selector,
    Weights,
    class_given_label,
)
from cords_dp.studies.labels import COUNTS, VALIDATION_COUNTS, LabelMechanism

_FIRST_PART = 5  # the look comes after one of so many parts of the epochs


@register_mechanism
@dataclass(frozen=True, kw_only=True)
class ForwardCorrection(LabelMechanism):
    """The forward correction of label noise, by a noisy confusion matrix."""

    name: ClassVar[str] = "forward_correction"
    counts_owners: ClassVar[bool] = True
    summary: ClassVar[str] = "little: noisy tables of labels and predictions; a uniform draw, moved labels in the loss"
    use_case: ClassVar[str] = "comparisons: the forward correction of label noise"

    def schedule(self, sizes: Sizes, subset: SubsetSettings, epochs: int) -> tuple[EpochPlan, ...]:
        rate, wait = sizes.batch_size / sizes.n, max(1, epochs // _FIRST_PART)
        return subset_schedule(
            sizes, subset, epochs, rate=rate, selects=lambda epoch, first: epoch in (first, first + wait)
        )

    def build(self, context: SelectionContext) -> Selector:
        return _ForwardSelector(context)


class _ForwardSelector:
    """Keeps T, how labels came of classes; none before the look."""

    def __init__(self, context: SelectionContext):
        self.context = context
        self._labels_of: np.ndarray | None = None
        self._looks = 0

    def select(self, weights: Weights, releases: Releases) -> Pool:
        assert self.context.validation is not None
        on_d = releases.gaussian(COUNTS, self._table(self.context.training, weights))
        on_v = releases.gaussian(VALIDATION_COUNTS, self._table(self.context.validation, weights))
        self._looks += 1
        if self._looks > 1:
            noises = releases.noise_multiplier(COUNTS), releases.noise_multiplier(VALIDATION_COUNTS)
            self._labels_of = label_given_class(on_d, on_v, *noises)
        return self._pool()

    def state(self) -> dict[str, Any]:
        known = torch.zeros(0) if self._labels_of is None else torch.from_numpy(self._labels_of)
        return {"looks": self._looks, "labels": known}

    def restore(self, state: dict[str, Any]) -> Pool:
        self._looks = int(state["looks"])
        self._labels_of = state["labels"].numpy() if len(state["labels"]) else None
        return self._pool()

    def _pool(self) -> Pool:
        everyone = np.arange(len(self.context.training))
        if self._labels_of is None:
            return Pool(everyone)
        likelihood = LabelLikelihood.under(self._labels_of, np.ones_like(self._labels_of))
        return Pool(everyone, likelihood=likelihood, predicted=np.zeros_like(everyone))

    def _table(self, records: Records, weights: Weights) -> np.ndarray:
        """Count records by label and predicted class; one that is not finite is in no cell."""
        classes = self.context.num_classes
        labels, predicted = records.kinds(weights, classes)
        return records.count(np.where(labels >= 0, labels * classes + predicted, -1), classes, classes)


def label_given_class(on_d: np.ndarray, on_v: np.ndarray, sigma_d: float, sigma_v: float) -> np.ndarray:
    """Estimate T[y, o], the share of D's records of class y that have the label o."""
    records = np.maximum(on_d.sum(axis=1), max(sigma_d, 1.0))[:, None]
    joint = (records * class_given_label(on_d, on_v, sigma_d, sigma_v)).T
    return joint / np.maximum(joint.sum(axis=1, keepdims=True), 1e-9)


register_strategy("ForwardCorrectionDP", mechanism="forward_correction")
