"""Where noise comes from: float64 normals from a cipher whose key the operating system drew.

Formal guarantees ----------------- Generator: AES-128 (FIPS 197, all ten rounds) in counter mode, by `randomgen`; its
output is checked against the standard's own example. The key has the full 128 bits. Whoever cannot tell AES from
random blocks cannot tell these bits from coins, so a Gaussian event holds against observers of bounded computing
power, also after they have seen every other draw.

Normals: numpy's ziggurat in float64. In its tail it draws ``r − ln(U)/r`` from 53-bit uniforms, so values reach 12.2
deviations, beyond which the normal law has 2·10⁻³⁴; that is the floor it puts under δ for one coordinate. (torch's
float32 normals end at 5.77: 8·10⁻⁹ a coordinate and step, which is more than a δ can bear.)

Not covered: what the spacing of floating-point numbers tells about the value below the noise. ``secure=True`` makes the
known attack infeasible, see `standard_normal`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import numpy as np
from randomgen import AESCounter

from cords_dp.errors import MechanismError

KEY_BYTES = 16
Shape = tuple[int, ...]
Noise = Callable[[Shape], np.ndarray]  # float64 standard normals, in an array that the caller may write over


def secure_generator(key: bytes | None = None) -> np.random.Generator:
    """A cryptographic generator. Without a key the operating system draws one, which is kept nowhere else.

    With a key the stream is repeatable, on machines with and without AES instructions (there about twelve times
    slower); it is as secret as the key is.
    """
    key = secrets.token_bytes(KEY_BYTES) if key is None else key
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise MechanismError(f"a noise key has {KEY_BYTES} bytes, no more and no fewer")
    # `key`, not `seed`: a seed would pass through a hash of 128 bits that nobody has called cryptographic
    return np.random.Generator(AESCounter(key=int.from_bytes(key, "little")))


def standard_normal(rng: np.random.Generator, shape: Shape, secure: bool = False) -> np.ndarray:
    """Independent N(0, 1) values in float64.

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
    """What `PrivateEngine` asks for noise: `standard_normal` of one generator, which nothing else may use."""

    def draw(shape: Shape) -> np.ndarray:
        return standard_normal(rng, shape, secure)

    return draw
