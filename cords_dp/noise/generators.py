"""Draws noise, as float64 normals from a cipher whose key the operating system drew, and seeds the streams of a run.

Formal guarantees
-----------------
Generator: AES-128 (FIPS 197, all ten rounds) in counter mode, by `randomgen`; its
output is checked against the standard's own example. The key has the full 128 bits. An observer who cannot tell AES
from random blocks cannot tell these bits from coins, so a Gaussian event holds against observers of bounded computing
power, also after they have seen every other draw.

Normals: numpy's ziggurat in float64. In its tail it draws ``r − ln(U)/r`` from 53-bit uniforms, so values reach 12.2
deviations, beyond which the normal law has 2·10⁻³⁴; that is the floor it puts under δ for one coordinate. (torch's
float32 normals end at 5.77: 8·10⁻⁹ a coordinate and step, which is more than a δ can bear.)

Not covered: what the spacing of floating-point numbers tells about the value below the noise. ``secure=True`` makes the
known attack infeasible, see `standard_normal`.

Streams: data, model initialisation, selection, batches and noise never share a generator: drawing one batch more must
not change which noise is added. Public streams come from the seed, secret ones from the operating system. A seed fixes
what is public, the data split and the initial weights, and nothing else: people count seeds from 0 up, and a guessed
seed is enough to subtract the noise. Every other stream is a cryptographic generator. Its key is the HMAC-SHA-512 of
the stream's name, attempt, context and rank under 256 bits of the operating system's entropy: no stream tells anything
about another, and nothing is kept from which one could be drawn again.

``reproducible=True`` derives those keys from the seed instead. Such a run repeats, and is **not private**.

torch's global generator is not cryptographic, and on the CPU it keeps 32 bits of a seed. It draws dropout masks. A
guarantee holds for every fixed choice of masks as long as each belongs to a record; here they are dealt out in the
order of the batch, so whether a record takes part moves those of the records after it. The guarantee then needs them to
be independent of what an observer knows: the seed comes from the operating system, and no key can be computed from it.
"""

from __future__ import annotations

import hmac
import json
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from randomgen import AESCounter

from cords_dp.errors import MechanismError

KEY_BYTES = 16
Shape = tuple[int, ...]
Noise = Callable[[Shape], np.ndarray]  # float64 standard normals, in an array that the caller may write over


def secure_generator(key: bytes | None = None) -> np.random.Generator:
    """Make a cryptographic generator. Without a key the operating system draws one, which is kept nowhere else.

    With a key the stream is repeatable, on machines with and without AES instructions (there about twelve times
    slower); it is as secret as the key is.
    """
    key = secrets.token_bytes(KEY_BYTES) if key is None else key
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise MechanismError(f"a noise key has {KEY_BYTES} bytes, no more and no fewer")
    # `key`, not `seed`: a seed would pass through a hash of 128 bits that nobody has called cryptographic
    return np.random.Generator(AESCounter(key=int.from_bytes(key, "little")))


def standard_normal(rng: np.random.Generator, shape: Shape, secure: bool = False) -> np.ndarray:
    """Draw independent N(0, 1) values in float64.

    ``secure``: each value is the sum of four draws over two, exactly N(0, 1) again. One float64 draw can take few of
    the numbers near it, and which ones tells what was added to it (Mironov 2012); to invert a sum of four an attacker
    has to search 2¹⁵⁹ combinations (Holohan & Braghin, "Secure random sampling in differential privacy", ESORICS 2021).
    """
    if not secure:
        return rng.standard_normal(shape)
    total, part = rng.standard_normal(shape), np.empty(shape)
    for _ in range(3):
        total += rng.standard_normal(out=part)
    return total / 2


def noise_source(rng: np.random.Generator, *, secure: bool = False) -> Noise:
    """Return the noise of a `PrivateEngine`: `standard_normal` of one generator, which nothing else may use."""

    def draw(shape: Shape) -> np.ndarray:
        return standard_normal(rng, shape, secure)

    return draw


_PUBLIC = ("data", "init")
_SECRET = (
    "selection", "batches", "noise", "validation", "augmentation", "coins", "global", "preparation", "temperature",
    "test", "head start", "head start batches", "validation batches",
)  # fmt: skip
_ENTROPY_BYTES = 32


@dataclass(frozen=True)
class Streams:
    """Independent generators for one run.

    ``attempt`` counts how often the run was started from its ledger: a resumed run draws fresh masks
    and fresh noise even where they are reproducible, because replaying the old ones would reveal them. ``context`` (the
    plan's fingerprint and a hash of the config) keeps runs of one seed but different budgets, models or learning rates
    from sharing noise, which a difference of two models would cancel. ``entropy``, 256 bits, stands in for the
    operating system's where several processes must draw alike; it is as secret as the noise. Without it every generator
    that is asked for has a key of its own, also if the same one is asked for twice.
    """

    seed: int | None = None
    attempt: int = 0
    context: str = ""
    entropy: int | None = field(default=None, repr=False)
    reproducible: bool = False

    def __post_init__(self) -> None:
        if self.entropy is not None and not 0 <= self.entropy < 1 << 8 * _ENTROPY_BYTES:
            raise MechanismError("the entropy that processes share has 256 bits")

    @property
    def public_seed(self) -> int:
        """Seed of what is public: the data split and the initial weights."""
        return 0 if self.seed is None else self.seed

    def numpy(self, stream: str, *, rank: int = 0) -> np.random.Generator:
        """Return the generator of a stream. ``rank`` separates processes of one run that must not draw alike."""
        if stream in _PUBLIC:
            sequence = np.random.SeedSequence([self.public_seed, _PUBLIC.index(stream)])
            return np.random.Generator(np.random.PCG64DXSM(sequence))
        return secure_generator(self._key(stream, rank))

    def _key(self, stream: str, rank: int) -> bytes:
        if stream not in _SECRET:
            raise MechanismError(f"there is no stream {stream!r}; known are {', '.join(_PUBLIC + _SECRET)}")
        label = json.dumps(["cords_dp stream", stream, self.attempt, self.context, rank])
        return hmac.digest(self._root(), label.encode(), "sha512")[:KEY_BYTES]

    def _root(self) -> bytes:
        if self.reproducible:
            return f"not private: seed {self.public_seed}".encode()
        if self.entropy is None:
            return secrets.token_bytes(_ENTROPY_BYTES)
        return self.entropy.to_bytes(_ENTROPY_BYTES, "big")


def seed_global_generators(streams: Streams, rank: int) -> None:
    """Seed the global generators, from which dropout and CORDS' strategies draw; no two ranks drop out alike.

    A private run seeds them, too, from the operating system: many scripts begin with ``torch.manual_seed(0)``.
    """
    rng = streams.numpy("global", rank=rank)
    torch.manual_seed(_word(rng))
    np.random.seed(rng.integers(2**32, size=8, dtype=np.uint32))  # noqa: NPY002 - CORDS uses the global generator
    random.seed(rng.bytes(_ENTROPY_BYTES))


def _word(rng: np.random.Generator) -> int:
    return int(rng.integers(2**64, dtype=np.uint64))
