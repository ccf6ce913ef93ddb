"""Noise for training steps: a step that was not charged gets none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from cords_dp.accounting import TRAINING_DATA, Ledger
from cords_dp.errors import MechanismError
from cords_dp.mechanisms.noise import Noise, Shape
from cords_dp.planning import EpochPlan, PrivacyPlan


class ChargedSteps:
    """The engine's only source of noise.

    Formal guarantee: noise is handed out inside a step (`one`) and nowhere else; there are as many steps as were
    charged to the ledger before the first of them, and no more.
    """

    def __init__(self, ledger: Ledger, noise: Noise):
        self._ledger, self._noise = ledger, noise
        self._left, self._inside = 0, False

    def begin(self, plan: PrivacyPlan, epoch: EpochPlan) -> None:
        """Pay for the steps of an epoch. Steps that are left of an earlier one are forgone.

        The steps of all branched epochs are one event, charged when the first of them begins; which of them have begun
        is on record, so that a run that resumes does not take more.
        """
        self._left = 0
        if not epoch.branched:
            self._ledger.charge(TRAINING_DATA, epoch.phase, plan.step_event(epoch))
        else:
            event = plan.branch_event()
            if event.with_count(1) not in [e.with_count(1) for e in self._ledger.events(TRAINING_DATA)]:
                self._ledger.charge(TRAINING_DATA, epoch.phase, event)
            self._ledger.begin_steps(epoch.steps, plan.shape.branched_steps)
        self._left = epoch.steps

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Take one of the steps that were charged."""
        if self._left < 1:
            raise MechanismError("a training step was not charged: charge the epoch before its steps")
        self._left -= 1
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def __call__(self, shape: Shape) -> np.ndarray:
        if not self._inside:
            raise MechanismError("noise of a training step can only be had inside a step that was charged")
        return self._noise(shape)
