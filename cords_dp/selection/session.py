"""One run's selections: each opens the releases that the plan has paid for, and lets the selector draw them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cords_dp.accounting import Ledger
from cords_dp.errors import MechanismError
from cords_dp.mechanisms.releases import Releases
from cords_dp.planning.plan import PrivacyPlan
from cords_dp.selection.context import SelectionContext, Weights
from cords_dp.selection.pool import Pool, checked_pool


class Selections:
    """Selects by the plan's mechanism and charges what it draws. ``generators``: the noise for D and for V."""

    def __init__(self, context: SelectionContext, *, ledger: Ledger, generators: Mapping[str, np.random.Generator]):
        if context.plan.mechanism is None:
            raise MechanismError("the plan has no mechanism to select by")
        self.plan: PrivacyPlan = context.plan
        self.selector = context.plan.mechanism.build(context)
        self._ledger, self._generators = ledger, generators
        self.pool: Pool | None = None

    def select(self, weights: Weights) -> Pool:
        """A pool at released weights. Charges D and, if private, V."""
        releases = Releases(
            self.plan.releases(),
            charge=self._ledger.charge,
            generators=self._generators,
            noiseless=self.plan.noiseless,
            secure=self.plan.privacy.secure_noise,
        )
        self.pool = checked_pool(self.selector.select(weights, releases), self.plan.shape.n)
        return self.pool

    def state(self) -> dict[str, Any] | None:
        """Released values of the last selection; None before the first."""
        return None if self.pool is None else self.selector.state()

    def restore(self, state: dict[str, Any]) -> Pool:
        self.pool = checked_pool(self.selector.restore(state), self.plan.shape.n)
        return self.pool
