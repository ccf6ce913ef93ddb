"""What a run holds of an account, and which events a record pays for when several runs read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cords_dp.accounting.branches import BranchMaximum
from cords_dp.accounting.events import Event
from cords_dp.accounting.ledger import Entry
from cords_dp.errors import AccountingError

RESERVED, SETTLED = "reserved", "settled"


@dataclass(frozen=True)
class Holding:
    """The planned events of one run or, once it is settled, those that it charged.

    ``refundable``: may the difference be given back? See `account` for when that is sound.
    """

    run: str
    split: str
    date: str
    state: str
    refundable: bool
    entries: tuple[Entry, ...]

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "entries": [entry.to_dict() for entry in self.entries]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Holding:
        try:
            return cls(**{**data, "entries": tuple(Entry.from_dict(entry) for entry in data["entries"])})
        except (KeyError, TypeError) as error:
            raise AccountingError(f"not a holding of an account: {data!r}") from error

    def words(self) -> str:
        """The events, for people: "D: 40 × poisson_gaussian(sigma=2, rate=0.1)"."""
        return "; ".join(f"{entry.dataset}: {_words(entry.event)}" for entry in self.entries)


def larger(held: Sequence[Entry], wanted: Sequence[Entry]) -> tuple[Entry, ...]:
    """One entry per dataset, phase and event, with the larger of the two counts."""
    counts: dict[Entry, int] = {}
    for entries in (held, wanted):
        own: dict[Entry, int] = {}
        for entry in entries:
            key = replace(entry, event=entry.event.with_count(1))
            own[key] = own.get(key, 0) + entry.event.count
        counts.update({key: max(count, counts.get(key, 0)) for key, count in own.items()})
    return tuple(replace(key, event=key.event.with_count(count)) for key, count in counts.items())


def paid_events(holdings: Iterable[Holding]) -> list[Event]:
    """The events that a record pays for at most, wherever the splits put it.

    Runs of equal ``split`` have a record in D, or in V, for good: it pays for D's events of all of them or for V's.
    Between runs that do not share a split it may change sides, so each counts with the larger side.
    """
    groups: dict[tuple[str, str], list[Entry]] = {}
    for holding in holdings:
        key = ("split", holding.split) if holding.split else ("run", holding.run)
        groups.setdefault(key, []).extend(entry for entry in holding.entries if entry.event.count)
    events: list[Event] = []
    for entries in groups.values():
        datasets = dict.fromkeys(entry.dataset for entry in entries)
        sides = tuple(tuple(e.event for e in entries if e.dataset == dataset) for dataset in datasets)
        events.extend(sides[0] if len(sides) == 1 else [BranchMaximum(sides)] if sides else [])
    return events


def _words(event: Event) -> str:
    values = [f"{name}={value:g}" for name, value in event.parameters().items() if isinstance(value, float)]
    return f"{event.count} × {event.kind}" + (f"({', '.join(values)})" if values else "")
