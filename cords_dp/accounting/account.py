"""The account of a dataset: a total (ε, δ) for all runs on it together, in one durable file.

A run *reserves* its planned events before it reads data and is refused if they do not fit beside all others'.

Formal guarantee. Everything that the runs of one account release together is (ε, δ)-DP for zero-out of one record,
ε and δ being the account's total, if every run that reads the data reserves first and charges no more than it reserved.

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
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cords_dp.accounting.composition import epsilon_bound
from cords_dp.accounting.holding import RESERVED, SETTLED, Holding, larger, paid_events
from cords_dp.accounting.journal import Journal
from cords_dp.accounting.ledger import Entry
from cords_dp.accounting.renyi_filter import RenyiFilter
from cords_dp.errors import AccountingError, BudgetExceededError

_VERSION = 1
_WAIT = 60.0  # seconds for which another process may hold the file
_THREADS = threading.RLock()  # the file's lock tells processes apart, not threads
_PROVISO = {
    True: "however later runs depend on the results of earlier ones",
    False: "provided that no run was planned by looking at the results of another",
}


@dataclass(frozen=True)
class Account:
    """A total of privacy for one dataset, and the file that remembers who has how much of it."""

    path: Path
    epsilon: float
    delta: float
    adaptive: bool = True

    # -- open -------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, path: Path, epsilon: float, delta: float, *, adaptive: bool = True) -> Account:
        """The account at ``path``, begun if there is none. Its total is set once: another one is refused."""
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
        """The account at ``path``, with the total that is written there."""
        with _opened(Path(path)) as (_, header, _holdings):
            return cls(Path(path), header["epsilon"], header["delta"], header["adaptive"])

    def _begin(self) -> None:
        header = {"account": _VERSION, "epsilon": self.epsilon, "delta": self.delta, "adaptive": self.adaptive}
        try:
            Journal.create(self.path, header, wait=_WAIT).close()
        except AccountingError:
            if not self.path.exists():  # otherwise another process was faster
                raise

    # -- reserve and settle -----------------------------------------------------------------------------

    def reserve(self, run: str, planned: Sequence[Entry], *, split: str = "") -> Reservation:
        """Set ``planned`` aside for ``run``, durably, or refuse. Call this before data is read.

        A run that is resumed under its old name reserves only what it does not hold yet. ``split`` is a digest of the
        data and its split into D and V; without one the account assumes that other runs split the data otherwise.
        """
        if not run or not planned:
            raise AccountingError("an account holds named runs with events; a run without noise has no place in it")
        with _opened(self.path) as (journal, _, holdings):
            held = holdings.get(run)
            if held is not None and held.split != split:
                raise AccountingError(f"run {run} is in the account {self.path.name} with another split of the data")
            entries = larger(held.entries if held else (), planned)
            if held is None or entries != held.entries:
                wanted = Holding(run, split, _now(), RESERVED, self.adaptive, entries)
                journal.append(self._admitted(holdings, wanted).to_dict())
            elif held.state != RESERVED:
                journal.append(replace(held, date=_now(), state=RESERVED).to_dict())
        return Reservation(self, run)

    def _admitted(self, holdings: dict[str, Holding], wanted: Holding) -> Holding:
        after = {**holdings, wanted.run: wanted}
        share = self._share(after)
        if share > 1 and not holdings:  # the first run's plan depends on nothing that was released
            wanted = replace(wanted, refundable=False)
            share = self._share({wanted.run: wanted})
        if share > 1:
            raise BudgetExceededError(
                f"the account {self.path.name} allows {self._total()} for all runs together. Its {len(holdings)} runs "
                f"hold {self._share(holdings):.1%} of that; with run {wanted.run} it would be {share:.1%}. Plan a "
                "smaller run, or settle runs that have ended."
            )
        return wanted

    def settle(self, run: str, charged: Sequence[Entry]) -> None:
        """Note what ``run`` charged until it ended; what it reserved beyond that is free again where that is sound."""
        with _opened(self.path) as (journal, _, holdings):
            held = holdings.get(run)
            if held is None:
                raise AccountingError(f"run {run} has no reservation in the account {self.path.name}")
            spent, most = larger((), charged), larger(held.entries, charged)
            beyond = most != held.entries
            kept = spent if held.refundable and not beyond else most
            journal.append(replace(held, date=_now(), state=SETTLED, entries=kept).to_dict())
        if beyond:
            raise AccountingError(
                f"run {run} charged more than it had reserved in the account {self.path.name}; the account counts what "
                "was charged, and its total may be exceeded"
            )

    # -- read -------------------------------------------------------------------------------------------

    def holdings(self) -> dict[str, Holding]:
        """What each run holds, by its name, in order of first reservation."""
        with _opened(self.path) as (_, _, holdings):
            return holdings

    def share(self) -> float:
        """How much of the total is held, reservations included: 1 is all of it."""
        return self._share(self.holdings())

    def epsilon_so_far(self) -> float:
        """ε of all that is held, as if it had been planned in advance. What is promised is the account's total."""
        return epsilon_bound(paid_events(self.holdings().values()), self.delta).epsilon

    def to_dict(self) -> dict[str, Any]:
        """Everything that `text` says, in JSON's terms."""
        return self._described(self.holdings())

    def text(self) -> str:
        """A table for people: who holds what, how much of the total that is, what is left."""
        holdings = self.holdings()
        data = self._described(holdings)
        rows = [["run", "last changed", "state", "used so far", "events"]]
        for run in data["runs"]:
            words = holdings[run["run"]].words()
            rows.append([run["run"], run["date"], run["state"], f"{run['share_so_far']:.1%}", words])
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = ["  ".join([*map(str.ljust, row, widths), row[4]]) for row in rows]
        head = f"{self.path.name}: {self._total()} for all runs together, {_PROVISO[self.adaptive]}."
        foot = (
            f"Used {data['share']:.1%}, left {data['share_left']:.1%}. What is promised is the total; the same events, "
            f"planned in advance, would be ε = {data['epsilon_so_far']:.4f}."
        )
        return "\n".join([head, "", *lines, "", foot])

    def _described(self, holdings: dict[str, Holding]) -> dict[str, Any]:
        runs, seen, share = [], dict[str, Holding](), 0.0
        for run, holding in holdings.items():
            seen[run] = holding
            share = self._share(seen)
            runs.append({**holding.to_dict(), "share_so_far": share})
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adaptive": self.adaptive,
            "share": share,
            "share_left": max(0.0, 1 - share),
            "epsilon_so_far": epsilon_bound(paid_events(holdings.values()), self.delta).epsilon,
            "runs": runs,
        }

    def _share(self, holdings: dict[str, Holding]) -> float:
        """What is held of the total: by the filter, or by numerical composition where that is a theorem."""
        events = paid_events(holdings.values())
        fixed = len(holdings) == 1 and not any(holding.refundable for holding in holdings.values())
        if not self.adaptive or fixed:
            return epsilon_bound(events, self.delta).epsilon / self.epsilon
        return RenyiFilter(self.epsilon, self.delta).share(events)

    def _total(self) -> str:
        kind = "" if self.adaptive else ", plans fixed in advance"
        return f"(ε = {self.epsilon:g}, δ = {self.delta:g}{kind})"


@dataclass(frozen=True)
class Reservation:
    """One run's part of an account."""

    account: Account
    run: str

    def settle(self, charged: Sequence[Entry]) -> None:
        """Call this with the ledger's entries once the run has ended and its ledger is closed."""
        self.account.settle(self.run, charged)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Journal, dict[str, Any], dict[str, Holding]]]:
    """The journal, locked and read to its end: whoever decides by what it says is the only one who writes."""
    if not path.is_file():
        raise AccountingError(f"cannot read {path.name}: it is not there")
    with _THREADS, Journal.open(path, wait=_WAIT) as journal:
        header, *records = journal.records()
        if header.get("account") != _VERSION or not {"epsilon", "delta", "adaptive"} <= header.keys():
            raise AccountingError(f"cannot read {path.name}: it is no account of this version of cords_dp")
        holdings: dict[str, Holding] = {}
        for holding in map(Holding.from_dict, records):
            holdings[holding.run] = holding  # the latest word on each run
        yield journal, header, holdings


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
