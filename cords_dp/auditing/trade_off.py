"""Bounds ε from below by the error rates of one test, against the trade-off that an event is charged for.

A claim about Gaussian noise is more than one (ε, δ): it bounds the power of every test at every level. A test that is
better than the charged event allows refutes the claim (Nasr et al., "Tight auditing of differentially private machine
learning", USENIX Security 2023). Such a bound is far tighter than ln(TPR/FPR): it is told as the ε, at the δ of the
run, of the same event with as little noise as the test shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_gaussian_mechanism
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr
from scipy.stats import beta, norm

from cords_dp.accounting import Event, PoissonGaussian, epsilon_bound
from cords_dp.auditing.findings import Finding

_LEAST_NOISE = 1 / 16  # of σ: a test without error would otherwise show none at all


@dataclass(frozen=True)
class Counts:
    """How often a test said "in": of ``inside`` samples with the record, of ``outside`` without it."""

    hits: int
    inside: int
    false: int
    outside: int

    @classmethod
    def above(cls, threshold: float, with_record: np.ndarray, without: np.ndarray) -> Counts:
        """Count for the test "the statistic exceeds a threshold", which was fixed before the samples were drawn."""
        hits, false = int((with_record > threshold).sum()), int((without > threshold).sum())
        return cls(hits, len(with_record), false, len(without))

    def least_power(self, alpha: float) -> float:
        """Bound the power from below; it is lower with probability at most ``alpha``."""
        return least_share(self.hits, self.inside, alpha)

    def largest_level(self, alpha: float) -> float:
        """Bound the share of false alarms from above; it is higher with probability at most ``alpha``."""
        if self.false == self.outside:
            return 1.0
        return float(beta.ppf(1 - alpha, self.false + 1, self.outside - self.false))

    def text(self) -> str:
        return f"found {self.hits} of {self.inside}, false alarms {self.false} of {self.outside}"


def least_share(found: int, total: int, alpha: float) -> float:
    """Bound a chance from below (Clopper–Pearson); it is lower with probability at most ``alpha``."""
    return float(beta.ppf(alpha, found, total - found + 1)) if found else 0.0


def rates_finding(
    target: str,
    kind: str,
    events: Sequence[PoissonGaussian],
    counts: Counts,
    delta: float,
    *,
    seen: str = "",
    copies: int = 1,
) -> Finding:
    """Hold the error rates of a test against the events that are charged (`epsilon_of_events`)."""
    return Finding(
        target,
        kind,
        epsilon_at(events, delta),
        delta,
        seen or counts.text(),
        lambda alpha: epsilon_of_events(events, counts, delta=delta, alpha=alpha, copies=copies),
    )


def frequency_finding(
    target: str, kind: str, event: PoissonGaussian, delta: float, *, drawn: int, total: int
) -> Finding:
    """Hold how often records were drawn against the rate of the event that is charged."""

    def bound(alpha: float) -> float:
        least = min(1.0, least_share(drawn, total, alpha))
        return epsilon_at([replace(event, rate=least)], delta) if least else 0.0

    seen = f"drawn {drawn} times of {total}, charged rate {event.rate:.5f}"
    return Finding(target, kind, epsilon_at([event], delta), delta, seen, bound)


def epsilon_of_events(
    events: Sequence[PoissonGaussian], counts: Counts, *, delta: float, alpha: float, copies: int = 1
) -> float:
    """Return ε at ``delta`` of the events with the most noise that the test does not refute.

    ``copies``: the test told a group of so many equal records from none, under one event at rate 1. Noise for one is
    noise for a group at a multiple of the distance, where the same number of samples shows far more.

    Formal guarantee: if the test's samples come from the charged events, the result exceeds their ε with probability
    at most ``alpha``.
    """
    power, level = counts.least_power(alpha / 2), counts.largest_level(alpha / 2)
    if power <= level:
        return 0.0
    if len(events) == 1 and events[0].count == 1:
        scale = copies * _closed_form(events[0], power, level)
    else:
        scale = _scale(lambda s: _allowed(scaled(events, s), power, level))
    if scale == math.inf:
        return 0.0
    return epsilon_at(scaled(events, max(scale, _LEAST_NOISE)), delta)


def scaled(events: Sequence[PoissonGaussian], factor: float) -> list[PoissonGaussian]:
    return [replace(event, sigma=event.sigma * factor) for event in events]


def _closed_form(event: PoissonGaussian, power: float, level: float) -> float:
    """Invert the best test of N(0,σ²) against (1−q)N(0,σ²) + qN(1,σ²), by Neyman–Pearson a threshold."""
    share = (power - (1 - event.rate) * level) / event.rate  # the power given that the record was drawn
    if share >= 1:
        return 0.0
    distance = norm.isf(level) - norm.isf(share)  # 1/σ of the event that just allows it
    return math.inf if distance <= 0 else 1 / (event.sigma * distance)


def _allowed(events: Sequence[PoissonGaussian], power: float, level: float) -> bool:
    """Say whether the events' composition allows such a test: its PLD bounds TPR − e^ε·FPR by δ(ε), for every ε."""
    epsilons = np.linspace(-4.0, 8.0, 97)
    deltas = np.asarray(composed(events).get_delta_for_epsilon(epsilons))
    forward = power - np.exp(epsilons) * level
    backward = (1 - level) - np.exp(epsilons) * (1 - power)
    return bool((np.maximum(forward, backward) <= deltas + 1e-12).all())


