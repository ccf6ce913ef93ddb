"""Privacy events: what a mechanism did, as data that owns its divergences. Only `composition` turns events into ε.

Every event describes the privacy loss of **one record under zero-out**: the record's contribution to
the query is replaced by the zero vector (or score 0), everything else staying as it is.

A new kind of event is one frozen dataclass: derive from `Event`, write the divergences that you can prove, and
decorate it with `register_event`. Accountants refuse an event whose divergence they need and do not find.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable
from dataclasses import asdict, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from cords_dp.errors import AccountingError

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

PLD_STEP = 1e-4  # every PLD lies on this grid of losses: only then do they compose

E = TypeVar("E", bound="Event")


class Event(ABC):
    """``count`` uses of one mechanism, each possibly depending on the outputs of those before it.

    The divergences below are those of **one** use, whatever ``count`` says, and must hold for every pair of neighbours
    in both directions; accountants compose them ``count`` times. Subclasses are frozen dataclasses, since equal
    events are counted together, with a field ``count``.
    """

    kind: ClassVar[str]
    count: int

    def rdp(self, order: float) -> float:
        """Bound the Rényi divergence of this order from above, for both directions; may be infinite."""
        self._refuse("rdp")

    def pld(self) -> PrivacyLossDistribution:
        """Return a dominating pair for each direction, discretised pessimistically on multiples of `PLD_STEP`."""
        self._refuse("pld")

    def pld_on(self, step: float) -> PrivacyLossDistribution:
        """Return the same on multiples of ``step``, for quick comparisons; an event without it is compared by RDP."""
        self._refuse("rough")

    @property
    def uses(self) -> int:
        """How many compositions it is, for the choice of a grid."""
        return self.count

    def prv(self) -> Any:
        """Return prv-accountant's random variable of the direction in which the record is present."""
        self._refuse("prv")

    def to_dp_event(self) -> DpEvent:
        """Return all ``count`` uses as dp-accounting's event, for its accountants under REPLACE_SPECIAL (zero-out)."""
        self._refuse("dp-accounting")

    def _refuse(self, accountant: str) -> NoReturn:
        raise AccountingError(f"{accountant} has no dominating pair for {self.kind}")

    def with_count(self: E, count: int) -> E:
        return replace(self, count=count)  # type: ignore[type-var]

    def parameters(self) -> dict[str, Any]:
        """Return the fields in JSON's terms; the inverse of `from_parameters`."""
        return asdict(self)  # type: ignore[call-overload]

    @classmethod
    def from_parameters(cls: type[E], parameters: dict[str, Any]) -> E:
        return cls(**parameters)


def is_count(value: Any) -> bool:
    """Return whether this is a number of uses: half an event, or True of them, is a mistake somewhere else."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# --- kinds -------------------------------------------------------------------------------------------


_KINDS: dict[str, type[Event]] = {}


def register_event(cls: type[E]) -> type[E]:
    """Let ledgers hold events of this ``kind`` (a class decorator). A kind is registered once and never replaced."""
    if not (isinstance(cls, type) and issubclass(cls, Event) and is_dataclass(cls)):
        raise AccountingError(f"{cls!r} is not a dataclass derived from Event")
    if not isinstance(getattr(cls, "kind", None), str):
        raise AccountingError(f"{cls.__name__} has no kind: give it a class variable `kind`")
    if cls.kind in _KINDS:
        raise AccountingError(f"events of kind {cls.kind!r} are {_KINDS[cls.kind].__name__}; choose another kind")
    _KINDS[cls.kind] = cls
    return cls


def registered_kinds() -> dict[str, type[Event]]:
    """Return the registered kinds of events by name."""
    return dict(_KINDS)


def to_dict(event: Event) -> dict[str, Any]:
    if _KINDS.get(getattr(event, "kind", "")) is not type(event):
        raise AccountingError(f"{event!r} is not an event of a registered kind; see register_event")
    return {"kind": event.kind, **event.parameters()}


def from_dict(data: dict[str, Any]) -> Event:
    parameters = dict(data)
    kind = parameters.pop("kind", None)
    if kind not in _KINDS:
        raise AccountingError(f"unknown privacy event {kind!r}")
    try:
        return _KINDS[kind].from_parameters(parameters)
    except (TypeError, ValueError) as error:
        raise AccountingError(f"not an event of kind {kind!r}: {error}") from error


def merge(events: Iterable[Event]) -> tuple[Event, ...]:
    """Add up the counts of equal events; order does not matter for the bounds used here."""
    totals: dict[Event, int] = {}
    for event in events:
        if not isinstance(event, Event):
            raise AccountingError(f"{event!r} is not a privacy event, so nobody can say what it costs")
        key = event.with_count(1)
        totals[key] = totals.get(key, 0) + event.count
    return tuple(key.with_count(count) for key, count in totals.items() if count)
