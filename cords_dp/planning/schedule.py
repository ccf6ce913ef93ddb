"""The public sizes and the schedule of a run: how many steps, at which rate, when a selection precedes them.

Also the release before training, of values that a source fits on D (`Preparation`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from cords_dp.config.settings import SubsetSettings

WARM_START, TRAINING, SELECTION, VALIDATION = "warm start", "training", "selection", "validation"
EVALUATION = "evaluation"


@dataclass(frozen=True)
class EpochPlan:
    """One epoch: how many steps, at which rate, on which pool, and whether a selection precedes it.

    ``branched``: rate and noise are those of the branch that a release has chosen; ``rate`` is the first branch's.
    """

    pool: str  # "all" of D, the strategy's "own" pool, or "skip"
    steps: int
    rate: float
    selects: bool = False
    branched: bool = False

    @property
    def phase(self) -> str:
        return WARM_START if self.pool == "all" else TRAINING


@dataclass(frozen=True)
class Branch:
    """A rate and noise multiplier that the steps after a release may take, fixed before data is read."""

    concentration: float
    rate: float
    sigma: float


@dataclass(frozen=True)
class Sizes:
    """n records in D, n_validation in V, k of D to train on in an epoch, batches of batch_size expected.

    n_test: in the test set T, where it is private; else 0, for nothing about it is planned.
    """

    n: int
    n_validation: int
    k: int
    batch_size: int
    n_test: int = 0


@dataclass(frozen=True)
class Shape:
    """The public sizes and schedule of a run, before any noise is chosen."""

    strategy: str
    sizes: Sizes
    epochs: tuple[EpochPlan, ...]

    @property
    def n(self) -> int:
        return self.sizes.n

    @property
    def n_validation(self) -> int:
        return self.sizes.n_validation

    @property
    def n_test(self) -> int:
        return self.sizes.n_test

    @property
    def k(self) -> int:
        return self.sizes.k

    @property
    def batch_size(self) -> int:
        return self.sizes.batch_size

    @property
    def rounds(self) -> int:
        """How many selections the run has."""
        return sum(epoch.selects for epoch in self.epochs)

    @property
    def steps(self) -> int:
        return sum(epoch.steps for epoch in self.epochs)

    @property
    def branched_steps(self) -> int:
        return sum(epoch.steps for epoch in self.epochs if epoch.branched)

    @property
    def rate(self) -> float:
        """The sampling rate of the strategy's epochs (a warm start on all of D has another)."""
        return next(epoch.rate for epoch in reversed(self.epochs) if epoch.steps)

    @property
    def steps_text(self) -> str:
        """All steps with their sampling rates: "40 steps at sampling rate 0.10772"."""
        rates = dict.fromkeys(epoch.rate for epoch in self.epochs if epoch.steps)
        counts = {rate: sum(e.steps for e in self.epochs if e.rate == rate) for rate in rates}
        return ", ".join(f"{count} steps at sampling rate {rate:.5f}" for rate, count in counts.items())


def whole_schedule(sizes: Sizes, subset: SubsetSettings, epochs: int) -> tuple[EpochPlan, ...]:
    """Plan every epoch on all of D, or the configured share of an epoch's steps."""
    steps = max(1, math.ceil(subset.compute_fraction * sizes.n / sizes.batch_size))
    return (EpochPlan("own", steps, sizes.batch_size / sizes.n),) * epochs


def subset_schedule(
    sizes: Sizes,
    subset: SubsetSettings,
    epochs: int,
    *,
    rate: float | None = None,
    selects: Callable[[int, int], bool] = lambda epoch, first: False,
) -> tuple[EpochPlan, ...]:
    """Plan epochs as CORDS does: a warm start on all data, a pause, then the subset.

    ``rate``: of the subset's steps, by default B/k. ``selects(epoch, first)``: does a selection precede this epoch of
    the subset, whose first epoch is ``first``?
    """
    select_after = int(subset.kappa * epochs)
    warm_epochs = math.ceil(select_after * subset.fraction)
    schedule = []
    for epoch in range(1, epochs + 1):
        if epoch <= warm_epochs:
            schedule.append(EpochPlan("all", math.ceil(sizes.n / sizes.batch_size), sizes.batch_size / sizes.n))
        elif epoch <= select_after:
            schedule.append(EpochPlan("skip", 0, 0.0))
        else:
            own_rate = sizes.batch_size / sizes.k if rate is None else rate
            steps = math.ceil(sizes.k / sizes.batch_size)
            schedule.append(EpochPlan("own", steps, own_rate, selects(epoch, select_after + 1)))
    return tuple(schedule)


def planned_batch_size(pool: int, k: int) -> int:
    """Choose the batch for k gradients per epoch, drawn from a pool of records: large, which suits noisy steps.

    A power of two that is at most 4096 and a fifth of the pool. Where an epoch uses only part of the pool, it has at
    least two steps, of equal size, so that it takes its k gradients and not more.
    """
    batch = int(min(4096, 2 ** math.floor(math.log2(max(1.0, pool / 5)))))
    return batch if k >= pool else math.ceil(k / max(2, math.ceil(k / batch)))


PREPARATION = "preparation"  # the phase of its charge, and its name in the archive of released values


@dataclass(frozen=True)
class Preparation:
    """One Gaussian release of a sum over all records of D, made once, before the first step.

    sensitivity: the L2 norm that no record's part of the sum exceeds; a null record's part is zero.
    description: what the sensitivity means, for the privacy statement.
    share: the part of ε that the release costs by itself. Training's noise is calibrated so that the run as a whole
        keeps the budget.
    """

    name: str
    sensitivity: float
    description: str
    share: float = 0.1  # costs add up like squares: training then needs about 0.6 % more noise
