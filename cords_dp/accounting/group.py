"""Bounds ε for several records of one person, where the unit of a run is one record.

Formal guarantee. Let k records be replaced by null records at once. Each release below is dominated, in both directions
and whatever was released before, by a pair of its own, and pairs compose as in `composition` (Zhu, Dong & Wang 2022):

* **Gaussian noise on a sum over a secret batch** (q, σ). Given the coins, the sum moves by at most the number J of the
  person's records in the batch, in units of the clip norm. Each falls into it by its own coin of chance at most q, so J
  is at most Binomial(k, q) in law. A mixture of Gaussians whose shifts have norms J is dominated by the scalar one with
  shifts J, and by that of any J that is larger in law (Choquette-Choo, Ganesh, Steinke & Thakurta 2024, Lemma 4.5 and
  Cor. 4.7): the pair is (Σ_j Bin(j; k, q)·N(j, σ²), N(0, σ²)) and its reverse. The rest of the batch is noise.
* **A Gaussian release** is the case q = 1. On a path that nulls one record after the other each step moves the value by
  at most 1, so k of them move it by at most k, in whichever norm. (√k where every record has a coordinate of its
  own; the event does not say so, and k is an upper bound.)
* **A Gumbel freeze**: k coordinates of the noisy scores are shifted, independently, by at most s each: k freezes.
* **Picks of the exponential mechanism**: along the path log-likelihood ratios and their ranges add up, so a pick has
  range k·ε₀ and is k·ε₀-DP: picks with k·ε₀. They have no dominating pair.
* **A choice between branches**: the proof of `BranchMaximum` holds for any pair of datasets, with the branches' pairs
  for groups.
* **Any other event**: Rényi divergences of a group of 2^c are at most 3^c times those of one record at 2^c times the
  order, from order 2 on (Mironov 2017, Prop. 2).

Events without a pair are bounded by Rényi divergences at half of δ, the others by their pairs at the other half. The
sum is a bound, however the two kinds alternate (concurrent composition: Lyu 2022, Vadhan & Zhang 2023).

A person may have records in D, in V and in T. D's releases depend on those in D, V's on those in V, T's on those in T,
besides what was released before: however the k records lie, the three lists compose with as many records as each set
has of them, and the bound is the largest over all ways. Steps that V takes part in are one release of both sets: with i
records in D and j in V, which is drawn no more often than D, J is at most Binomial(i + j, q) in law, so they are D's
steps for i + j records; with none in D, V's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import product
from typing import ClassVar

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy import special

from cords_dp.accounting.branches import BranchMaximum, worst_of
from cords_dp.accounting.composition import epsilon_bound, rough_step
from cords_dp.accounting.events import Event, merge
from cords_dp.accounting.picks import ExponentialPicks, GumbelFreeze
from cords_dp.accounting.pld import connected_dots, epsilon_of, mean_loss, self_composed
from cords_dp.accounting.poisson_gaussian import PoissonGaussian
from cords_dp.errors import AccountingError

GROUP_SIZES = (2, 4, 8)
MOST_USEFUL = 20.0  # e^20 is half a billion: a larger ε says nothing to anyone
_REACH = 2 * MOST_USEFUL  # a single loss beyond it counts as infinite, and makes the bound useless if it is likely
_TAIL = 1e-22  # of the mass of one release: losses that are less likely count as infinite, too
_CUTS = 4_000  # points at which the loss is tabulated before it is inverted


def group_epsilons(
    on_d: Sequence[Event],
    on_v: Sequence[Event],
    delta: float,
    *,
    on_test: Sequence[Event] = (),
    on_both: tuple[Sequence[Event], Sequence[Event]] = ((), ()),
    inclusion: float = 1.0,
    sizes: Sequence[int] = GROUP_SIZES,
) -> dict[int, float]:
    """Bound ε at ``delta`` for zero-out of each number of records of one person; infinite where no bound is useful.

    ``on_d``, ``on_v``, ``on_test``: what was released of D, of V and of a private test set. ``on_both``: steps that
    read D and V, as events on D and as the same on V, whose rates are no higher. ``inclusion``: the chance γ of a
    record of D to be in a subset drawn once by secret coins and never released, on which ``on_d`` were carried out. At
    least one of k records is in it with probability η = 1 − (1 − γ)^k. Given that, the output is a mixture of those of
    groups of at most k, so the proof of amplification (`planning.plan.amplified`) holds with η for γ and the bound for
    k records for that of one. What was released of T adds to that by basic composition, each at half of δ.
    """
    lists = merge(on_d), merge(on_v), merge(on_test), merge(on_both[0]), merge(on_both[1])
    found: dict[int, float] = {}
    useful = True
    for size in sorted(sizes):
        found[size] = _worst_split(lists, size, delta, inclusion) if useful else math.inf  # a larger group has more
        useful = math.isfinite(found[size])
    return found


@lru_cache(maxsize=64)  # a statement is written more than once
def _worst_split(lists: tuple[tuple[Event, ...], ...], size: int, delta: float, inclusion: float) -> float:
    worst = 0.0
    on_d, on_v, on_test, steps_d, steps_v = map(bool, lists)
    for split in _splits([on_d or steps_d, on_v or steps_v, on_test], size):
        try:
            worst = max(worst, _epsilon(lists, split, delta, inclusion))
        except (AccountingError, ValueError, ArithmeticError, MemoryError):
            return math.inf
        if worst > MOST_USEFUL:
            return math.inf
    return worst


def _splits(charged: Sequence[bool], size: int) -> list[tuple[int, ...]]:
    """Return all ways in which the records can lie in the sets that were charged; in the first if none was."""
    several = charged if any(charged) else [True, *charged[1:]]
    ways = product(*(range(size, -1, -1) if one else (0,) for one in several))
    return [way for way in ways if sum(way) == size]


def _epsilon(lists: Sequence[Sequence[Event]], split: Sequence[int], delta: float, inclusion: float) -> float:
    parts = [[(event, size) for event in events] if size else [] for events, size in zip(lists[:3], split, strict=True)]
    steps = lists[3] if split[0] else lists[4]
    parts[1] += [(event, split[0] + split[1]) for event in steps] if split[0] + split[1] else []
    in_d, elsewhere = parts[0], [part for others in parts[1:] for part in others]
    if inclusion == 1:
        together = in_d + elsewhere
        return _composed_epsilon(together, delta) if together else 0.0
    if lists[1] or lists[3]:
        raise AccountingError("a secret subset is drawn where V is not read; its amplification knows no V")
    share = delta / 2 if in_d and elsewhere else delta
    likely = -math.expm1(split[0] * math.log1p(-inclusion))
    inside = _composed_epsilon(in_d, share / likely) if in_d else 0.0
    return math.log1p(likely * math.expm1(inside)) + (_composed_epsilon(elsewhere, share) if elsewhere else 0.0)


def _composed_epsilon(parts: Sequence[tuple[Event, int]], delta: float) -> float:
    paired = [part for part in parts if _has_pair(part[0])]
    others = [_by_divergences(*part) for part in parts if not _has_pair(part[0])]
    share = delta / 2 if paired and others else delta
    total = epsilon_bound(others, share, "rdp").epsilon if others else 0.0
    if paired:
        step = rough_step(event for event, _ in paired)
        total += epsilon_of(reduce(_compose, (_all_uses(event, size, step) for event, size in paired)), share)
    return total


# --- events with a pair ----------------------------------------------------------------------------


def _has_pair(event: Event) -> bool:
    if isinstance(event, BranchMaximum):
        return all(_has_pair(inner) for branch in event.branches for inner in branch)
    return isinstance(event, (PoissonGaussian, GumbelFreeze))


@lru_cache(maxsize=128)  # D's part is the same in every split with as many records in V
def _all_uses(event: Event, size: int, step: float) -> PrivacyLossDistribution:
    return _power(_one_use(event, size, step), event.count)


def _one_use(event: Event, size: int, step: float) -> PrivacyLossDistribution:
    if isinstance(event, PoissonGaussian):
        return mixture_pld(event.sigma, event.rate, size, step)
    if isinstance(event, GumbelFreeze):
        return self_composed(event.pld_on(step), size)
    assert isinstance(event, BranchMaximum)
    branches = (branch for branch in event.branches if branch)
    return worst_of([reduce(_compose, (_all_uses(e, size, step) for e in branch)) for branch in branches])


def _power(pld: PrivacyLossDistribution, count: int) -> PrivacyLossDistribution:
    """Compose ``count`` uses, unless their losses are so large that no bound would be useful."""
    if count * mean_loss(pld) > _REACH:
        raise AccountingError("the losses of a group are too large for a useful bound")
    return self_composed(pld, count)


def _compose(left: PrivacyLossDistribution, right: PrivacyLossDistribution) -> PrivacyLossDistribution:
    return left.compose(right)


def mixture_pld(sigma: float, rate: float, size: int, step: float) -> PrivacyLossDistribution:
    """Return the pessimistic losses of (Σ_j Bin(j; size, rate)·N(j, σ²), N(0, σ²)) and of its reverse, on a grid.

    dp-accounting's `from_mixture_gaussian_mechanism` has the same pairs; it inverts the loss one point at a time, which
    takes a hundred times as long.
    """
    mixture = _Mixture(sigma, rate, size)
    return PrivacyLossDistribution(mixture.present(step), mixture.absent(step))


class _Mixture:
    """P = Σ_j w_j·N(j, σ²) against Q = N(0, σ²), where j, the number of a person's records in the batch, is binomial.

    The loss ln(P/Q) = ln(w_0 + e^g(x)) rises with x. g, the part of j ≥ 1, is convex with slopes between 1/σ² and k/σ².
    """

    def __init__(self, sigma: float, rate: float, size: int):
        self.sigma = sigma
        shifts = np.arange(1, size + 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_odds = shifts * math.log(rate) + special.xlog1py(size - shifts, -rate)
        log_weights = special.gammaln(size + 1) - special.gammaln(shifts + 1) - special.gammaln(size - shifts + 1)
        log_weights = log_weights + log_odds
        self.shifts = shifts[np.isfinite(log_weights)].astype(float)
        self.log_weights = log_weights[np.isfinite(log_weights)]
        self.log_absent = size * math.log1p(-rate) if rate < 1 else -math.inf  # ln w_0
        self.absent_weight = math.exp(self.log_absent)

    def present(self, step: float) -> DensePLDPmf:
        """Discretise ln(P/Q) under P."""
        reach = self.sigma * -special.ndtri(_TAIL)
        edges = np.linspace(self.shifts[-1] + reach, -reach, _CUTS)
        top = edges[max(0, np.argmax(self._upper_tail(edges) > _TAIL) - 1)]
        lowest = self.log_absent if math.isfinite(self.log_absent) else self.loss(self.shifts[:1] - reach)[0]
        grid, lower = _grid(lowest, self.loss(np.array([top]))[0], step)
        cuts = self.inverse(grid)
        return _dots(self._upper_tail(cuts) - np.exp(grid + special.log_ndtr(-cuts / self.sigma)), grid, lower, step)

    def absent(self, step: float) -> DensePLDPmf:
        """Discretise ln(Q/P) under Q."""
        reach = self.sigma * -special.ndtri(_TAIL)
        lowest, highest = -self.loss(np.array([reach, -reach]))
        grid, lower = _grid(lowest, highest, step)
        cuts = self.inverse(-grid)
        below = np.full(len(grid), self.log_absent) + special.log_ndtr(cuts / self.sigma)
        for shift, log_weight in zip(self.shifts, self.log_weights, strict=True):
            below = np.logaddexp(below, log_weight + special.log_ndtr((cuts - shift) / self.sigma))
        return _dots(special.ndtr(cuts / self.sigma) - np.exp(grid + below), grid, lower, step)

    def loss(self, x: np.ndarray) -> np.ndarray:
        return np.logaddexp(self.log_absent, self._drawn(x)[0])

    def inverse(self, losses: np.ndarray) -> np.ndarray:
        """Find the x at which the loss is each of ``losses``; −∞ where it is larger everywhere.

        A profile is stationary in its cut, so an error of x counts by its square: after Newton's steps, not at all.
        """
        with np.errstate(divide="ignore"):
            targets = losses + np.log(-np.expm1(np.minimum(self.log_absent - losses, 0.0)))  # ln(e^loss − w_0)
        reached = np.isfinite(targets)
        cuts = np.full(len(losses), -math.inf)
        if reached.any():
            cuts[reached] = self._invert(targets[reached])
        return cuts

    def _invert(self, targets: np.ndarray) -> np.ndarray:
        # g exceeds each of its terms, and starts to do so at the least of these points: Newton descends to the root.
        lines = self.sigma**2 * (targets[:, None] - self.log_weights) / self.shifts + self.shifts / 2
        x = lines.min(axis=1)
        for _ in range(50):
            values, slopes = self._drawn(x)
            moves = (values - targets) / slopes
            x = x - moves
            if np.abs(moves).max() <= 1e-9 * self.sigma:
                return x
        raise AccountingError("the loss of a group could not be inverted")

    def _drawn(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return g and its slope."""
        terms = self.log_weights + (x[:, None] - self.shifts / 2) * self.shifts / self.sigma**2
        top = terms.max(axis=1)
        weights = np.exp(terms - top[:, None])
        total = weights.sum(axis=1)
        return top + np.log(total), weights @ self.shifts / total / self.sigma**2

    def _upper_tail(self, x: np.ndarray) -> np.ndarray:
        """Return P's mass above each x."""
        drawn = special.ndtr((self.shifts - x[:, None]) / self.sigma) @ np.exp(self.log_weights)
        return drawn + self.absent_weight * special.ndtr(-x / self.sigma)


