"""From events to (ε, δ): numerical composition with prv-accountant, then PLD, then RDP.

Each function below returns an **upper bound** on ε at the given δ for zero-out of one record, the
maximum over both directions of the neighbouring relation. Events own their divergences; an accountant that needs
one which an event does not have refuses the whole list.

* ``prv`` (Gopi, Lee & Wutschitz 2021): Gaussian events only. prv-accountant composes the direction
  in which the record is present; PLD, which takes both, is asked too and the larger value counts.
* ``pld`` (dp-accounting, pessimistic connect-the-dots): every event with a dominating pair.
* ``rdp`` (Mironov 2017): everything.
* ``rough``: pld on a coarse grid, or rdp at whole orders where an event has no pair: an upper bound too, quick and
  close enough to compare plans by; not for runs.
* ``glance``: rdp at seven orders. Takes milliseconds and little memory, whatever the noise; may be twice too large.

GDP's asymptotic formula is not offered: it is not an upper bound.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.rdp import rdp_privacy_accountant
from prv_accountant import PRVAccountant

from cords_dp.accounting.events import Event, merge
from cords_dp.accounting.picks import ExponentialPicks
from cords_dp.accounting.pld import epsilon_of, self_composed
from cords_dp.errors import AccountingError

ACCOUNTANTS = ("prv", "pld", "rdp")
ROUGH, GLANCE = "rough", "glance"  # not for runs: configs cannot ask for them
# Fractional orders cost most of the time; between these the bound is nearly flat.
_RDP_ORDERS = (
    [1.05, 1.1, 1.25, 1.5, 1.75]
    + [2 + x / 4 for x in range(16)]
    + [6 + x / 2 for x in range(12)]
    + list(range(12, 64))
    + [80, 96, 128, 192, 256, 384, 512, 1024]
)
_WHOLE_ORDERS = [order for order in _RDP_ORDERS if float(order).is_integer()]
_FEW_ORDERS = (2, 4, 8, 16, 32, 64, 256)
_MOST_FOR_PRV = 20_000


@dataclass(frozen=True)
class Bound:
    """An upper bound on ε at ``delta``, and the accountant that gave it."""

    epsilon: float
    delta: float
    accountant: str


def epsilon_bound(events: Sequence[Event], delta: float, accountant: str = "auto") -> Bound:
    """Bound ε from above. ``auto`` asks prv, pld and rdp in this order and takes the first that answers.

    Beyond 20,000 compositions ``auto`` begins with pld, which answers within a second, however many there are.
    ``quick`` always does.
    """
    merged = merge(events)
    if not merged:
        return Bound(0.0, delta, "none")
    if not 0 < delta < 1:
        raise AccountingError(f"delta must lie in (0, 1), got {delta!r}")
    return _bound(merged, delta, accountant)


@lru_cache(maxsize=1024)  # a run asks for the same totals again and again
def _bound(merged: tuple[Event, ...], delta: float, accountant: str) -> Bound:
    refusals = []
    for name in _asked(merged, accountant):
        try:
            return Bound(_ACCOUNTANT_FUNCTIONS[name](merged, delta), delta, name)
        except KeyError:
            raise AccountingError(f"unknown accountant {name!r}; choose from {ACCOUNTANTS} or 'auto'") from None
        except (AccountingError, ValueError, RuntimeError, ArithmeticError, MemoryError) as reason:
            refusals.append(f"{name}: {reason}")
    raise AccountingError("no accountant could bound these events (" + "; ".join(refusals) + ")")


def _asked(merged: tuple[Event, ...], accountant: str) -> tuple[str, ...]:
    if accountant == "quick":
        return ("pld", *(name for name in ACCOUNTANTS if name != "pld"))
    if accountant != "auto":
        return (accountant,)
    # prv-accountant's mesh grows with the number of compositions, to half a minute a query; PLD's does not.
    few = sum(event.count for event in merged) <= _MOST_FOR_PRV
    return ACCOUNTANTS if few else ACCOUNTANTS[1:]


# --- PRV ---------------------------------------------------------------------------------------


def _prv(events: Sequence[Event], delta: float) -> float:
    prvs = [event.prv() for event in events]
    counts = [event.count for event in events]
    # The mesh follows the answer: a fixed error would swamp a small ε.
    rough = _epsilon_and_order(events, delta, tuple(_WHOLE_ORDERS))[0]
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
    epsilon = epsilon_of(composed_pld(events), delta)
    if not math.isfinite(epsilon):
        raise AccountingError("the PLD's mass at infinity exceeds delta")
    return epsilon


def composed_pld(events: Sequence[Event]) -> PrivacyLossDistribution:
    """Return the pair that dominates the adaptive composition of all ``events`` (at least one), for each direction."""
    return reduce(lambda left, right: left.compose(right), map(_pld_of, events))


@lru_cache(maxsize=12)  # megabytes each; while one noise is calibrated, the other events stay as they are
def _pld_of(event: Event) -> PrivacyLossDistribution:
    return self_composed(event.with_count(1).pld(), event.count)


# --- RDP ---------------------------------------------------------------------------------------


def _rdp(events: Sequence[Event], delta: float) -> float:
    return _epsilon_and_order(events, delta, tuple(_RDP_ORDERS))[0]


def renyi_order(events: Sequence[Event], delta: float) -> float:
    """Return the order at which RDP's bound on ε is least."""
    return _epsilon_and_order(merge(events), delta, tuple(_RDP_ORDERS))[1]


