"""The ledger: which events were charged to which dataset, on disk before any noise is drawn.

A crash may waste budget and never regains any: `Ledger.charge` returns only after the entry has been
appended to the ledger's journal and flushed to the device. Reloading an older checkpoint does not lower
what was spent, since the ledger is a file of its own that only grows.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cords_dp.accounting.events import Event, from_dict, to_dict
from cords_dp.accounting.journal import Journal
from cords_dp.errors import AccountingError, BudgetExceededError
from cords_dp.files import remove_stale, write_durably

__all__ = ["TEST_DATA", "TRAINING_DATA", "VALIDATION_DATA", "Entry", "Ledger", "write_durably"]

Witness = Callable[[tuple[str, ...], str], None]
TRAINING_DATA = "D"
VALIDATION_DATA = "V"
TEST_DATA = "T"
_VERSION = 2


@dataclass(frozen=True)
class Entry:
    """One charge. ``phase`` names the part of the run: preparation, warm start, training, selection, …, evaluation."""

    dataset: str
    phase: str
    event: Event

    def to_dict(self) -> dict[str, Any]:
        return {"dataset": self.dataset, "phase": self.phase, "event": to_dict(self.event)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Entry:
        try:
            return cls(str(data["dataset"]), str(data["phase"]), from_dict(data["event"]))
        except (KeyError, TypeError) as error:
            raise AccountingError(f"not a charge: {data!r}") from error


@dataclass
class Ledger:
    """Charged events and the allowance: the planned number of each event, beyond which charges are refused.

    The allowance comes from the plan, whose total was shown to fit the budget before the run. ``fingerprint`` names the
    plan, ``binding`` the data (a digest of dataset section, data seed and split) and ``id`` this ledger: a run is
    continued only with the plan and the data it began with, a checkpoint only with the ledger it was written under.

    A charge costs the same however many came before: one line is appended, and in memory equal charges are counted.
    With ``path = None`` the ledger is in memory only. It can be pickled; a copy does not write to its original's file.

    ``witness`` is called with every record before the charge counts as made: with the chain heads by which the file may
    have been known until now, and its new head (`account.Reservation`). It refuses any other file than the one it
    knows.
    """

    allowance: tuple[Entry, ...] | None = None
    path: Path | None = None
    attempts: int = 0
    fingerprint: str = ""
    binding: str = ""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    witness: Witness | None = field(default=None, repr=False, compare=False)
    charges: int = field(default=0, init=False)
    selected: dict[str, str] = field(default_factory=dict, init=False)
    prepaid: list[Entry] = field(default_factory=list, init=False)
    begun: int = field(default=0, init=False)
    notes: dict[str, str] = field(default_factory=dict, init=False)
    _counts: dict[Entry, int] = field(default_factory=dict, init=False, repr=False)
    _spent: dict[tuple[str, Event], int] = field(default_factory=dict, init=False, repr=False)
    _journal: Journal | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._planned = _by_event(self.allowance or ())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_journal": None, "witness": None}

    # -- charging ---------------------------------------------------------------------------------------

    def charge(self, dataset: str, phase: str, event: Event) -> None:
        """Record ``event`` durably. Call this before the noise of the event is drawn."""
        entry = Entry(dataset, phase, event)
        record = {"charge": entry.to_dict()}  # refuses what could not be read back
        if self.allowance is not None:
            self._refuse_beyond_allowance(entry)
        self._record(record)
        self._count(entry)

    # -- selections ---------------------------------------------------------------------------------------

    def begin_selection(self) -> None:
        """Begin a selection: charges from here to `end_selection` belong to it.

        Formal guarantee: what a selection draws leaves the process only through `end_selection`. If the run is killed
        in between, nobody has seen it; when the run resumes, the selection is drawn anew under the charges that it had
        made. They are in `prepaid`, which is filled by `load` alone: no process draws twice under one charge.
        """
        self._record({"selecting": True})

    def end_selection(self, name: str, digest: str) -> None:
        """Record that selection ``name`` has been released, with this digest: it is never drawn again."""
        self._record({"selected": name, "sha256": digest})
        self.selected[name], self.prepaid = digest, []

    # -- steps ----------------------------------------------------------------------------------------------

    def begin_steps(self, count: int, limit: int) -> None:
        """Spend ``count`` of the ``limit`` steps that were charged together, whatever happens next."""
        if self.begun + count > limit:
            raise BudgetExceededError(
                f"all {limit} steps that were charged together have begun. Steps repeated after an interruption count "
                "again; keep the last checkpoint as the result."
            )
        self._record({"begun": count})
        self.begun += count

    # -- notes ----------------------------------------------------------------------------------------------

    def note(self, key: str, value: str) -> None:
        """Remember a public fact of the run. A resumed run uses it; it cannot be changed."""
        if key not in self.notes:
            self._record({"note": key, "value": value})
            self.notes[key] = value
        elif self.notes[key] != value:
            raise AccountingError(f"the {key} of this run is {self.notes[key]!r}; it cannot become {value!r}")

    def _record(self, record: dict[str, Any]) -> None:
        if self.path is not None:
            journal = self._open_journal()
            journal.append(record)
            self._show(journal.heads[:1])

    def _show(self, known_by: tuple[str, ...]) -> None:
        if self.witness is not None and self._journal is not None:
            self.witness(known_by, self._journal.heads[1])

    def _refuse_beyond_allowance(self, entry: Entry) -> None:
        asked = {(entry.dataset, entry.event.with_count(1)): entry.event.count}
        for key in [*self._spent, *asked]:
            count, planned = self._spent.get(key, 0) + asked.get(key, 0), self._planned.get(key, 0)
            if key[0] == entry.dataset and count > planned:
                raise BudgetExceededError(
                    f"the budget of {entry.dataset} is used up: the plan pays for {planned} "
                    f"events of kind {key[1].kind!r} and number {count} was asked for. Steps repeated after "
                    "an interruption are charged again; keep the last checkpoint as the result."
                )

    def _count(self, entry: Entry) -> None:
        single = entry.event.with_count(1)
        what, whose = Entry(entry.dataset, entry.phase, single), (entry.dataset, single)
        self._counts[what] = self._counts.get(what, 0) + entry.event.count
        self._spent[whose] = self._spent.get(whose, 0) + entry.event.count
        self.charges += 1

    # -- reading ----------------------------------------------------------------------------------------

    @property
    def entries(self) -> list[Entry]:
        """The charges: one entry per dataset, phase and event, counts added up, in order of first appearance."""
        return [Entry(e.dataset, e.phase, e.event.with_count(count)) for e, count in self._counts.items()]

    def events(self, dataset: str, phase: str | None = None) -> list[Event]:
        return [e.event for e in self.entries if e.dataset == dataset and phase in (None, e.phase)]

    def phases(self, dataset: str) -> list[str]:
        return list(dict.fromkeys(e.phase for e in self._counts if e.dataset == dataset))

    def to_dict(self) -> dict[str, Any]:
        """Return charges and names in JSON's terms; ``head`` names the journal's last record, if there is one."""
        head = "" if self._journal is None else self._journal.heads[1]
        entries = [e.to_dict() for e in self.entries]
        return {**self._header(), "head": head, "attempts": self.attempts, "entries": entries}

    # -- on disk ----------------------------------------------------------------------------------------

    def save(self) -> None:
        """Begin the file, so that the run can be continued even if it ends before its first charge."""
        if self.path is not None:
            self._open_journal()

    def close(self) -> None:
        """Release the file to other processes. A charge after this is refused."""
        if self._journal is not None:
            self._journal.close()

    def _open_journal(self) -> Journal:
        assert self.path is not None
        if self._journal is None:
            self._journal = Journal.create(self.path, self._header())
            self._show(("",))
            for entry in self.entries:  # charged while the ledger was in memory only
                self._journal.append({"charge": entry.to_dict()})
        return self._journal

    def _header(self) -> dict[str, Any]:
        return {"version": _VERSION, "id": self.id, "fingerprint": self.fingerprint, "binding": self.binding}

    @classmethod
    def load(
        cls,
        path: Path,
        allowance: tuple[Entry, ...] | None = None,
        fingerprint: str | None = None,
        binding: str | None = None,
        witness: Witness | None = None,
    ) -> Ledger:
        """Continue the ledger at ``path``; counts as one more attempt at the run.

        Refuses a file that is damaged, that was edited, that another process uses, or that belongs to another plan or
        other data. What a crash left of a charge that had not returned is dropped.
        """
        if not path.is_file():
            raise AccountingError(f"cannot read the privacy ledger {path.name}: it is not there")
        journal = Journal.open(path)
        remove_stale(path.parent)  # of the attempt that ended before
        try:
            ledger = cls._replayed(journal, allowance)
            ledger._refuse_foreign(fingerprint, binding)
            heads = journal.heads  # the last record may have been written and not shown to the witness any more
            journal.append({"attempt": ledger.attempts + 1, "nonce": secrets.token_hex(8)})
            ledger.witness = witness
            ledger._show(heads)
        except BaseException:
            journal.close()
            raise
        ledger.attempts += 1
        return ledger

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """Read the ledger at ``path`` without continuing it."""
        with Journal.open(path) as journal:
            return cls._replayed(journal, None)

    @classmethod
    def id_of(cls, path: Path, fingerprint: str | None = None) -> str:
        """Return the name of the ledger at ``path``; refuse a ledger of another plan."""
        journal = Journal.open(path)
        try:
            ledger = cls._from_header(next(iter(journal.records())), path, None)
            ledger._refuse_foreign(fingerprint, None)
            return ledger.id
        finally:
            journal.close()

    @classmethod
    def _replayed(cls, journal: Journal, allowance: tuple[Entry, ...] | None) -> Ledger:
        ledger: Ledger | None = None
        selecting = False
        for record in journal.records():
            if ledger is None:
                ledger = cls._from_header(record, journal.path, allowance)
            elif "charge" in record:
                entry = Entry.from_dict(record["charge"])
                ledger._count(entry)
                if selecting:
                    ledger.prepaid.append(entry)
            elif "attempt" in record:
                ledger.attempts += 1
                selecting = False  # what follows is charged by another process
            elif "selecting" in record:
                selecting = True
            elif "selected" in record:
                ledger.selected[record["selected"]], ledger.prepaid, selecting = record["sha256"], [], False
            elif "note" in record:
                ledger.notes[record["note"]] = record["value"]
            elif "begun" in record:
                ledger.begun += int(record["begun"])
            else:
                raise AccountingError(f"cannot read {journal.path.name}: unknown record {record!r}")
        assert ledger is not None  # a journal has a header
        ledger._journal = journal
        return ledger

    @classmethod
    def _from_header(cls, header: dict[str, Any], path: Path, allowance: tuple[Entry, ...] | None) -> Ledger:
        if header.get("version") != _VERSION or not {"id", "fingerprint", "binding"} <= header.keys():
            raise AccountingError(f"cannot read {path.name}: it is no ledger of this version of cords_dp")
        return cls(allowance, path, fingerprint=header["fingerprint"], binding=header["binding"], id=header["id"])

    def _refuse_foreign(self, fingerprint: str | None, binding: str | None) -> None:
        assert self.path is not None
        if fingerprint is not None and self.fingerprint != fingerprint:
            raise AccountingError(
                f"{self.path.name} belongs to a run with another budget or schedule; resume with that run's config, or "
                "start afresh in another folder"
            )
        if binding is not None and self.binding != binding:
            raise AccountingError(
                f"{self.path.name} belongs to a run on other data: the dataset, its seed or the split into D and V "
                "differs, so what was charged does not cover these records; resume with that run's data, or start "
                "afresh in another folder"
            )


def _by_event(entries: Iterable[Entry]) -> dict[tuple[str, Event], int]:
    counts: dict[tuple[str, Event], int] = {}
    for entry in entries:
        key = (entry.dataset, entry.event.with_count(1))
        counts[key] = counts.get(key, 0) + entry.event.count
    return counts
