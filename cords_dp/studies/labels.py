"""The rivals of selection: what a private count of the labels alone can do against shifted class shares.

`class_weights` draws uniformly and weighs the records of each class; `balanced_softmax` draws uniformly and allows for
the class shares in the loss (`selection.likelihood`); `group_rates` gives each class a sampling rate and
a clip norm of its own, at the same privacy for all (the idea of adaptive sampling and clipping per group). Neither
looks at a record again, so neither can tell a wrong label from a right one.

Formal guarantees
-----------------
Unit: one record of D, zero-out. Released once, before training: counts of the labels of D and of V, sensitivity 1
each (a record is in one cell), a Gaussian event on each. The rest is post-processing.

`class_weights`: the weight w_y ∈ [0, 1] is a function of the record's label and of released counts, so a record's part
of a step has norm at most C: the event (q, σ). `balanced_softmax`: so is its loss, whose gradient is clipped.

`group_rates`: the plan has branches (q_c, σ_c), fixed before data is read. A record takes the branch of its class in
all steps: it is drawn with probability at most q_c and weighted by w_c = σ₁/σ_c under the noise σ₁·C, where σ₁ is the
smallest. Its part of all steps is then dominated by the events (q_c, σ_c), and which c that is depends on the record's
own label and on released counts. The maximum over c of the branches' privacy profiles, `BranchMaximum`, covers every
record. Levels, like weights, are secret state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from cords_dp import register_strategy
from cords_dp.config import Key, PrivacySettings, SubsetSettings, number
from cords_dp.planning import (
    EpochPlan,
    Release,
    SelectionNoise,
    Sizes,
    register_mechanism,
    subset_schedule,
)
from cords_dp.selection import (
    CONCENTRATIONS,
    DrawsFromAll,
    LabelLikelihood,
    Pool,
    Records,
    Releases,
    SelectionContext,
    Selector,
    Weights,
    of_class_shares,
    released_of_both,
    rising,
    table_ratios,
)

# (labels, D's shares, ratios of V's shares to them, context) → pool
PoolOfLabels = Callable[[np.ndarray, np.ndarray, np.ndarray, SelectionContext], Pool]
COUNTS, VALIDATION_COUNTS = "label counts", "validation label counts"


@dataclass(frozen=True, kw_only=True)
class LabelMechanism(DrawsFromAll):
    """Counts labels once, before training; every step draws from all of D."""

    def schedule(self, sizes: Sizes, subset: SubsetSettings, epochs: int) -> tuple[EpochPlan, ...]:
        return subset_schedule(
            sizes, subset, epochs, rate=sizes.batch_size / sizes.n, selects=lambda epoch, first: epoch == first
        )

    def releases(self, noise: SelectionNoise, privacy: PrivacySettings, sizes: Sizes) -> tuple[Release, ...]:
        return released_of_both(COUNTS, VALIDATION_COUNTS, noise, "counts of records by label; 1 (one cell)")


@register_mechanism
@dataclass(frozen=True, kw_only=True)
class ClassWeights(LabelMechanism):
    """Class-weighted DP-SGD."""

    counts_owners: ClassVar[bool] = True
    name: ClassVar[str] = "class_weights"
    summary: ClassVar[str] = "little: one noisy count of the labels; a uniform draw, records weighted by class"
    use_case: ClassVar[str] = "comparisons: class-weighted DP-SGD"

    power: float = Key(
        partial(number, low=0, high=1, low_included=True, high_included=True),
        0.5,
        "a class weighs (its share in V over that in D) to this power, over the largest such value",
    ).field()

    def build(self, context: SelectionContext) -> Selector:
        return _LabelSelector(context, self._pool)

    def _pool(self, labels: np.ndarray, shares: np.ndarray, ratio: np.ndarray, context: SelectionContext) -> Pool:
        weights = ratio**self.power / max(float((ratio**self.power).max()), 1e-9)
        return Pool(np.arange(len(labels)), weights=_by_label(weights, labels))


@register_mechanism
@dataclass(frozen=True, kw_only=True)
class BalancedSoftmax(LabelMechanism):
    """The balanced softmax (logit adjustment in the loss) by private class shares."""

    counts_owners: ClassVar[bool] = True
    name: ClassVar[str] = "balanced_softmax"
    summary: ClassVar[str] = "little: one noisy count of the labels; a uniform draw, class shares corrected in the loss"
    use_case: ClassVar[str] = "comparisons: the balanced softmax"

    def build(self, context: SelectionContext) -> Selector:
        return _LabelSelector(context, self._pool)

    def _pool(self, labels: np.ndarray, shares: np.ndarray, ratio: np.ndarray, context: SelectionContext) -> Pool:
        everyone, even = np.arange(len(labels)), np.ones((len(ratio), len(ratio)))
        likelihood = LabelLikelihood.under(of_class_shares(ratio), even)
        return Pool(everyone, likelihood=likelihood, predicted=np.zeros(len(labels), dtype=np.int64))


@register_mechanism
@dataclass(frozen=True, kw_only=True)
class GroupRates(LabelMechanism):
    """A sampling rate and a clip norm for each class, at equal privacy."""

    name: ClassVar[str] = "group_rates"
    summary: ClassVar[str] = (
        "little: one noisy count of the labels; rare classes are drawn more often and clipped shorter, at equal privacy"
    )
    use_case: ClassVar[str] = "comparisons: per-group sampling rates and clip norms"

    def check(self, privacy: PrivacySettings, subset: SubsetSettings) -> None:
        self.refuse_basic_composition(privacy)

    def schedule(self, sizes: Sizes, subset: SubsetSettings, epochs: int) -> tuple[EpochPlan, ...]:
        plain = super().schedule(sizes, subset, epochs)
        return tuple(replace(e, branched=e.pool == "own") for e in plain)

    def concentrations(self, sizes: Sizes) -> tuple[float, ...]:
        return tuple(c for c in CONCENTRATIONS if c * sizes.k <= sizes.n)

    def build(self, context: SelectionContext) -> Selector:
        return _LabelSelector(context, self._pool)

    def _pool(self, labels: np.ndarray, shares: np.ndarray, ratio: np.ndarray, context: SelectionContext) -> Pool:
        options = np.array([b.concentration for b in context.plan.branches] or [1.0])
        wanted = group_concentrations(shares, ratio, float(options[-1]))
        level = np.minimum(np.searchsorted(options, wanted - 1e-12), len(options) - 1)
        return Pool(
            np.arange(len(labels)),
            chances=_by_label(np.minimum(1.0, wanted / options[level]), labels),
            levels=level[np.maximum(labels, 0)] if context.plan.branches else None,
        )


def group_concentrations(shares: np.ndarray, ratio: np.ndarray, highest: float) -> np.ndarray:
    """Return how many times as often as uniformly each class is drawn: in proportion to the ratio, up to the highest,
    and such that a batch has its expected size."""
    reachable = min(1.0, highest * float(shares[ratio > 0].sum()))
    scale = rising(lambda x: float((shares * np.minimum(highest, x * ratio)).sum()), (1 - 1e-9) * reachable)
    return np.minimum(highest, scale * ratio)


def _by_label(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return each record's value; 0 for a label of −1."""
    return np.where(labels >= 0, values[np.maximum(labels, 0)], 0.0)


