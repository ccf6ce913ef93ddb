"""One run's selections: each opens the releases that the plan has paid for, and lets the selector draw them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cords_dp.accounting import Entry, Event, Ledger
from cords_dp.errors import MechanismError
from cords_dp.mechanisms.releases import Charge, Releases
from cords_dp.planning.plan import PrivacyPlan
from cords_dp.selection.archive import SelectionArchive
from cords_dp.selection.context import SelectionContext, Weights
from cords_dp.selection.pool import Pool, checked_pool


class Selections:
    """Selects by the plan's mechanism and charges what it draws.

    ``generators``: the noise for D and for V. ``folder``: where released values are kept; None keeps nothing.
    """

    def __init__(
        self,
        context: SelectionContext,
        *,
        ledger: Ledger,
        generators: Mapping[str, np.random.Generator],
        folder: Path | None = None,
    ):
        if context.plan.mechanism is None:
            raise MechanismError("the plan has no mechanism to select by")
        self.plan: PrivacyPlan = context.plan
        self.selector = context.plan.mechanism.build(context)
        self._ledger, self._generators = ledger, generators
        self._archive = SelectionArchive(ledger, folder)
        self.pool: Pool | None = None

    def select(self, weights: Weights, name: str = "") -> Pool:
        """A pool at released weights. Charges D and, if private, V.

        ``name`` tells the selections of a run apart. One that was made before an interruption is not made again: its
        pool follows from what it released. One that was interrupted is made anew, under the charges it had made.
        """
        name = name or str(len(self._ledger.selected) + 1)
        released = self._archive.find(name)
        if released is not None:
            return self.restore(released)
        releases = Releases(
            self.plan.releases(),
            charge=charging(self._ledger),
            generators=self._generators,
            noiseless=self.plan.noiseless,
            secure=self.plan.privacy.secure_noise,
        )
        pool = checked_pool(self.selector.select(weights, releases), self.plan.shape.n, self.plan.branch_count)
        self._archive.keep(name, self.selector.state())
        self.pool = pool
        return pool

    def state(self) -> dict[str, Any] | None:
        """Released values of the last selection; None before the first."""
        return None if self.pool is None else self.selector.state()

    def restore(self, state: dict[str, Any]) -> Pool:
        self.pool = checked_pool(self.selector.restore(state), self.plan.shape.n, self.plan.branch_count)
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
