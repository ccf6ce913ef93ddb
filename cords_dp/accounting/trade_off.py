"""Bounds membership attacks: how well can anyone tell whether one record was in the data?

A membership attack looks at everything that was released and says "in" or "out". Its true-positive rate (TPR) is the
chance of "in" when the record was there, its false-positive rate (FPR) the chance of "in" when it was not. With FPR α
it has at most the TPR T(α); the smaller, the better. A Gaussian mechanism of sensitivity 1 and noise 1/μ has
T(α) = Φ(Φ⁻¹(α) + μ) ("μ-GDP", Dong, Roth & Su 2022).

`trade_off` is the whole curve, with μ and its regret, as the field reports them; `membership_risk` says in two numbers
what it comes to.

`riskcal` computes such figures too, and installs beside our pins. It is not used: it joins the two directions of a PLD
as if they described one pair of distributions, which pessimistic rounding and `BranchMaximum` do not keep.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from cords_dp.accounting.composition import composed_pld
from cords_dp.accounting.events import PLD_STEP, Event, merge
from cords_dp.accounting.pld import directions, knots
from cords_dp.errors import AccountingError

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


# --- in two numbers --------------------------------------------------------------------------------------------------

FALSE_POSITIVE_RATES = (0.01, 0.001)


@dataclass(frozen=True)
class MembershipRisk:
    """Upper bounds on the best membership attack, whatever it knows besides the record's presence.

    ``advantage``: TPR − FPR. ``true_positive_rates``: TPR at each of ``false_positive_rates``. ``source`` names what
    they were computed from: the privacy loss distribution of all events, or ε and δ alone, which say less.
    """

    advantage: float
    false_positive_rates: tuple[float, ...]
    true_positive_rates: tuple[float, ...]
    source: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def text(self, unit: str = "record") -> str:
        """Return one sentence for a report. ``unit``: whose contribution the events hide."""
        one, found = ("one record was", "a record") if unit == "record" else ("one owner's records were", "an owner")
        rates = " and ".join(
            f"{100 * tpr:.3g} % when it may accuse {100 * fpr:g} % of the absent"
            for fpr, tpr in zip(self.false_positive_rates, self.true_positive_rates, strict=True)
        )
        return (
            f"An attacker who uses the release to learn whether {one} in the data, knowing everything else, is "
            f"right in at most {50 + 50 * self.advantage:.1f} % of cases where both are equally likely (50 % by "
            f"guessing), and finds {found} that was there with a chance of at most {rates}."
        )


def membership_risk(
    events: Sequence[Event],
    epsilon: float,
    delta: float,
    *,
    false_positive_rates: Sequence[float] = FALSE_POSITIVE_RATES,
) -> MembershipRisk:
    """Return the bounds for a run that did ``events`` and was shown to be (``epsilon``, ``delta``)-DP.

    Uses the events' composed PLD, and (ε, δ) where an event has none. ``events`` are those of one dataset, D or V.
    """
    try:
        return risk_of_events(events, false_positive_rates)
    except (AccountingError, ValueError, MemoryError):
        return risk_of_bound(epsilon, delta, false_positive_rates)


def risk_of_events(
    events: Sequence[Event], false_positive_rates: Sequence[float] = FALSE_POSITIVE_RATES
) -> MembershipRisk:
    """Derive the bounds from the privacy profile of the composition.

    Formal guarantee: for every ε, TPR ≤ δ(ε) + e^ε·FPR, so the infimum over all real ε bounds TPR and δ(0) bounds
    TPR − FPR; both are attained by the pair that dominates the events. δ is linear in e^ε between knots, so the
    infimum over knots is the infimum. The maximum is taken over both directions, i.e. an attack that accuses absent
    records of presence or present ones of absence. Pessimistic discretisation can only raise the figures.
    """
    merged = merge(events)
    if not merged:
        return MembershipRisk(0.0, tuple(false_positive_rates), tuple(false_positive_rates), "no events")
    profiles = [knots(pmf) for pmf in directions(composed_pld(merged))]
    advantage = max(_at_zero(e, d) for e, d in profiles)
    rates = tuple(max(_best(e, d, fpr) for e, d in profiles) for fpr in false_positive_rates)
    return MembershipRisk(advantage, tuple(false_positive_rates), rates, "privacy loss distribution")


def risk_of_bound(
    epsilon: float, delta: float, false_positive_rates: Sequence[float] = FALSE_POSITIVE_RATES
) -> MembershipRisk:
    """Derive the bounds from (ε, δ) alone (Kairouz, Oh & Viswanath 2015): those of the worst mechanism with it."""
    advantage = 1.0 if math.isinf(epsilon) else (math.expm1(epsilon) + 2 * delta) / (math.exp(epsilon) + 1)

    def rate(fpr: float) -> float:
        if math.isinf(epsilon):
            return 1.0
        return min(1.0, math.exp(epsilon) * fpr + delta, 1 - math.exp(-epsilon) * (1 - fpr - delta))

    rates = tuple(rate(fpr) for fpr in false_positive_rates)
    return MembershipRisk(min(1.0, advantage), tuple(false_positive_rates), rates, "epsilon and delta")


def _at_zero(epsilons: np.ndarray, deltas: np.ndarray) -> float:
    """Return δ(0): ε = 0 is a knot, or lies above all of them; below all of them δ is at most 1."""
    place = round(-float(epsilons[0]) / PLD_STEP)
    return 1.0 if place < 0 else float(deltas[min(place, len(deltas) - 1)])


def _best(epsilons: np.ndarray, deltas: np.ndarray, fpr: float) -> float:
    """Return the infimum over ε of δ(ε) + e^ε·FPR, ε = −∞ (which says TPR ≤ 1) included."""
    with np.errstate(over="ignore"):  # e^ε of a loss that no attack reaches may be infinite
        return min(1.0, float(np.min(deltas + np.exp(epsilons) * fpr)))
