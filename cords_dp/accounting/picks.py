"""The exponential mechanism: single picks when every score may move, whole freezes when only one does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from dp_accounting import DpEvent, SelfComposedDpEvent, ZCDpEvent
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from cords_dp.accounting.events import PLD_STEP, Event, is_count, register_event
from cords_dp.errors import AccountingError


@register_event
@dataclass(frozen=True)
class ExponentialPicks(Event):
    """``count`` adaptive picks, each ε₀-DP with log-likelihood ratios of range ε₀.

    For scores that may all move by Δ when one record is zeroed. ``count`` is the number of *picks*:
    a Gumbel-top-m draw is m of them.

    Formal guarantee: bounded range ε₀ gives ε₀²/8-zCDP (Cesar & Rogers 2021); pure ε₀-DP caps it. No dominating pair
    is offered: prv and pld refuse.
    """

    kind: ClassVar[str] = "exponential_picks"
    epsilon0: float
    count: int = 1

    def __post_init__(self) -> None:
        if not (0 < self.epsilon0 < math.inf and is_count(self.count)):
            raise AccountingError(f"not an exponential-mechanism event: {self}")

    def rdp(self, order: float) -> float:
        return min(order * self.epsilon0**2 / 8, self.epsilon0)

    def to_dp_event(self) -> DpEvent:
        return SelfComposedDpEvent(ZCDpEvent(rho=self.epsilon0**2 / 8), self.count)


@register_event
@dataclass(frozen=True)
class GumbelFreeze(Event):
    """``count`` whole score freezes in which zeroing a record moves only its own score.

    Formal guarantee: the noisy scores ``ε₀u/2Δ + Gumbel`` of a freeze differ between neighbours by a shift of at most
    ``s = ε₀/2``, of either sign, in a single coordinate. Any number of picks is post-processing.
    """

    kind: ClassVar[str] = "gumbel_freeze"
    epsilon0: float
    count: int = 1

    def __post_init__(self) -> None:
        if not (0 < self.epsilon0 < math.inf and is_count(self.count)):
            raise AccountingError(f"not a Gumbel-freeze event: {self}")

    @property
    def shift(self) -> float:
        return self.epsilon0 / 2

    def rdp(self, order: float) -> float:
        a = order - 1
        up = self.shift - math.log1p(a * -math.expm1(-self.shift)) / a
        inside = 1 - a * math.expm1(self.shift)
        down = -self.shift - math.log(inside) / a if inside > 0 else math.inf
        return max(up, down)

    def pld(self) -> PrivacyLossDistribution:
        return self.pld_on(PLD_STEP)

    def pld_on(self, step: float) -> PrivacyLossDistribution:
        return PrivacyLossDistribution(_gumbel_pmf(self.shift, step))


def gumbel_hockey_stick(epsilon: np.ndarray, shift: float) -> np.ndarray:
    """Return the largest hockey-stick divergence of Gumbel noise over shifts of either sign, |shift| ≤ s.

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


def _gumbel_pmf(shift: float, step: float) -> pld_pmf.PLDPmf:
    # Beyond this loss less than e^{-50} of the mass is left.
    reach = 50 * math.expm1(shift) + shift
    steps = math.ceil(reach / step)
    if steps > 20_000_000:
        raise AccountingError(f"a Gumbel shift of {shift:g} is too large for the PLD grid")
    lower = math.floor(-2 * shift / step) - 1
    grid = np.arange(lower, steps + 1) * step
    deltas = np.minimum.accumulate(gumbel_hockey_stick(grid, shift))
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, lower, steps, deltas)
