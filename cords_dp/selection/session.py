"""One run's selections: each opens the releases that the plan has paid for, and lets the selector draw them.

What a selection has released is kept durably (`SelectionArchive`) before it is used.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cords_dp.accounting import Entry, Event, Ledger
from cords_dp.errors import AccountingError, MechanismError
from cords_dp.files import write_durably
from cords_dp.planning.plan import PrivacyPlan
from cords_dp.processes import World
from cords_dp.selection.context import SelectionContext, Weights
from cords_dp.selection.pool import Pool, checked_pool
from cords_dp.selection.releases import Charge, Releases


class Selections:
    """Selects by the plan's mechanism and charges what it draws.

    ``generators``: the noise for D and for V. ``folder``: where released values are kept; None keeps nothing.

    Several processes (``world``) select together, each on its own records: every one computes its part of what is
    released, gets the same released values, and makes of them a pool of its own records.
    """

    def __init__(
        self,
        context: SelectionContext,
        *,
        ledger: Ledger,
        generators: Mapping[str, np.random.Generator],
        folder: Path | None = None,
        world: World = World(),  # noqa: B008 - frozen
    ):
        if context.plan.mechanism is None:
            raise MechanismError("the plan has no mechanism to select by")
        if world.size > 1 and not context.plan.mechanism.sharded:
            raise MechanismError(f"{context.plan.mechanism.name!r} cannot select in several processes")
        self._world, self._own = world, len(context.training)
        self.plan: PrivacyPlan = context.plan
        self.selector = context.plan.mechanism.build(context)
        self._ledger, self._generators = ledger, generators
        self._archive = SelectionArchive(ledger, folder)
        self.pool: Pool | None = None

    def select(self, weights: Weights, name: str = "") -> Pool:
        """Select a pool at released weights. Charges D and, if private, V.

        ``name`` tells the selections of a run apart. One that was made before an interruption is not made again: its
        pool follows from what it released. One that was interrupted is made anew, under the charges it had made.
        """
        name = name or str(len(self._ledger.selected) + 1)
        released = self._world.share(self._archive.find(name) if self._world.main else None)
        if released is not None:
            return self.restore(released)
        releases = Releases(
            self.plan.releases(),
            charge=charging(self._ledger),
            generators=self._generators,
            noiseless=self.plan.noiseless,
            secure=self.plan.privacy.secure_noise,
            world=self._world,
        )
        pool = self._checked(self.selector.select(weights, releases))
        self._archive.keep(name, self.selector.state())
        self.pool = pool
        return pool

    def _checked(self, pool: Pool) -> Pool:
        """Check a pool of this process's records and its branch: computed from the same values, on another machine."""
        pool = checked_pool(pool, self._own, self.plan.branch_count).as_own()
        chosen = "the branch that released values choose"
        self._world.refuse_disagreement(pool.branch, chosen, "let them run on equal machines")
        return pool

    def state(self) -> dict[str, Any] | None:
        """Return released values of the last selection; None before the first."""
        return None if self.pool is None else self.selector.state()

    def restore(self, state: dict[str, Any]) -> Pool:
        self.pool = self._checked(self.selector.restore(state))
        return self.pool


def charging(ledger: Ledger) -> Charge:
    """Begin to draw what is kept together. What an interrupted attempt at it has paid for is not paid for again."""
    prepaid = list(ledger.prepaid)
    ledger.begin_selection()

    def charge(dataset: str, phase: str, event: Event) -> None:
        entry = Entry(dataset, phase, event)
        if entry in prepaid:
            prepaid.remove(entry)
        else:
            ledger.charge(dataset, phase, event)

    return charge


class SelectionArchive:
    """One file per selection beside the ledger, which knows its digest.

    A run that is interrupted after a selection continues with what was released; a file that is missing or was changed
    is refused, because drawing it again would be a second release. Without a folder nothing is kept.
    """

    def __init__(self, ledger: Ledger, folder: Path | None):
        self._ledger, self._folder = ledger, folder

    def find(self, name: str) -> dict[str, Any] | None:
        """Return the released values of a selection that is done, or None."""
        path = self._path(name)
        if name not in self._ledger.selected:
            if path is None or not path.is_file():
                return None
            self._ledger.end_selection(name, _digest(path.read_bytes()))  # killed between the two writes of `keep`
        if path is None or not path.is_file():
            raise AccountingError(f"selection {name} was paid for, but what it released is not there any more")
        content = path.read_bytes()
        if _digest(content) != self._ledger.selected[name]:
            raise AccountingError(f"what selection {name} released has been changed on disk")
        return torch.load(io.BytesIO(content), weights_only=True)

    def keep(self, name: str, state: dict[str, Any]) -> None:
        """Put released values on record. Only then may they be used."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        path = self._path(name)
        if path is not None:
            write_durably(path, buffer.getvalue())
        self._ledger.end_selection(name, _digest(buffer.getvalue()))

    def _path(self, name: str) -> Path | None:
        return None if self._folder is None else self._folder / f"selection-{self._ledger.id}-{name}.pt"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
