"""Gaussian noise on a sum over a batch of secret coins: DP-SGD's step and, at rate 1, every noisy sum or count."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_gaussian_mechanism
from prv_accountant.privacy_random_variables import GaussianMechanism, PoissonSubsampledGaussianMechanism

from cords_dp.accounting.events import PLD_STEP, Event, is_count, register_event
from cords_dp.errors import AccountingError


@register_event
@dataclass(frozen=True)
class PoissonGaussian(Event):
    """``count`` noisy sums over batches into which each record falls independently with probability at most ``rate``.

    Formal guarantee: dominated by the pair ((1−q)·N(0,σ²) + q·N(1,σ²), N(0,σ²)) and its reverse. ``rate = 1`` is the
    plain Gaussian mechanism. Requires fresh, secret, independent coins.
    """

    kind: ClassVar[str] = "poisson_gaussian"
    sigma: float
    rate: float
    count: int = 1

    def __post_init__(self) -> None:
        if not (0 < self.sigma < math.inf and 0 < self.rate <= 1 and is_count(self.count)):
            raise AccountingError(f"not a Poisson-subsampled Gaussian event: {self}")

    def rdp(self, order: float) -> float:
        return _rdp(self.sigma, self.rate, order)

    def pld(self) -> PrivacyLossDistribution:
        return from_gaussian_mechanism(self.sigma, sampling_prob=self.rate, value_discretization_interval=PLD_STEP)

    def prv(self) -> Any:
        if self.rate == 1:
            return GaussianMechanism(self.sigma)
        return PoissonSubsampledGaussianMechanism(sampling_probability=self.rate, noise_multiplier=self.sigma)


def gaussian(sigma: float, count: int = 1) -> PoissonGaussian:
    """``count`` releases by the Gaussian mechanism with noise multiplier ``sigma``."""
    return PoissonGaussian(sigma=sigma, rate=1.0, count=count)


@lru_cache(maxsize=65536)
def _rdp(sigma: float, rate: float, order: float) -> float:
    if rate == 1:
        return order / (2 * sigma**2)
    try:
        value = float(PoissonSubsampledGaussianMechanism(rate, sigma).rdp(order))
    except (OverflowError, ValueError):
        return math.inf  # an order that cannot be evaluated is not used
    return value if value >= 0 else math.inf
