"""Gaussian noise on a sum over a batch of secret coins: DP-SGD's step and, at rate 1, every noisy sum or count."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from absl import logging
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld.pld_pmf import PLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from dp_accounting.rdp import rdp_privacy_accountant
from prv_accountant.privacy_random_variables import GaussianMechanism, PoissonSubsampledGaussianMechanism
from scipy import special

from cords_dp.accounting.events import PLD_STEP, Event, is_count, register_event
from cords_dp.accounting.pld import connected_dots
from cords_dp.errors import AccountingError

# dp-accounting adds up a thousand terms one by one: ten milliseconds an order. Orders up to this one, which decide
# about all but the smallest ε, stay its own, so that plans stay the same to the last digit.
_LAST_TERM_BY_TERM = 32


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
        return self.pld_on(PLD_STEP)

    def pld_on(self, step: float) -> PrivacyLossDistribution:
        return gaussian_pld(self.sigma, self.rate, step)

    def to_dp_event(self) -> DpEvent:
        noisy = GaussianDpEvent(self.sigma)
        return SelfComposedDpEvent(noisy if self.rate == 1 else PoissonSampledDpEvent(self.rate, noisy), self.count)

    def prv(self) -> Any:
        return GaussianMechanism(self.sigma) if self.rate == 1 else _Subsampled(self.sigma, self.rate)


class _Subsampled(PoissonSubsampledGaussianMechanism):
    """prv-accountant's, except for the Rényi divergences by which it chooses how far its mesh reaches.

    Formal guarantee: it takes the least bound over its orders and leaves out those that are not a number. The bound at
    each order is valid, so whole orders alone give a mesh that reaches as far or further. Fractional ones, which are
    slow series, took most of its time.
    """

    def __init__(self, sigma: float, rate: float):
        super().__init__(sampling_probability=rate, noise_multiplier=sigma)
        self._noise, self._rate = sigma, rate

    def rdp(self, alpha: float) -> float:
        return _rdp(self._noise, self._rate, float(alpha)) if float(alpha).is_integer() else math.nan


def gaussian(sigma: float, count: int = 1) -> PoissonGaussian:
    """Return ``count`` releases by the Gaussian mechanism with noise multiplier ``sigma``."""
    return PoissonGaussian(sigma=sigma, rate=1.0, count=count)


def gaussian_pld(sigma: float, rate: float, step: float = PLD_STEP) -> PrivacyLossDistribution:
    """Return the pessimistic loss distribution of one event on a grid of this step (Doroshenko et al. 2022).

    dp-accounting's `from_gaussian_mechanism` with the same pair, grid and truncation, except that the profile is
    evaluated on the whole grid at once: it asks for one point after the other, which takes most of a calibration.
    """
    present = _connect_dots(sigma, rate, step, AdjacencyType.REMOVE)
    if rate == 1:
        return PrivacyLossDistribution(present)  # the same in both directions
    return PrivacyLossDistribution(present, _connect_dots(sigma, rate, step, AdjacencyType.ADD))


def _connect_dots(sigma: float, rate: float, step: float, direction: AdjacencyType) -> PLDPmf:
    loss = GaussianPrivacyLoss(sigma, sampling_prob=rate, adjacency_type=direction)
    bounds = loss.connect_dots_bounds()
    lower, upper = math.floor(bounds.epsilon_lower / step), math.ceil(bounds.epsilon_upper / step)
    return connected_dots(_profile(loss, np.arange(lower, upper + 1) * step), lower, step)


def _profile(loss: GaussianPrivacyLoss, epsilon: np.ndarray) -> np.ndarray:
    """Return δ(ε) of one direction: the mass of P above ε less e^ε times that of Q, cut where the loss is ε."""
    present = loss.adjacency_type == AdjacencyType.REMOVE
    sign = 1.0 if present else -1.0
    with np.errstate(divide="ignore"):  # a loss that is never, or always, exceeded is cut at infinity
        unsampled = sign * _log_of_mixture(sign * epsilon, loss.sampling_prob)
    inverse = "_inverse_privacy_loss_without_subsampling_" + ("remove" if present else "add")
    cut = getattr(loss, inverse)(unsampled)
    delta = loss.mu_upper_cdf(cut) - np.exp(epsilon + loss.mu_lower_log_cdf(cut))
    return np.clip(delta, 0.0, 1.0)


def _log_of_mixture(epsilon: np.ndarray, rate: float) -> np.ndarray:
    """Return ln(1 + (e^ε − 1)/q), and −∞ where that is no logarithm; without overflow."""
    small = np.log1p(np.maximum(np.expm1(np.minimum(epsilon, 30.0)) / rate, -1.0))
    large = epsilon - math.log(rate) + np.log1p((rate - 1) * np.exp(-np.maximum(epsilon, 30.0)))
    return np.where(epsilon > 30.0, large, small)


@lru_cache(maxsize=65536)
def _rdp(sigma: float, rate: float, order: float) -> float:
    """Bound the Rényi divergence of one event, by dp-accounting (Mironov, Talwar & Zhang 2019).

    Formal guarantee: an upper bound in both directions, up to the rounding of float64. The direction in which the
    record is present has the larger divergence at every order (ibid., Thm. 5). Integer orders are finite sums. At
    fractional orders dp-accounting adds up the absolute values of a series until a term is e^-30 of the total. Beyond
    the order signs alternate and terms fall (a binomial coefficient times a Mills ratio), so what is left out is less
    than any one negative term, and counting that with a plus exceeds the whole series.
    """
    if rate == 1:
        return order / (2 * sigma**2)
    if float(order).is_integer() and order > _LAST_TERM_BY_TERM:
        return _finite_sum(sigma, rate, int(order))
    with _quietly() if not float(order).is_integer() else nullcontext():
        value = float(rdp_privacy_accountant._compute_rdp_poisson_subsampled_gaussian(rate, sigma, [order])[0])
    return value if value >= 0 else math.inf  # infinite where the series is too slow: that order is not used


def _finite_sum(sigma: float, rate: float, order: int) -> float:
    """Return the divergence at a whole order, as dp-accounting adds it up term by term, but all terms at once.

    ln Σ_j C(α, j) (1−q)^(α−j) q^j exp((j²−j) / 2σ²), over α − 1.
    """
    j = np.arange(order + 1)
    binomials = special.gammaln(order + 1) - special.gammaln(j + 1) - special.gammaln(order - j + 1)
    terms = binomials + j * math.log(rate) + (order - j) * math.log1p(-rate) + (j * j - j) / (2 * sigma**2)
    highest = float(terms.max())
    value = (highest + math.log(float(np.exp(terms - highest).sum()))) / (order - 1)
    return value if value >= 0 else math.inf


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep dp-accounting's line for each order that is left out off stderr."""
    level = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(level)
