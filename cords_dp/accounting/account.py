"""The account of a dataset: a total (ε, δ) for all runs on it together, in one durable file.

A run *reserves* its planned events before it reads data and is refused if they do not fit beside all others'.

Formal guarantee. Everything that the runs of one account release together is (ε, δ)-DP for zero-out of one record, or
of one owner where that is the unit of its runs, ε and δ being the account's total, if every run that reads the data
reserves first and charges no more than it reserved.

* ``adaptive=True`` (the default): runs may be planned, started, stopped and resumed by looking at the results of other
  runs, and may overlap in time. Reservations are admitted by `RenyiFilter`; see there for the proof. The filter counts
  events that have begun or may still begin, so what a run reserved and did not charge can be given back once it has
  ended. One exception, the very first run: it was planned before anything was released, so the numerical composition of
  its plan, which is lower, is valid for it. If only that admits it, nothing of it is given back, hence no later run
  is ever admitted, whatever came out.
* ``adaptive=False``: all events of all runs in one numerical composition, some 15 % less. A theorem only if
  every run was planned without looking at what other runs on this data released (a grid that was fixed in
  advance). Nothing is given back, since when a run stops may depend on what it saw.

What is not covered: runs that use no account or another one, and a file that was deleted or put back from a backup.
"""

from __future__ import annotations

import datetime
import json
import math
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cords_dp.accounting.branches import BranchMaximum
from cords_dp.accounting.composition import epsilon_bound
from cords_dp.accounting.events import Event, merge
from cords_dp.accounting.journal import Journal, locked
from cords_dp.accounting.ledger import Entry, Ledger
from cords_dp.accounting.plan_costs import PlanCosts, Sides
from cords_dp.accounting.renyi_filter import RenyiFilter
from cords_dp.errors import AccountingError, BudgetExceededError
from cords_dp.files import remove_stale, write_durably

_VERSION = 1
RECORD, OWNER = "record", "owner"  # whose contribution a run hides
_MANY = 50  # runs, or plans; beyond it what is only shown is told roughly, or not at all
_WAIT = 60.0  # seconds for which another process may hold the file
_THREADS = threading.RLock()  # the file's lock tells processes apart, not threads
_PROVISO = {
    True: "however later runs depend on the results of earlier ones",
    False: "provided that no run was planned by looking at the results of another",
}


