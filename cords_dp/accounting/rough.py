"""ε on a coarse grid: quick, an upper bound like the others, and close enough to compare plans by."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from cords_dp.accounting.events import Event, merge
from cords_dp.accounting.poisson_gaussian import PoissonGaussian, gaussian_pld
from cords_dp.errors import AccountingError

_STEP = 2e-3


def rough_epsilon(events: Sequence[Event], delta: float) -> float:
    """Upper bound on ε of Gaussian events, subsampled or not, within a per cent or so of the exact value."""
    parts = [_pld(event).self_compose(event.count) for event in merge(list(events))]
    return float(reduce(lambda left, right: left.compose(right), parts).get_epsilon_for_delta(delta))


def _pld(event: Event) -> PrivacyLossDistribution:
    if not isinstance(event, PoissonGaussian):
        raise AccountingError(f"no rough bound for {event.kind!r}")
    return gaussian_pld(event.sigma, event.rate, _STEP)
