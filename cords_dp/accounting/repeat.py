"""Repeats a mechanism a random number of times and keeps the best output, as one event; and the law of that number.

Keeping the best of a *fixed* number of private runs costs as much as all of them. With a random number that stays
secret the price is far lower (Liu & Talwar 2019; Papernot & Steinke 2022): `RepeatAndSelect` has the theorem.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np
from dp_accounting.dp_event import ComposedDpEvent, DpEvent, RepeatAndSelectDpEvent, SelfComposedDpEvent
from scipy import optimize

from cords_dp.accounting.events import Event, from_dict, is_count, merge, register_event, to_dict
from cords_dp.errors import AccountingError

# Of the order λ̂ below: whole numbers, whose divergences are finite sums. The best is near √(ln(1/γ)/ρ).
_ORDERS = (*range(2, 33), *range(34, 65, 2), 80, 96, 128, 192, 256)


@register_event
@dataclass(frozen=True)
class RepeatAndSelect(Event):
    """``trial``, a list of events, is carried out K times, and the output that scores best is released, no other.

    Formal guarantee (Papernot & Steinke 2022, Thm. 2). K follows `TrialLaw` (γ, η), is drawn without looking at the
    data and is not released. The K runs are independent and each has Rényi divergence at most ρ(λ) and ρ(λ̂), in both
    directions. Then the selected output has, for every λ > 1 and λ̂ ≥ 1,

        ρ(λ) + (1+η)·(1 − 1/λ̂)·ρ(λ̂) + (1+η)·ln(1/γ)/λ̂ + ln(E[K])/(λ − 1).

    λ̂ does not depend on λ: `second_order` is the best. The output of a run includes its score, so the winner's may be
    shown. A run may draw its settings at random first, as long as its divergences at the orders in use are at most
    those of ``trial`` whatever it draws: a mixture over a public choice has at most the largest divergence.

    ``orders``: the only orders at which the runs are known to cost at most what ``trial`` does; None says all. Rényi
    divergences do not fall as the order rises (van Erven & Harremoës 2014, Thm. 3), so at any other order λ a run has
    at most its divergence at the next larger of these orders, hence at most ``trial``'s there, and that is ρ(λ). Beyond
    the largest one nothing is known: ρ(λ) is infinite. λ̂ is one of them.
    """

    kind: ClassVar[str] = "repeat_and_select"
    trial: tuple[Event, ...]
    mean: float
    shape: float
    count: int = 1
    orders: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "trial", merge(self.trial))
        if self.orders is not None:
            object.__setattr__(self, "orders", tuple(sorted(set(map(float, self.orders)))))
            if not self.orders or not all(1 < order < math.inf for order in self.orders):
                raise AccountingError(f"not orders of a Rényi divergence: {self.orders}")
        if not self.trial or not is_count(self.count):
            raise AccountingError(f"not a repeated and selected list of events: {self}")
        TrialLaw(self.mean, self.shape)

    @property
    def second_order(self) -> float:
        """λ̂, the order at which being chosen is paid for."""
        return self._second()[1]

    def _second(self) -> tuple[float, float]:
        return _second(self.trial, self.mean, self.shape, self.orders or _ORDERS)

    def rdp(self, order: float) -> float:
        known = order if self.orders is None else min((a for a in self.orders if a >= order), default=math.inf)
        if order <= 1 or math.isinf(known):
            return math.inf
        return renyi(self.trial, known) + self._second()[0] + _log_mean(self, order)

    def to_dp_event(self) -> DpEvent:
        if self.orders is not None:  # it asks for divergences at every order
            self._refuse("dp-accounting")
        trial = ComposedDpEvent([event.to_dp_event() for event in self.trial])
        return SelfComposedDpEvent(RepeatAndSelectDpEvent(trial, self.mean, self.shape), self.count)

    def parameters(self) -> dict[str, Any]:
        own: dict[str, Any] = {"mean": self.mean, "shape": self.shape, "count": self.count}
        if self.orders is not None:
            own["orders"] = list(self.orders)
        return {"trial": [to_dict(event) for event in self.trial], **own}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> RepeatAndSelect:
        fields = dict(parameters)
        return cls(tuple(from_dict(event) for event in fields.pop("trial")), **fields)


def renyi(events: Sequence[Event], order: float) -> float:
    """Return the Rényi divergence of this order of all events together."""
    return sum(event.count * event.rdp(order) for event in events)


def _log_mean(event: RepeatAndSelect, order: float) -> float:
    return math.log(event.mean) / (order - 1)


@lru_cache(maxsize=256)
def _second(trial: tuple[Event, ...], mean: float, shape: float, orders: tuple[float, ...]) -> tuple[float, float]:
    """Return (1+η)·((1 − 1/λ̂)·ρ(λ̂) + ln(1/γ)/λ̂) and the λ̂ among ``orders`` at which it is least."""
    log = math.log(1 / TrialLaw(mean, shape).halting)
    return min(((1 + shape) * ((1 - 1 / a) * renyi(trial, a) + log / a), a) for a in orders)


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
        """Yield P[K = 1], P[K = 2], …, without end."""
        gamma, shape = self.halting, self.shape
        log = math.log(1 / gamma)
        chance = (1 - gamma) * (1 / log if shape == 0 else shape / math.expm1(shape * log))
        for k in range(1, 2**62):
            yield chance
            chance *= (1 - gamma) * (k + shape) / (k + 1)

    def draw(self, rng: np.random.Generator) -> int:
        """Draw a number of trials. Never show it: the guarantee holds for those who do not know it.

        By the inverse of the distribution function at 53 random bits; what lies beyond their resolution, some 1e-16,
        is counted to the last number that is reached.
        """
        u, total = rng.random(), 0.0
        for k, chance in enumerate(self.probabilities(), start=1):
            total += chance
            if u < total or (k > self.mean and chance < 1e-18):
                return k
        raise AssertionError("probabilities have no end")