@dataclass(frozen=True)
class Account:
    """The privacy total of one dataset, and the file that records how much of it each run holds."""

    path: Path
    epsilon: float
    delta: float
    adaptive: bool = True

    # -- open -------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, path: Path, epsilon: float, delta: float, *, adaptive: bool = True) -> Account:
        """Open the account at ``path``, or begin it. Its total is set once: another one is refused."""
        RenyiFilter(epsilon, delta)  # refuses what is no total
        account = cls(Path(path), float(epsilon), float(delta), bool(adaptive))
        with _THREADS:
            if not account.path.exists():
                account._begin()
        found = cls.read(account.path)
        if found != account:
            raise AccountingError(
                f"the account {account.path.name} has a total of {found._total()} and was opened with "
                f"{account._total()}; a total that is changed after something was released promises nothing"
            )
        return found

    @classmethod
    def read(cls, path: Path) -> Account:
        """Read the account at ``path``, with the total that is written there."""
        with _opened(Path(path)) as (_, header, _holdings):
            return cls(Path(path), header["epsilon"], header["delta"], header["adaptive"])

    def _begin(self) -> None:
        total = {"epsilon": self.epsilon, "delta": self.delta, "adaptive": self.adaptive}
        header = {"account": _VERSION, "id": secrets.token_hex(8), **total}
        try:
            Journal.create(self.path, header, wait=_WAIT).close()
            remove_stale(self.path.parent)  # of a process that was killed while it did the same
        except AccountingError:
            if not self.path.exists():  # otherwise another process was faster
                raise

    @property
    def id(self) -> str:
        """The account's own number, wherever its file lies."""
        with Journal.open(self.path, wait=_WAIT) as journal:
            return str(next(journal.records()).get("id", self.path.name))

    # -- reserve and settle -----------------------------------------------------------------------------

    def reserve(self, run: str, planned: Sequence[Entry], *, split: str = "", unit: str = RECORD) -> Reservation:
        """Set ``planned`` aside for ``run``, durably, or refuse. Call this before data is read.

        A run that is resumed under its old name reserves only what it does not hold yet. ``split`` is a digest of the
        data and its split into D and V; without one the account assumes that other runs split the data otherwise.
        ``unit``: whose contribution the events hide. Events of owners and of records do not add up to anything, so an
        account has runs of one unit.
        """
        if not run or not planned:
            raise AccountingError("an account holds named runs with events; a run without noise has no place in it")
        remove_stale(_marks(self.path))  # of runs that were killed
        with _opened(self.path) as (journal, _, holdings):
            held = holdings.get(run)
            if held is not None and held.split != split:
                raise AccountingError(f"run {run} is in the account {self.path.name} with another split of the data")
            if holdings.units() - {unit}:
                raise AccountingError(
                    f"the account {self.path.name} adds up what one {OWNER if unit == RECORD else RECORD} pays, and "
                    f"run {run} protects one {unit}: the two do not add up; give it an account of its own"
                )
            entries = larger(held.entries if held else (), planned)
            if held is None or entries != held.entries:
                charged = held.charged if held else ()
                wanted = Holding(run, split, _now(), RESERVED, self.adaptive, entries, charged, unit)
                journal.append(self._admitted(holdings, wanted).to_dict())
            elif held.state != RESERVED:
                journal.append(replace(held, date=_now(), state=RESERVED).to_dict())
        return Reservation(self, run)

    def _admitted(self, holdings: Holdings, wanted: Holding) -> Holding:
        share = self.share_of(holdings.with_run(wanted), remember=True)
        if share > 1 and not holdings:  # the first run's plan depends on nothing that was released
            wanted = replace(wanted, refundable=False)
            share = self.share_of({wanted.run: wanted})
        if share > 1:
            raise BudgetExceededError(
                f"the account {self.path.name} allows {self._total()} for all runs together. Its {len(holdings)} runs "
                f"hold {self.share_of(holdings):.1%} of that; with run {wanted.run} it would be {share:.1%}. Plan a "
                "smaller run, or settle runs that have ended."
            )
        return wanted

    def settle(self, run: str, charged: Sequence[Entry]) -> None:
        """Note what ``run`` charged until it ended, and free the rest of its reservation where that is sound.

        What it is known to have charged never becomes less: of two ledgers of one run the larger counts.
        """
        with _opened(self.path) as (journal, _, holdings):
            held = holdings.get(run)
            if held is None:
                raise AccountingError(f"run {run} has no reservation in the account {self.path.name}")
            spent, most = larger(held.charged, charged), larger(held.entries, charged)
            beyond = most != held.entries
            kept = spent if held.refundable and not beyond else most
            journal.append(replace(held, date=_now(), state=SETTLED, entries=kept, charged=spent).to_dict())
        if beyond:
            raise AccountingError(
                f"run {run} charged more than it had reserved in the account {self.path.name}; the account counts what "
                "was charged, and its total may be exceeded"
            )

    # -- read -------------------------------------------------------------------------------------------

    def holdings(self) -> Holdings:
        """Return what each run holds, by its name, in order of first reservation."""
        with _opened(self.path) as (_, _, holdings):
            return holdings

    def share(self) -> float:
        """Return the share of the total that is held, reservations included: 1 is all of it."""
        return self.share_of(self.holdings())

    def epsilon_so_far(self) -> float:
        """Return ε of all that is held, as if planned in advance. What is promised is the account's total."""
        return self._epsilon(self.holdings())

    def to_dict(self) -> dict[str, Any]:
        """Return everything that `text` says, in JSON's terms."""
        return self._described(self.holdings())

    def text(self) -> str:
        """Return a table for people: who holds what, how much of the total that is, what is left."""
        holdings = self.holdings()
        data = self._described(holdings)
        rows = [["run", "last changed", "state", "used so far", "events"]]
        for run in data["runs"]:
            events = holdings[run["run"]].describe()
            rows.append([run["run"], run["date"], run["state"], _percent(run["share_so_far"]), events])
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = ["  ".join([*map(str.ljust, row, widths), row[4]]) for row in rows]
        head = f"{self.path.name}: {self._total()} for all runs together, {_PROVISO[self.adaptive]}."
        if any(holding.unit == OWNER for holding in holdings.values()):
            head += " The unit is an owner, with all of its records."
        foot = (
            f"Used {data['share']:.1%}, left {data['share_left']:.1%}. What is promised is the total; the same events, "
            f"planned in advance, would be ε = {data['epsilon_so_far']:.4f}."
        )
        return "\n".join([head, "", *lines, "", foot])

    def _described(self, holdings: Holdings) -> dict[str, Any]:
        shares = self._shares(holdings)
        runs = [{**holding.to_dict(), "share_so_far": shares[run]} for run, holding in holdings.items()]
        share = self.share_of(holdings)
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adaptive": self.adaptive,
            "share": share,
            "share_left": max(0.0, 1 - share),
            "epsilon_so_far": self._epsilon(holdings),
            "runs": runs,
        }

    def _shares(self, holdings: Holdings) -> dict[str, float | None]:
        """Return the share that was held with each run; None before the last of many, where it would take hours."""
        shares, seen = dict[str, float | None](), dict[str, Holding]()
        for run, holding in holdings.items():
            seen[run] = holding
            if len(seen) == len(holdings):
                shares[run] = self.share_of(holdings)
            else:
                shares[run] = self.share_of(seen) if len(holdings) <= _MANY else None
        return shares

    def _epsilon(self, holdings: Mapping[str, Holding]) -> float:
        events = paid_events(holdings.values())
        return epsilon_bound(events, self.delta, "auto" if len(merge(events)) <= _MANY else "glance").epsilon

    def share_of(self, holdings: Mapping[str, Holding], *, remember: bool = False) -> float:
        """Return the held share of the total: by the filter, or by numerical composition where that is a theorem.

        ``remember``: note beside the account what many plans cost, for the next time.
        """
        fixed = len(holdings) == 1 and not any(holding.refundable for holding in holdings.values())
        if not self.adaptive or fixed:
            return epsilon_bound(paid_events(holdings.values()), self.delta).epsilon / self.epsilon
        room = RenyiFilter(self.epsilon, self.delta)
        costs = PlanCosts(self.path, room.orders)
        if isinstance(holdings, Holdings):
            plans = holdings.plans()
            known = costs.of({plan: partial(holdings.entries_of, run) for run, (_, plan) in plans.items()},
                             remember=remember)  # fmt: skip
            paid = [(split, known[plan]) for split, plan in plans.values()]
        else:
            paid = [(holding.split, costs.computed(holding.entries)) for holding in holdings.values()]
        return room.share_of_sums(dict(zip(room.orders, _paid(paid, len(room.orders)), strict=True)))

    def _total(self) -> str:
        kind = "" if self.adaptive else ", plans fixed in advance"
        return f"(ε = {self.epsilon:g}, δ = {self.delta:g}{kind})"


