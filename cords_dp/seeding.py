"""One seed, separate streams.

Data, model initialisation, selection, batches and noise never share a generator: drawing one batch
more must not change which noise is added. Without a seed the streams that privacy rests on come
from the operating system's entropy and are not recorded anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

_STREAMS = ("data", "init", "selection", "batches", "noise", "validation")


@dataclass(frozen=True)
class Streams:
    """Independent generators for one run.

    ``attempt`` counts how often the run was started from its ledger: a resumed run draws fresh masks
    and fresh noise even when the seed is fixed, because replaying the old ones would reveal them.
    """

    seed: int | None = None
    attempt: int = 0

    @property
    def public_seed(self) -> int:
        """Seed of what is public: the data split and the initial weights."""
        return 0 if self.seed is None else self.seed

    def _sequence(self, stream: str) -> np.random.SeedSequence:
        position = _STREAMS.index(stream)
        if stream in ("data", "init"):
            return np.random.SeedSequence([self.public_seed, position])
        if self.seed is None:
            return np.random.SeedSequence()
        return np.random.SeedSequence([self.seed, position, self.attempt])

    def numpy(self, stream: str) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64DXSM(self._sequence(stream)))

    def torch(self, stream: str, device: str = "cpu") -> torch.Generator:
        generator = torch.Generator(device=device)
        state = self._sequence(stream).generate_state(2, np.uint32)
        generator.manual_seed((int(state[0]) << 31) ^ int(state[1]))
        return generator
