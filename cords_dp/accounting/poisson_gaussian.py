"""Gaussian noise on a sum over a batch of secret coins: DP-SGD's step and, at rate 1, every noisy sum or count."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from absl import logging
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_gaussian_mechanism
from dp_accounting.rdp import rdp_privacy_accountant
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
    """Rényi divergence of one event, from dp-accounting (Mironov, Talwar & Zhang 2019).

    Formal guarantee: an upper bound in both directions, up to the rounding of float64. The direction in which the
    record is present has the larger divergence at every order (ibid., Thm. 5). Integer orders are finite sums. At
    fractional orders dp-accounting adds up the absolute values of a series until a term is e^-30 of the total. Beyond
    the order signs alternate and terms fall (a binomial coefficient times a Mills ratio), so what is left out is less
    than any one negative term, and counting that with a plus exceeds the whole series.
    """
    if rate == 1:
        return order / (2 * sigma**2)
    with _quietly():
        value = float(rdp_privacy_accountant._compute_rdp_poisson_subsampled_gaussian(rate, sigma, [order])[0])
    return value if value >= 0 else math.inf  # infinite where the series is too slow: that order is not used


@contextmanager
def _quietly() -> Iterator[None]:
    """Without a line on stderr for each order that is left out."""
    level = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(level)
