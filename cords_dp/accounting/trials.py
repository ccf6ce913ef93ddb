"""The random number of trials of a private tuning: its law, and how it is drawn.

Whoever keeps the best of a *fixed* number of private runs pays for each of them. With a random number that nobody is
told the price is far lower (Liu & Talwar 2019; Papernot & Steinke 2022): `repeat.RepeatAndSelect` has the theorem.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import optimize

from cords_dp.errors import AccountingError

LAWS = {"logarithmic": 0.0, "geometric": 1.0}  # by name, with their shape η


@dataclass(frozen=True)
class TrialLaw:
    """The truncated negative binomial law of Papernot & Steinke (2022, Def. 1), by its mean and its shape η ≥ 0.

    With the chance γ to halt, P[K = k] ∝ (1−γ)^k · Π_{l<k} (l+η)/(l+1) for k = 1, 2, …. η = 1 is the geometric law,
    η = 0 the logarithmic one. A smaller η costs less privacy for the same mean and draws more often a single trial.
    """

    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        if not (1 < self.mean < math.inf and 0 <= self.shape < math.inf):
            raise AccountingError(f"not a law of the number of trials: mean {self.mean!r}, shape {self.shape!r}")

    @cached_property
    def halting(self) -> float:
        """γ: the chance to stop. It follows from the mean, which falls as γ rises."""
        return float(optimize.brentq(lambda g: self._mean_at(g) - self.mean, 1e-12, 1 - 1e-12, xtol=1e-16))

    def _mean_at(self, gamma: float) -> float:
        odds, log = (1 - gamma) / gamma, math.log(1 / gamma)
        return odds / log if self.shape == 0 else self.shape * odds / -math.expm1(-self.shape * log)

    def probabilities(self) -> Iterator[float]:
        """P[K = 1], P[K = 2], …, without end."""
        gamma, shape = self.halting, self.shape
        log = math.log(1 / gamma)
        chance = (1 - gamma) * (1 / log if shape == 0 else shape / math.expm1(shape * log))
        for k in range(1, 2**62):
            yield chance
            chance *= (1 - gamma) * (k + shape) / (k + 1)

    def draw(self, rng: np.random.Generator) -> int:
        """A number of trials. Never show it: the guarantee holds for those who do not know it.

        By the inverse of the distribution function at 53 random bits; what lies beyond their resolution, some 1e-16,
        is counted to the last number that is reached.
        """
        u, total = rng.random(), 0.0
        for k, chance in enumerate(self.probabilities(), start=1):
            total += chance
            if u < total or (k > self.mean and chance < 1e-18):
                return k
        raise AssertionError("probabilities have no end")