@dataclass(frozen=True)
class Reservation:
    """One run's part of an account.

    Formal guarantee: one reservation admits one sequence of charges. The account remembers the head of the run's
    journal after every record (`witness`, which the run's `Ledger` calls before a charge counts as made). The head
    names all records before it, and every attempt begins with a random number; so of several copies of a run's folder,
    made whenever, the first to continue is known from then on, and a charge to any other is refused. A kill between
    the record and its witness loses nothing: the last record but one is accepted when the run is resumed.
    """

    account: Account
    run: str

    def witness(self, known_by: tuple[str, ...], head: str) -> None:
        """Remember that the run's journal has come to ``head``; refuse one that is not known by any of these heads."""
        mark = _marks(self.account.path) / self.run
        with _THREADS, locked(mark, _WAIT):
            known = mark.read_text() if mark.is_file() else ""
            if known not in known_by:
                raise AccountingError(
                    f"run {self.run} has come further, under the account {self.account.path.name}, than this copy of "
                    "its folder knows: what it would release on top was not paid for. Resume the folder that went on, "
                    "or start afresh in another folder"
                )
            try:
                write_durably(mark, head)
            except OSError as error:
                raise AccountingError(f"cannot write {mark.name}: {error.strerror or error}") from error

    def settle(self, charged: Sequence[Entry]) -> None:
        """Settle with the ledger's entries, once the run has ended and its ledger is closed."""
        self.account.settle(self.run, charged)


def _marks(account: Path) -> Path:
    """Return the folder beside an account where each of its runs has a file that says how far it has come."""
    return account.with_name(account.name + ".runs")


_NOTE = "account"  # in the ledger of a run that is under one