def _scale(allowed: Callable[[float], bool]) -> float:
    """Find the largest factor of the noise at which the test is still allowed; less noise allows more."""
    low, high = _LEAST_NOISE, 64.0
    if allowed(high):
        return math.inf
    for _ in range(14):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return high  # refuted: rounding must not raise the bound


# --- ε of events, quickly --------------------------------------------------------------------------------------------

LARGEST_EPSILON = 1000.0
_GRID = 2e-3


def epsilon_at(events: Sequence[Event], delta: float) -> float:
    """Return ε at ``delta``: exact for one Gaussian event, else an upper bound that is the same function of the noise
    for claims and for findings, so that less noise than charged can only mean more."""
    gaussian = [event for event in events if isinstance(event, PoissonGaussian)]
    if len(gaussian) < len(events):
        return epsilon_bound(events, delta).epsilon
    if len(gaussian) == 1 and gaussian[0].count == 1:
        return _of_one(gaussian[0], delta)
    return min(LARGEST_EPSILON, float(composed(gaussian).get_epsilon_for_delta(delta)))


def composed(events: Sequence[PoissonGaussian]) -> PrivacyLossDistribution:
    return _composed(tuple(events))


@lru_cache(maxsize=64)  # bounds at two confidences try the same amounts of noise
def _composed(events: tuple[PoissonGaussian, ...]) -> PrivacyLossDistribution:
    """Compose pessimistically: a coarse grid allows a little more, so it can miss, and never raise a false alarm."""

    grid = _GRID * max(1.0, min(event.sigma for event in events) ** -2)  # one for all, or they do not compose

    def single(event: PoissonGaussian) -> PrivacyLossDistribution:
        return from_gaussian_mechanism(
            event.sigma, sampling_prob=event.rate, value_discretization_interval=grid
        ).self_compose(event.count)

    return reduce(lambda left, right: left.compose(right), map(single, events))


def _of_one(event: PoissonGaussian, delta: float) -> float:
    """Invert the Gaussian mechanism's profile (Balle & Wang 2018), amplified exactly: q·δ(ε) at ln(1 + q(e^ε − 1)).

    That is the direction in which the record is present, the larger of the two.
    """
    mu, target = 1 / event.sigma, delta / event.rate
    if target >= _profile(0.0, mu):
        return 0.0
    if _profile(LARGEST_EPSILON, mu) > target:
        return LARGEST_EPSILON
    inside = float(brentq(lambda epsilon: _profile(epsilon, mu) - target, 0.0, LARGEST_EPSILON, xtol=1e-10))
    return math.log1p(event.rate * math.expm1(inside)) if inside < 700 else inside + math.log(event.rate)


def _profile(epsilon: float, mu: float) -> float:
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)))
