"""One seed, separate streams.

Data, model initialisation, selection, batches and noise never share a generator: drawing one batch
more must not change which noise is added. Without a seed the streams that privacy rests on come
from the operating system's entropy and are not recorded anywhere.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

import numpy as np
import torch

# torch's serialised CPU generator: 24 bytes of counters, then the Mersenne twister's words in 8 bytes each
_MERSENNE_START, _MERSENNE_WORDS = 24, 624
_STREAMS = ("data", "init", "selection", "batches", "noise", "validation", "augmentation", "coins")


@dataclass(frozen=True)
class Streams:
    """Independent generators for one run.

    ``attempt`` counts how often the run was started from its ledger: a resumed run draws fresh masks
    and fresh noise even when the seed is fixed, because replaying the old ones would reveal them. ``context`` (the
    plan's fingerprint and a hash of the config) keeps runs of one seed but different budgets, models or learning rates
    from sharing noise, which a difference of two models would cancel. ``entropy`` stands in for the operating system's
    where no seed is fixed and several processes must draw alike; it is as secret as the noise.
    """

    seed: int | None = None
    attempt: int = 0
    context: str = ""
    entropy: int | None = None

    @property
    def public_seed(self) -> int:
        """Seed of what is public: the data split and the initial weights."""
        return 0 if self.seed is None else self.seed

    def _sequence(self, stream: str) -> np.random.SeedSequence:
        position = _STREAMS.index(stream)
        if stream in ("data", "init"):
            return np.random.SeedSequence([self.public_seed, position])
        if self.seed is None:
            return (
                np.random.SeedSequence() if self.entropy is None else np.random.SeedSequence([self.entropy, position])
            )
        context = int.from_bytes(hashlib.sha256(self.context.encode()).digest()[:16], "big")
        return np.random.SeedSequence([self.seed, position, self.attempt, context])

    def numpy(self, stream: str) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64DXSM(self._sequence(stream)))

    def torch(self, stream: str, device: str = "cpu", *, rank: int = 0) -> torch.Generator:
        """A torch generator. ``rank`` tells apart the processes of one run where they must not draw alike."""
        generator = torch.Generator(device=device)
        sequence = self._sequence(stream)
        if rank:
            sequence = sequence.spawn(rank)[-1]
        words = sequence.generate_state(_MERSENNE_WORDS, np.uint32)
        generator.manual_seed((int(words[0]) << 31) ^ int(words[1]))
        if torch.device(device).type == "cpu":
            # torch seeds its CPU generator with 32 bits only; few enough to try them all. Fill the whole state.
            state = generator.get_state()
            end = _MERSENNE_START + 8 * _MERSENNE_WORDS
            state[_MERSENNE_START:end] = torch.from_numpy(words.astype(np.uint64).view(np.uint8).copy())
            generator.set_state(state)
        return generator


def seed_global_generators(streams: Streams, rank: int) -> None:
    """Dropout and CORDS' own strategies draw from the global generators; no two ranks drop out alike."""
    if streams.seed is None:
        return
    seed = int(streams.numpy("init").integers(2**31)) + streams.attempt + 7919 * rank
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - CORDS uses the global generator
    random.seed(seed)