def ledger_under(
    reservation: Reservation | None,
    path: Path,
    allowance: tuple[Entry, ...],
    *,
    fingerprint: str,
    name: str,
    binding: str = "",
    resume: bool,
) -> Ledger:
    """Begin the ledger of a run at ``path``, or continue the one that is there, under the run's reservation if any.

    A run stays under the account that it began under, or under none: only that one knows how far it has come. One that
    was killed before it had charged anything has not begun.
    """
    witness = None if reservation is None else reservation.witness
    account = "" if reservation is None else reservation.account.id
    if not (resume and path.is_file()):
        ledger = Ledger(allowance, path, fingerprint=fingerprint, binding=binding, id=name, witness=witness)
        ledger.save()
        if account:
            ledger.note(_NOTE, account)
        return ledger
    ledger = Ledger.load(path, allowance, fingerprint, binding, witness)
    if account and not ledger.charges and _NOTE not in ledger.notes:
        ledger.note(_NOTE, account)
    if ledger.notes.get(_NOTE, "") != account:
        ledger.close()
        raise AccountingError(
            "the run began under another account of its data, or under none; resume it with the same privacy.account"
        )
    return ledger


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Journal, dict[str, Any], Holdings]]:
    """Open the journal, locked and read to its end: no other process can write before a decision is on record."""
    if not path.is_file():
        start = f"cords-dp account {path.name} --create --epsilon TOTAL --delta TOTAL"
        raise AccountingError(f"cannot read {path.name}: it is not there. An account is begun by {start}")
    with _THREADS, Journal.open(path, wait=_WAIT) as journal:
        header, *records = journal.records(_line)
        if header.get("account") != _VERSION or not {"epsilon", "delta", "adaptive"} <= header.keys():
            raise AccountingError(f"cannot read {path.name}: it is no account of this version of cords_dp")
        yield journal, header, Holdings({str(record.get("run")): record for record in records})


_PLAN = "plan"  # of a record, the part that is parsed when somebody asks for it


def _line(body: bytes) -> dict[str, Any]:
    """Read a record of an account, but for its plan."""
    head, comma, plan = body.partition(b',"entries":')  # within a string its quotes would be escaped
    return {**json.loads(head + b"}"), _PLAN: b'{"entries":' + plan} if comma else dict(json.loads(body))


def _entries(listed: Any) -> tuple[Entry, ...]:
    if not isinstance(listed, list):
        raise AccountingError(f"not a list of charges: {listed!r}")
    return tuple(map(Entry.from_dict, listed))


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


RESERVED, SETTLED = "reserved", "settled"


@dataclass(frozen=True)
class Holding:
    """The planned events of one run or, once it is settled, those that it charged.

    ``refundable``: whether the difference may be given back; the module says when that is sound. ``charged``: what it
    is known to have charged, which never becomes less. ``unit``: whose contribution its events hide.
    """

    run: str
    split: str
    date: str
    state: str
    refundable: bool
    entries: tuple[Entry, ...]
    charged: tuple[Entry, ...] = ()
    unit: str = RECORD

    def to_dict(self) -> dict[str, Any]:
        lists = {name: [entry.to_dict() for entry in getattr(self, name)] for name in ("entries", "charged")}
        rest = {name: value for name, value in self.__dict__.items() if name not in lists}
        if self.unit == RECORD:  # as accounts were written when there was no other unit
            del rest["unit"]
        return {**rest, **lists}  # `_line` leaves what follows "entries" for later

    def describe(self) -> str:
        """Return the events for people: "D: 40 × poisson_gaussian(sigma=2, rate=0.1)"."""
        return "; ".join(f"{entry.dataset}: {_describe_event(entry.event)}" for entry in self.entries)


