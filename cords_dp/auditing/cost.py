"""ε of the events that audits speak of, quickly: a bound is found by asking for the ε of many amounts of noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, reduce

from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_gaussian_mechanism
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from cords_dp.accounting import Event, PoissonGaussian, epsilon_bound

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
