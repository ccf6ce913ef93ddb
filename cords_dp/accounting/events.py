"""Privacy events: what a mechanism did, as data. Only `composition` turns events into ε.

Every event describes the privacy loss of **one record under zero-out**: the record's contribution to
the query is replaced by the zero vector (or score 0), everything else staying as it is.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from cords_dp.errors import AccountingError


@dataclass(frozen=True)
class PoissonGaussian:
    """``count`` noisy sums over batches into which each record falls independently with probability at most ``rate``.

    Dominated by the pair ((1−q)·N(0,σ²) + q·N(1,σ²), N(0,σ²)) and its reverse. ``rate = 1`` is the
    plain Gaussian mechanism. Requires fresh, secret, independent coins.
    """

    kind: ClassVar[str] = "poisson_gaussian"
    sigma: float
    rate: float
    count: int = 1

    def __post_init__(self) -> None:
        if not (self.sigma > 0 and 0 < self.rate <= 1 and self.count >= 0):
            raise AccountingError(f"not a Poisson-subsampled Gaussian event: {self}")


def gaussian(sigma: float, count: int = 1) -> PoissonGaussian:
    """``count`` releases by the Gaussian mechanism with noise multiplier ``sigma``."""
    return PoissonGaussian(sigma=sigma, rate=1.0, count=count)


@dataclass(frozen=True)
class ExponentialPicks:
    """``count`` adaptive picks, each ε₀-DP with log-likelihood ratios of range ε₀.

    For scores that may all move by Δ when one record is zeroed. ``count`` is the number of *picks*:
    a Gumbel-top-m draw is m of them.
    """

    kind: ClassVar[str] = "exponential_picks"
    epsilon0: float
    count: int = 1

    def __post_init__(self) -> None:
        if not (self.epsilon0 > 0 and self.count >= 0):
            raise AccountingError(f"not an exponential-mechanism event: {self}")


@dataclass(frozen=True)
class GumbelFreeze:
    """``count`` whole score freezes in which zeroing a record moves only its own score.

    The noisy scores ``ε₀u/2Δ + Gumbel`` of a freeze differ between neighbours by a shift of at most
    ``s = ε₀/2``, of either sign, in a single coordinate. Any number of picks is post-processing.
    """

    kind: ClassVar[str] = "gumbel_freeze"
    epsilon0: float
    count: int = 1

    def __post_init__(self) -> None:
        if not (self.epsilon0 > 0 and self.count >= 0):
            raise AccountingError(f"not a Gumbel-freeze event: {self}")

    @property
    def shift(self) -> float:
        return self.epsilon0 / 2


Event = PoissonGaussian | ExponentialPicks | GumbelFreeze
_KINDS: dict[str, type] = {cls.kind: cls for cls in (PoissonGaussian, ExponentialPicks, GumbelFreeze)}


def to_dict(event: Event) -> dict[str, Any]:
    return {"kind": event.kind, **asdict(event)}


def from_dict(data: dict[str, Any]) -> Event:
    fields = dict(data)
    kind = fields.pop("kind")
    if kind not in _KINDS:
        raise AccountingError(f"unknown privacy event {kind!r}")
    return _KINDS[kind](**fields)


def merge(events: list[Event]) -> tuple[Event, ...]:
    """Add up the counts of equal events; order does not matter for the bounds used here."""
    totals: dict[Event, int] = {}
    for event in events:
        key = replace(event, count=1)
        totals[key] = totals.get(key, 0) + event.count
    return tuple(replace(key, count=count) for key, count in totals.items() if count)