class Holdings(Mapping[str, Holding]):
    """What each run of an account holds, by its name: the last word on it.

    A plan is parsed when somebody asks for it, and equal plans, as most of ten thousand runs have, are one object, so
    that whoever adds them up can tell by identity.
    """

    def __init__(self, records: Mapping[str, Mapping[str, Any]]):
        self._records = dict(records)
        self._plans = dict[bytes, dict[str, Any]]()
        if odd := [record for record in self._records.values() if not {"run", "split", _PLAN} <= record.keys()]:
            raise AccountingError(f"not a holding of an account: {odd[0]!r}")

    def __getitem__(self, run: str) -> Holding:
        record = dict(self._records[run])
        try:
            return Holding(**self._parsed(record.pop(_PLAN)), **record)
        except (KeyError, TypeError) as error:
            raise AccountingError(f"not a holding of an account: {self._records[run]!r}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def with_run(self, holding: Holding) -> Holdings:
        """Return these, with another word on one run."""
        body = json.dumps(holding.to_dict(), separators=(",", ":")).encode()
        return Holdings({**self._records, holding.run: _line(body)})

    def units(self) -> set[str]:
        """Return whose contributions are hidden. An account of records does not mention it."""
        units = {record.get("unit", RECORD) for record in self._records.values() if b'"unit":' not in record[_PLAN]}
        return units | {self[run].unit for run, record in self._records.items() if b'"unit":' in record[_PLAN]}

    def plans(self) -> dict[str, tuple[str, bytes]]:
        """Return the split and the plan's JSON of each run."""
        return {run: (record["split"], record[_PLAN]) for run, record in self._records.items()}

    def entries_of(self, run: str) -> tuple[Entry, ...]:
        return self[run].entries

    def _parsed(self, plan: bytes) -> dict[str, Any]:
        if plan not in self._plans:
            fields = {"charged": [], **json.loads(plan)}
            self._plans[plan] = {**fields, **{name: _entries(fields[name]) for name in ("entries", "charged")}}
        return self._plans[plan]


def larger(held: Sequence[Entry], wanted: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return one entry per dataset, phase and event, with the larger of the two counts."""
    counts: dict[Entry, int] = {}
    for entries in (held, wanted):
        own: dict[Entry, int] = {}
        for entry in entries:
            key = replace(entry, event=entry.event.with_count(1))
            own[key] = own.get(key, 0) + entry.event.count
        counts.update({key: max(count, counts.get(key, 0)) for key, count in own.items()})
    return tuple(replace(key, event=key.event.with_count(count)) for key, count in counts.items())


def paid_events(holdings: Iterable[Holding]) -> list[Event]:
    """Return the events that a record pays for at most, wherever the splits put it.

    Runs of equal ``split`` have a record in D, or in V, for good: it pays for D's events of all of them or for V's.
    Between runs that do not share a split it may change sides, so each counts with the larger side.
    """
    equal: dict[tuple[str, int], list[Holding]] = {}  # ten thousand runs have few plans, and few splits
    for holding in holdings:
        equal.setdefault((holding.split, id(holding.entries)), []).append(holding)
    events, splits = list[Event](), dict[str, list[Entry]]()
    for (split, _), runs in equal.items():
        if split:
            splits.setdefault(split, []).extend(_times(entry, len(runs)) for entry in runs[0].entries)
        else:
            events.extend(event.with_count(len(runs) * event.count) for event in _worse_side(runs[0].entries))
    return events + [event for entries in splits.values() for event in _worse_side(entries)]


def _paid(runs: Iterable[tuple[str, Sides]], orders: int) -> list[float]:
    """Return the divergence that a record pays for at most, at each order: the sum over `paid_events`.

    ``runs``: the split and the costs of each. The divergence of a choice is that of its dearest branch.
    """
    splits: dict[Any, dict[str, list[tuple[float, ...]]]] = {}
    for number, (split, sides) in enumerate(runs):
        for dataset, costs in sides.items():
            splits.setdefault(split or number, {}).setdefault(dataset, []).append(costs)
    total = [0.0] * orders
    for by_dataset in splits.values():
        for place in range(orders):
            total[place] += max(math.fsum(costs[place] for costs in listed) for listed in by_dataset.values())
    return total


def _times(entry: Entry, number: int) -> Entry:
    return replace(entry, event=entry.event.with_count(number * entry.event.count))


def _worse_side(entries: Iterable[Entry]) -> list[Event]:
    """Return what a record pays that is on one side of a split for good."""
    sides: dict[str, list[Event]] = {}
    for entry in entries:
        if entry.event.count:
            sides.setdefault(entry.dataset, []).append(entry.event)
    if len(sides) > 1:
        return [BranchMaximum(tuple(map(tuple, sides.values())))]
    return next(iter(sides.values()), [])


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _describe_event(event: Event) -> str:
    values = [f"{name}={value:g}" for name, value in event.parameters().items() if isinstance(value, float)]
    return f"{event.count} × {event.kind}" + (f"({', '.join(values)})" if values else "")
