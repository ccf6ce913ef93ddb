"""Noise for training steps: a step that was not charged gets none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from cords_dp.accounting import TRAINING_DATA, Ledger, PoissonGaussian
from cords_dp.errors import MechanismError
from cords_dp.mechanisms.noise import Noise, Shape


class ChargedSteps:
    """The engine's only source of noise.

    Formal guarantee: noise is handed out inside a step (`one`) and nowhere else; there are as many steps as were
    charged to the ledger before the first of them, and no more.
    """

    def __init__(self, ledger: Ledger, noise: Noise):
        self._ledger, self._noise = ledger, noise
        self._left, self._inside = 0, False

    def charge(self, phase: str, event: PoissonGaussian) -> None:
        """Pay for ``event.count`` steps. Steps that are left of an earlier charge are forgone."""
        self._left = 0
        self._ledger.charge(TRAINING_DATA, phase, event)
        self._left = event.count

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