def _grid(lowest: float, highest: float, step: float) -> tuple[np.ndarray, int]:
    lower = math.floor(max(lowest, -_REACH) / step)
    upper = max(math.ceil(min(highest, _REACH) / step), lower + 1)
    return np.arange(lower, upper + 1) * step, lower


def _dots(deltas: np.ndarray, grid: np.ndarray, lower: int, step: float) -> DensePLDPmf:
    """Connect the dots of a profile. Rounding is undone upwards: δ never rises, and is at least 1 − e^ε."""
    deltas = np.clip(deltas, np.maximum(0.0, -np.expm1(grid)), 1.0)
    return connected_dots(np.maximum.accumulate(deltas[::-1])[::-1], lower, step)


# --- events with divergences alone -----------------------------------------------------------------


def _by_divergences(event: Event, size: int) -> Event:
    if isinstance(event, ExponentialPicks):
        return ExponentialPicks(size * event.epsilon0, event.count)
    if isinstance(event, BranchMaximum):
        inner = (tuple(_by_divergences(e, size) for e in branch) for branch in event.branches)
        return BranchMaximum(tuple(inner), event.count)
    return _OfGroup(event.with_count(1), size, event.count)


@dataclass(frozen=True)
class _OfGroup(Event):
    """``count`` uses of an event by its Rényi divergences, for ``size`` records, rounded up to a power of two."""

    kind: ClassVar[str] = "of_group"
    event: Event
    size: int
    count: int = 1

    def rdp(self, order: float) -> float:
        doublings = (self.size - 1).bit_length()
        if doublings and order < 2:
            return math.inf
        return 3**doublings * self.event.rdp(order * 2**doublings)
