"""The trade-off of a run in the terms that the field reports: μ of Gaussian DP, its regret, and the whole curve.

A membership attack with false-positive rate α has at most the true-positive rate T(α); the smaller, the better. A
Gaussian mechanism of sensitivity 1 and noise 1/μ has T(α) = Φ(Φ⁻¹(α) + μ) ("μ-GDP", Dong, Roth & Su 2022).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from cords_dp.accounting.composition import composed_pld
from cords_dp.accounting.events import PLD_STEP, Event, merge
from cords_dp.accounting.pld import directions, knots

SLACK = 1e-10  # what μ leaves out: steps of DP-SGD have heavier tails than any Gaussian, far beyond every δ in use
RATES = tuple(float(f"{rate:.4g}") for rate in np.logspace(-4, 0, 41))  # ten a decade, down to 1e-4
_MOST = 100.0  # of μ


@dataclass(frozen=True)
class TradeOff:
    """Upper bounds on every membership attack, whatever it knows besides the record's presence.

    Formal guarantee: T(α) ≤ Φ(Φ⁻¹(α) + mu) + slack at every α, in both directions of zero-out; T at
    ``false_positive_rates`` is at most ``true_positive_rates``. ``regret`` says how far mu is from the run's own curve:
    the least κ for which moving the Gaussian curve by κ in both rates brings it to the run's side (Gomez et al. 2025;
    below 0.01 mu tells the whole story). It is a figure of comparison, no bound.
    """

    mu: float
    slack: float
    regret: float
    false_positive_rates: tuple[float, ...]
    true_positive_rates: tuple[float, ...]


def trade_off(events: Sequence[Event]) -> TradeOff:
    """Compute the trade-off of the composition of ``events`` (at least one), those of one data set.

    Not asymptotic: everything follows from the composed privacy loss distribution. Events without one are refused.
    """
    profiles = [knots(pmf) for pmf in directions(composed_pld(merge(events)))]
    mu = max(_dominating(epsilons, deltas) for epsilons, deltas in profiles)
    rates = np.array(RATES)
    reached = np.max([_reached(e, d, rates) for e, d in profiles], axis=0)
    upwards = np.minimum(1.0, np.ceil(reached * 1e7) / 1e7)
    return TradeOff(mu, SLACK, _regret(profiles, mu), RATES, tuple(map(float, upwards)))


def _dominating(epsilons: np.ndarray, deltas: np.ndarray) -> float:
    """Find the least μ whose profile, plus the slack, lies on or above this one at every ε ≥ 0.

    For ε < 0 the other direction speaks: H at e^−ε of (P, Q) is 1 − e^−ε + e^−ε·H at e^ε of (Q, P), and the Gaussian's
    profile is the same in both. Between knots the profile is at most its value at the left one and the Gaussian's at
    least its value at the right one. The result is rounded up.
    """
    start = max(0, round(-float(epsilons[0]) / PLD_STEP)) if epsilons[0] < 0 else 0
    above, wanted = epsilons[start:] + PLD_STEP, deltas[start:] - SLACK
    if epsilons[0] > 0:  # every loss is positive: below the first knot the profile is at most 1
        above, wanted = np.append(PLD_STEP, above), np.append(1.0 - SLACK, wanted)
    above, wanted = above[wanted > 0], wanted[wanted > 0]
    low, high = 0.0, _MOST
    if not len(wanted):
        return 0.0
    if (gaussian_profile(above, high) < wanted).any():
        return math.inf
    while high - low > 1e-5 * high:
        mu = (low + high) / 2
        low, high = (mu, high) if (gaussian_profile(above, mu) < wanted).any() else (low, mu)
    return math.ceil(high * 1e4) / 1e4


def gaussian_profile(epsilon: np.ndarray, mu: float) -> np.ndarray:
    """Return δ(ε) of μ-GDP (Balle & Wang 2018)."""
    return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))


def _reached(epsilons: np.ndarray, deltas: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Return T at these rates: the infimum over ε of δ(ε) + e^ε·α. Each ε gives a bound, so some of them do as well."""
    every = max(1, len(epsilons) // 4000)
    with np.errstate(over="ignore"):
        ratios = np.exp(epsilons[::every])
        return np.array([min(1.0, float(np.min(deltas[::every] + ratios * rate))) for rate in rates])


def _regret(profiles: list[tuple[np.ndarray, np.ndarray]], mu: float) -> float:
    """Return the least κ with T_run(α + κ) + κ ≥ T_mu(α) for every α, on a grid."""
    if math.isinf(mu):
        return 1.0
    rates = np.unique(np.concatenate([np.logspace(-6, 0, 300), np.linspace(0, 1, 300)]))
    run = np.max([_reached(e, d, rates) for e, d in profiles], axis=0)
    gaussian = ndtr(ndtri(rates) + mu)
    low, high = 0.0, 1.0
    while high - low > 1e-5:
        shift = (low + high) / 2
        reached = np.interp(rates + shift, rates, run) + shift
        low, high = (shift, high) if (reached < gaussian).any() else (low, shift)
    return round(high, 4)
