"""From events to (ε, δ): numerical composition with prv-accountant, then PLD, then RDP.

Each function below returns an **upper bound** on ε at the given δ for zero-out of one record, the
maximum over both directions of the neighbouring relation.

* ``prv`` (Gopi, Lee & Wutschitz 2021): Gaussian events only. prv-accountant composes the direction
  in which the record is present; PLD, which takes both, is asked too and the larger value counts.
* ``pld`` (dp-accounting, pessimistic connect-the-dots): Gaussian events and Gumbel freezes.
* ``rdp`` (Mironov 2017): everything.

GDP's asymptotic formula is not offered: it is not an upper bound.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_gaussian_mechanism
from dp_accounting.rdp import rdp_privacy_accountant
from prv_accountant import PRVAccountant
from prv_accountant.privacy_random_variables import GaussianMechanism, PoissonSubsampledGaussianMechanism

from cords_dp.accounting.events import (
    Event,
    ExponentialPicks,
    GumbelFreeze,
    PoissonGaussian,
    merge,
)
from cords_dp.errors import AccountingError

ACCOUNTANTS = ("prv", "pld", "rdp")
_RDP_ORDERS = (
    [1 + x / 20 for x in range(1, 20)]
    + [2 + x / 4 for x in range(40)]
    + list(range(12, 64))
    + [80, 96, 128, 192, 256, 384, 512, 1024]
)
_PLD_STEP = 1e-4


@dataclass(frozen=True)
class Bound:
    """An upper bound on ε at ``delta``, and who vouches for it."""

    epsilon: float
    delta: float
    accountant: str


def epsilon_bound(events: Sequence[Event], delta: float, accountant: str = "auto") -> Bound:
    """Upper bound on ε. ``auto`` asks prv, pld and rdp in this order and takes the first that answers."""
    merged = merge(list(events))
    if not merged:
        return Bound(0.0, delta, "none")
    if not 0 < delta < 1:
        raise AccountingError(f"delta must lie in (0, 1), got {delta!r}")
    return _bound(merged, delta, accountant)


@lru_cache(maxsize=1024)  # a run asks for the same totals again and again
def _bound(merged: tuple[Event, ...], delta: float, accountant: str) -> Bound:
    names = ACCOUNTANTS if accountant == "auto" else (accountant,)
    refusals = []
    for name in names:
        try:
            return Bound(_ACCOUNTANT_FUNCTIONS[name](merged, delta), delta, name)
        except KeyError:
            raise AccountingError(f"unknown accountant {name!r}; choose from {ACCOUNTANTS} or 'auto'") from None
        except (AccountingError, ValueError, RuntimeError, ArithmeticError, MemoryError) as reason:
            refusals.append(f"{name}: {reason}")
    raise AccountingError("no accountant could bound these events (" + "; ".join(refusals) + ")")


# --- PRV ---------------------------------------------------------------------------------------


def _prv(events: Sequence[Event], delta: float) -> float:
    _only(events, (PoissonGaussian,), "prv")
    gaussians = [e for e in events if isinstance(e, PoissonGaussian)]
    prvs = [
        GaussianMechanism(e.sigma)
        if e.rate == 1
        else PoissonSubsampledGaussianMechanism(sampling_probability=e.rate, noise_multiplier=e.sigma)
        for e in gaussians
    ]
    counts = [e.count for e in gaussians]
    # The mesh follows the answer: a fixed error would swamp a small ε.
    rough = _rdp(events, delta)
    eps_error = min(max(0.002 * rough, 1e-3), 0.05)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        composed = PRVAccountant(prvs, eps_error=eps_error, delta_error=delta * 1e-3, max_self_compositions=counts)
        upper = float(composed.compute_epsilon(delta, counts)[2])
    if not math.isfinite(upper):
        raise AccountingError("prv-accountant returned a non-finite bound")
    return max(0.0, upper, _pld(events, delta))


# --- PLD ---------------------------------------------------------------------------------------


def _pld(events: Sequence[Event], delta: float) -> float:
    _only(events, (PoissonGaussian, GumbelFreeze), "pld")
    parts = [_pld_of(replace(event, count=1)).self_compose(event.count) for event in events]
    total = reduce(lambda left, right: left.compose(right), parts)
    epsilon = float(total.get_epsilon_for_delta(delta))  # the worse of both directions
    if not math.isfinite(epsilon):
        raise AccountingError("the PLD's mass at infinity exceeds delta")
    return epsilon


@lru_cache(maxsize=64)
def _pld_of(event: Event) -> PrivacyLossDistribution:
    if isinstance(event, GumbelFreeze):
        return PrivacyLossDistribution(_gumbel_pmf(event.shift))
    assert isinstance(event, PoissonGaussian)
    return from_gaussian_mechanism(event.sigma, sampling_prob=event.rate, value_discretization_interval=_PLD_STEP)


def gumbel_hockey_stick(epsilon: np.ndarray, shift: float) -> np.ndarray:
    """max over shifts of either sign, |shift| ≤ s, of the hockey-stick divergence of Gumbel noise.

    With T ~ Exp(1), the loss is ``s − (1−e^{−s})·T`` when the score was moved up and
    ``−s + (e^s−1)·T`` when it was moved down; both divergences grow with the shift. The pointwise
    maximum of the two profiles is convex in e^ε, hence itself the profile of a pair that dominates
    every freeze, and the same pair serves both directions of zero-out.
    """
    up_p = -math.expm1(-shift)  # 1 − e^{−s}
    up_q = math.expm1(shift)  # e^s − 1
    gap = np.maximum(shift - epsilon, 0.0)
    moved_up = -np.expm1(-gap / up_p) - np.exp(epsilon) * -np.expm1(-gap / up_q)
    gap = np.maximum(shift + epsilon, 0.0)
    moved_down = np.exp(-gap / up_q) - np.exp(epsilon - gap / up_p)
    return np.clip(np.maximum(moved_up, moved_down), np.maximum(0.0, -np.expm1(epsilon)), 1.0)


def _gumbel_pmf(shift: float) -> pld_pmf.PLDPmf:
    # Beyond this loss less than e^{-50} of the mass is left.
    reach = 50 * math.expm1(shift) + shift
    steps = math.ceil(reach / _PLD_STEP)
    if steps > 20_000_000:
        raise AccountingError(f"a Gumbel shift of {shift:g} is too large for the PLD grid")
    lower = math.floor(-2 * shift / _PLD_STEP) - 1
    grid = np.arange(lower, steps + 1) * _PLD_STEP
    deltas = np.minimum.accumulate(gumbel_hockey_stick(grid, shift))
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(_PLD_STEP, lower, steps, deltas)


# --- RDP ---------------------------------------------------------------------------------------


def _rdp(events: Sequence[Event], delta: float) -> float:
    orders = np.array(_RDP_ORDERS)
    total = np.zeros(len(orders))
    for event in events:
        total += event.count * np.array([_rdp_of(event, float(order)) for order in orders])
    finite = np.isfinite(total)
    if not finite.any():
        raise AccountingError("the Rényi divergence is infinite at every order tried")
    epsilon, _ = rdp_privacy_accountant.compute_epsilon(orders[finite], total[finite], delta)
    return float(epsilon)


def _rdp_of(event: Event, order: float) -> float:
    if isinstance(event, PoissonGaussian):
        return _rdp_gaussian(event.sigma, event.rate, order)
    if isinstance(event, GumbelFreeze):
        return _rdp_gumbel(event.shift, order)
    # Bounded range ε₀ gives ε₀²/8-zCDP; pure ε₀-DP caps it.
    return min(order * event.epsilon0**2 / 8, event.epsilon0)


@lru_cache(maxsize=65536)
def _rdp_gaussian(sigma: float, rate: float, order: float) -> float:
    if rate == 1:
        return order / (2 * sigma**2)
    try:
        value = float(PoissonSubsampledGaussianMechanism(rate, sigma).rdp(order))
    except (OverflowError, ValueError):
        return math.inf  # an order that cannot be evaluated is not used
    return value if value >= 0 else math.inf


def _rdp_gumbel(shift: float, order: float) -> float:
    a = order - 1
    up = shift - math.log1p(a * -math.expm1(-shift)) / a
    inside = 1 - a * math.expm1(shift)
    down = -shift - math.log(inside) / a if inside > 0 else math.inf
    return max(up, down)


def _only(events: Sequence[Event], kinds: tuple[type, ...], name: str) -> None:
    foreign = {e.kind for e in events if not isinstance(e, kinds)}
    if foreign:
        raise AccountingError(f"{name} has no dominating pair for {', '.join(sorted(foreign))}")


_ACCOUNTANT_FUNCTIONS: dict[str, Callable[[Sequence[Event], float], float]] = {
    "prv": _prv,
    "pld": _pld,
    "rdp": _rdp,
}


# --- the paper's formula -------------------------------------------------------------------------


def advanced_composition(picks: ExponentialPicks, delta: float) -> Bound:
    """The paper's ``ε_ss = K·ε₀²/2 + ε₀·√(2K·ln(1/δ_ss))`` for K picks of an ε₀-DP mechanism."""
    k, e = picks.count, picks.epsilon0
    value = k * e**2 / 2 + e * math.sqrt(2 * k * math.log(1 / delta))
    # k·ε₀ is valid too and is smaller for a handful of picks.
    return Bound(min(value, k * e), delta, "advanced composition")
