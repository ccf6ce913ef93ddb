"""Trying a mechanism a random number of times and keeping the best output, as one event."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from cords_dp.accounting.events import Event, from_dict, is_count, merge, register_event, to_dict
from cords_dp.accounting.trials import TrialLaw
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
    """

    kind: ClassVar[str] = "repeat_and_select"
    trial: tuple[Event, ...]
    mean: float
    shape: float
    count: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "trial", merge(self.trial))
        if not self.trial or not is_count(self.count):
            raise AccountingError(f"not a repeated and selected list of events: {self}")
        TrialLaw(self.mean, self.shape)

    @property
    def second_order(self) -> int:
        """λ̂, the order at which being chosen is paid for."""
        return _second(self.trial, self.mean, self.shape)[1]

    def rdp(self, order: float) -> float:
        if order <= 1:
            return math.inf
        return renyi(self.trial, order) + _second(self.trial, self.mean, self.shape)[0] + _log_mean(self, order)

    def parameters(self) -> dict[str, Any]:
        own = {"mean": self.mean, "shape": self.shape, "count": self.count}
        return {"trial": [to_dict(event) for event in self.trial], **own}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> RepeatAndSelect:
        fields = dict(parameters)
        return cls(tuple(from_dict(event) for event in fields.pop("trial")), **fields)


def renyi(events: Sequence[Event], order: float) -> float:
    """The Rényi divergence of this order of all events together."""
    return sum(event.count * event.rdp(order) for event in events)


def _log_mean(event: RepeatAndSelect, order: float) -> float:
    return math.log(event.mean) / (order - 1)


@lru_cache(maxsize=256)
def _second(trial: tuple[Event, ...], mean: float, shape: float) -> tuple[float, int]:
    """(1+η)·((1 − 1/λ̂)·ρ(λ̂) + ln(1/γ)/λ̂) and the λ̂ at which it is least."""
    log = math.log(1 / TrialLaw(mean, shape).halting)
    return min(((1 + shape) * ((1 - 1 / a) * renyi(trial, a) + log / a), a) for a in _ORDERS)
