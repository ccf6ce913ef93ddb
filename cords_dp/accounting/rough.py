"""ε on a coarse grid of losses: quick, an upper bound like the others, and close enough to compare plans by."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce

from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from cords_dp.accounting.events import Event, merge
from cords_dp.accounting.profiles import epsilon_of, self_composed
from cords_dp.errors import AccountingError

# Pessimistic rounding adds up over compositions, so many of them need a finer grid: number of uses → step.
_STEPS = ((300, 2e-3), (5_000, 5e-4), (float("inf"), 1e-4))


def rough_epsilon(events: Sequence[Event], delta: float) -> float:
    """Upper bound on ε, within a per cent or so of the exact value; refuses events without `Event.pld_on`."""
    merged = merge(events)
    uses = sum(event.uses for event in merged)
    step = next(step for most, step in _STEPS if uses <= most)
    return epsilon_of(rough_pld(merged, step), delta)


def rough_pld(events: Sequence[Event], step: float) -> PrivacyLossDistribution:
    """The pair that dominates the composition of all ``events`` (at least one), on multiples of ``step``."""
    if not events:
        raise AccountingError("no events to compose")
    return reduce(lambda left, right: left.compose(right), (_part(event, step) for event in events))


@lru_cache(maxsize=64)  # while one noise is calibrated, the other events stay as they are
def _part(event: Event, step: float) -> PrivacyLossDistribution:
    return self_composed(event.with_count(1).pld_on(step), event.count)
