"""The Gaussian mechanism."""

from __future__ import annotations

import numpy as np

from cords_dp.errors import MechanismError


def gaussian_release(
    total: np.ndarray, *, sensitivity: float, noise_multiplier: float, rng: np.random.Generator
) -> np.ndarray:
    """Release ``total`` with noise N(0, (noise_multiplier · sensitivity)²) on every coordinate.

    Formal guarantees
    -----------------
    Unit: one record, zero-out. If ``total`` is a sum over records in which one record's part has L2
    norm at most ``sensitivity`` and a null record's part is zero, the release is one Gaussian event
    with the given noise multiplier, whatever the dimension. The caller bounds the parts and charges
    the event before calling.
    """
    if not (np.isfinite(sensitivity) and sensitivity > 0):
        raise MechanismError(f"sensitivity must be positive and finite, not {sensitivity!r}")
    if not noise_multiplier >= 0:
        raise MechanismError(f"noise multiplier must not be negative, got {noise_multiplier!r}")
    total = np.asarray(total, dtype=np.float64)
    if not np.isfinite(total).all():
        raise MechanismError("a sum to be released holds NaN or infinity; bound every record's part first")
    return total + rng.normal(0.0, 1.0, size=total.shape) * (noise_multiplier * sensitivity)