def _epsilon_and_order(events: Sequence[Event], delta: float, orders: tuple[float, ...]) -> tuple[float, float]:
    """Return the least bound over these orders, with its order. Each order gives a bound, so fewer are no less safe."""
    total = np.zeros(len(orders))
    for event in events:
        total += event.count * _divergences(event.with_count(1), orders)
    finite = np.isfinite(total)
    if not finite.any():
        raise AccountingError("the Rényi divergence is infinite at every order tried")
    epsilon, order = rdp_privacy_accountant.compute_epsilon(np.array(orders)[finite], total[finite], delta)
    return float(epsilon), float(order)


@lru_cache(maxsize=4096)
def _divergences(event: Event, orders: tuple[float, ...]) -> np.ndarray:
    return np.array([event.rdp(float(order)) for order in orders])


def _glance(events: Sequence[Event], delta: float) -> float:
    return _epsilon_and_order(events, delta, _FEW_ORDERS)[0]


# --- rough -------------------------------------------------------------------------------------


def _rough(events: Sequence[Event], delta: float) -> float:
    try:
        epsilon = rough_epsilon(events, delta)
    except AccountingError:
        return _epsilon_and_order(events, delta, tuple(_WHOLE_ORDERS))[0]
    if not math.isfinite(epsilon):
        raise AccountingError("the PLD's mass at infinity exceeds delta")
    return epsilon


_ACCOUNTANT_FUNCTIONS: dict[str, Callable[[Sequence[Event], float], float]] = {
    "prv": _prv,
    "pld": _pld,
    "rdp": _rdp,
    ROUGH: _rough,
    GLANCE: _glance,
}


# --- the paper's formula -------------------------------------------------------------------------


def advanced_composition(picks: ExponentialPicks, delta: float) -> Bound:
    """Return the paper's ``ε_ss = K·ε₀²/2 + ε₀·√(2K·ln(1/δ_ss))`` for K picks of an ε₀-DP mechanism."""
    k, e = picks.count, picks.epsilon0
    value = k * e**2 / 2 + e * math.sqrt(2 * k * math.log(1 / delta))
    # k·ε₀ is valid too and is smaller for a handful of picks.
    return Bound(min(value, k * e), delta, "advanced composition")


# Pessimistic rounding adds up over compositions, so many of them need a finer grid: number of uses → step.
_STEPS = ((300, 2e-3), (5_000, 5e-4), (float("inf"), 1e-4))


def rough_epsilon(events: Sequence[Event], delta: float) -> float:
    """Bound ε from above, within a per cent or so of the exact value; refuse events without `Event.pld_on`."""
    merged = merge(events)
    return epsilon_of(rough_pld(merged, rough_step(merged)), delta)


def rough_step(events: Iterable[Event]) -> float:
    """Choose the grid of losses for a rough bound."""
    uses = sum(event.uses for event in events)
    return next(step for most, step in _STEPS if uses <= most)


def rough_pld(events: Sequence[Event], step: float) -> PrivacyLossDistribution:
    """Return the pair that dominates the composition of all ``events`` (at least one), on multiples of ``step``."""
    if not events:
        raise AccountingError("no events to compose")
    return reduce(lambda left, right: left.compose(right), (_part(event, step) for event in events))


@lru_cache(maxsize=64)  # while one noise is calibrated, the other events stay as they are
def _part(event: Event, step: float) -> PrivacyLossDistribution:
    return self_composed(event.with_count(1).pld_on(step), event.count)
