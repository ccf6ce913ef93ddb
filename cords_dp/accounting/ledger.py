"""The ledger: which events were charged to which dataset, on disk before any noise is drawn.

A crash may waste budget, it never regains any: `Ledger.charge` returns only after the entry has been
written, flushed to the device and renamed into place. Reloading an older checkpoint does not lower
what was spent, since the ledger is a file of its own that only grows.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cords_dp.accounting.events import Event, from_dict, merge, to_dict
from cords_dp.errors import AccountingError, BudgetExceededError

TRAINING_DATA = "D"
VALIDATION_DATA = "V"


@dataclass(frozen=True)
class Entry:
    """One charge. ``phase`` names the part of the run: warm start, training, selection, validation."""

    dataset: str
    phase: str
    event: Event


@dataclass
class Ledger:
    """Charged events and the allowance: the planned number of each event, beyond which charges are refused.

    The allowance comes from the plan, whose total was shown to fit the budget before the run. ``fingerprint`` names the
    plan and ``id`` this ledger: a checkpoint is continued only with the ledger it was written under.
    """

    allowance: tuple[Entry, ...] | None = None
    path: Path | None = None
    entries: list[Entry] = field(default_factory=list)
    attempts: int = 0
    fingerprint: str = ""
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    def charge(self, dataset: str, phase: str, event: Event) -> None:
        """Record ``event`` durably. Call this before the noise of the event is drawn."""
        entry = Entry(dataset, phase, event)
        to_dict(event)  # refuses what could not be read back
        if self.allowance is not None:
            self._refuse_beyond_allowance(entry)
        self.entries.append(entry)
        self.save()

    def _refuse_beyond_allowance(self, entry: Entry) -> None:
        planned = dict(_counts([e for e in self.allowance or () if e.dataset == entry.dataset]))
        spent = dict(_counts([e for e in [*self.entries, entry] if e.dataset == entry.dataset]))
        for kind, count in spent.items():
            if count > planned.get(kind, 0):
                raise BudgetExceededError(
                    f"the budget of {entry.dataset} is used up: the plan pays for {planned.get(kind, 0)} "
                    f"events of kind {kind.kind!r} and number {count} was asked for. Steps repeated after "
                    "an interruption are charged again; keep the last checkpoint as the result."
                )

    def events(self, dataset: str, phase: str | None = None) -> list[Event]:
        return [e.event for e in self.entries if e.dataset == dataset and phase in (None, e.phase)]

    def phases(self, dataset: str) -> list[str]:
        return list(dict.fromkeys(e.phase for e in self.entries if e.dataset == dataset))

    def save(self) -> None:
        if self.path is not None:
            if self.path.is_file() and json.loads(self.path.read_text()).get("id") != self.id:
                raise AccountingError(
                    f"another run writes to {self.path.name} in the same folder; use separate folders"
                )
            write_durably(self.path, json.dumps(self.to_dict(), indent=1))

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": 1,
            "id": self.id,
            "fingerprint": self.fingerprint,
            "attempts": self.attempts,
            "entries": [{"dataset": e.dataset, "phase": e.phase, "event": to_dict(e.event)} for e in self.entries],
        }

    @classmethod
    def load(cls, path: Path, allowance: tuple[Entry, ...] | None = None, fingerprint: str | None = None) -> Ledger:
        """Continue the ledger at ``path``; counts as one more attempt at the run."""
        try:
            data = json.loads(path.read_text())
            entries = [Entry(e["dataset"], e["phase"], from_dict(e["event"])) for e in data["entries"]]
            attempts, identity, written_for = int(data["attempts"]), data["id"], data["fingerprint"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise AccountingError(f"cannot read the privacy ledger {path.name}: {error}") from error
        if fingerprint is not None and written_for != fingerprint:
            raise AccountingError(
                f"{path.name} belongs to a run with another budget or schedule; resume with that run's config, or "
                "start afresh in another folder"
            )
        ledger = cls(allowance, path, entries, attempts + 1, written_for, identity)
        ledger.save()
        return ledger


def _counts(entries: list[Entry]) -> list[tuple[Event, int]]:
    return [(event.with_count(1), event.count) for event in merge([e.event for e in entries])]


def write_durably(path: Path, text: str) -> None:
    """Write through a temporary file: after a crash the old content or the new one is there, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(path.suffix + ".tmp")
    with open(temporary, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