class _LabelSelector:
    """Counts labels, and leaves it to the mechanism what to do about them."""

    def __init__(self, context: SelectionContext, pool: PoolOfLabels):
        self.context, self._make_pool = context, pool
        self._released: tuple[np.ndarray, np.ndarray] | None = None
        self._weights: Weights = {}

    def select(self, weights: Weights, releases: Releases) -> Pool:
        assert self.context.validation is not None
        self._weights = weights
        on_d = releases.gaussian(COUNTS, self._counts(self.context.training))
        on_v = releases.gaussian(VALIDATION_COUNTS, self._counts(self.context.validation))
        sigma_d, sigma_v = releases.noise_multiplier(COUNTS), releases.noise_multiplier(VALIDATION_COUNTS)
        (shares,), (ratio,) = table_ratios(on_d[None], on_v[None], sigma_d, sigma_v)
        return self._pool(shares, ratio)

    def state(self) -> dict[str, Any]:
        assert self._released is not None
        shares, ratio = map(torch.from_numpy, self._released)
        return {"weights": dict(self._weights), "shares": shares, "ratio": ratio}

    def restore(self, state: dict[str, Any]) -> Pool:
        self._weights = state["weights"]
        return self._pool(state["shares"].numpy(), state["ratio"].numpy())

    def _pool(self, shares: np.ndarray, ratio: np.ndarray) -> Pool:
        self._released = shares, ratio
        return self._make_pool(self._labels(self.context.training), shares, ratio, self.context)

    def _labels(self, records: Records) -> np.ndarray:
        """Return labels, −1 for a record whose logits at the released weights are not finite."""
        return records.kinds(self._weights, self.context.num_classes)[0]

    def _counts(self, records: Records) -> np.ndarray:
        return records.count(self._labels(records), self.context.num_classes)


register_strategy("ClassWeightsDP", mechanism="class_weights")
register_strategy("BalancedSoftmaxDP", mechanism="balanced_softmax")
register_strategy("GroupRatesDP", mechanism="group_rates")
