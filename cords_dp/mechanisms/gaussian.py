"""The Gaussian mechanism."""

from __future__ import annotations

import math

import numpy as np

from cords_dp.errors import MechanismError
from cords_dp.mechanisms.noise import standard_normal


def gaussian_release(
    total: np.ndarray,
    *,
    sensitivity: float,
    noise_multiplier: float | None,
    rng: np.random.Generator,
    secure: bool = False,
    noiseless: bool = False,
) -> np.ndarray:
    """Release ``total`` with noise N(0, (noise_multiplier · sensitivity)²) on every coordinate.

    ``secure`` draws the noise so that floating-point attacks on it fail (`noise.standard_normal`). ``noiseless``
    releases the total as it is, for runs without privacy; it has to be said, for a noise multiplier that went missing
    says nothing.

    Formal guarantees
    -----------------
    Unit: one record, zero-out. If ``total`` is a sum over records in which one record's part has L2
    norm at most ``sensitivity`` and a null record's part is zero, the release is one Gaussian event
    with the given noise multiplier, whatever the dimension. The caller bounds the parts and charges
    the event before calling. With ``noiseless`` there is no guarantee.
    """
    if not (np.isfinite(sensitivity) and sensitivity > 0):
        raise MechanismError(f"sensitivity must be positive and finite, not {sensitivity!r}")
    total = finite_sum(total)
    if noiseless:
        if noise_multiplier:
            raise MechanismError(f"a noiseless release with noise multiplier {noise_multiplier!r}: which of the two?")
        return total.copy()
    if noise_multiplier is None or not (math.isfinite(noise_multiplier) and noise_multiplier > 0):
        raise MechanismError(f"a release needs a positive, finite noise multiplier, not {noise_multiplier!r}")
    return total + standard_normal(rng, total.shape, secure) * (noise_multiplier * sensitivity)


def finite_sum(total: np.ndarray) -> np.ndarray:
    """A sum in float64, refused if it is not finite: one record would then show through any noise."""
    total = np.asarray(total, dtype=np.float64)
    if not np.isfinite(total).all():
        raise MechanismError("a sum to be released holds NaN or infinity; bound every record's part first")
    return total
