"""What several fits on the same records add up to, where no account keeps the total.

Cross-validation, a grid search and a second ``fit`` each spend ε on the records that they share. `tally` remembers, for
this process alone, which records every fit has read, and bounds what the most burdened of them pays.

Formal guarantee: none is added; it only adds up. A record is known by a digest under a key that is drawn anew in every
process, and so is an owner, by its name: other rows of the same person count as the same. Digests stay in memory, and
nothing else of a record or a name is kept. The sum is basic composition: ε and δ of all
fits that have read one record, which bounds any adaptive sequence of fits that are so chosen. It is a lower limit of
what was really spent where the same people's data come in other rows, after other transforms, or in another process:
an account (``account=``) is the way to keep a promise over fits.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from cords_dp.data.owners import plain_name
from cords_dp.data.record_set import RecordSet, sequential_batches
from cords_dp.errors import PrivacyWarning

_PIECE = 4096
_KEY, _NAMES = secrets.randbits(128), secrets.token_bytes(32)


@dataclass(frozen=True)
class Repeated:
    """How often the most burdened record of this fit was read so far, and what that adds up to."""

    fits: int
    epsilon: float
    delta: float
    mixed: bool = False  # some fits protect a record and some an owner: ε and δ of the two do not add up
    mostly: bool = True  # most rows were read before; else the few may be other people's that have the same values


@dataclass(frozen=True)
class _Fit:
    digests: np.ndarray  # sorted
    epsilon: float
    delta: float
    unit: str
    told: int  # the number of fits at which the last warning about these records came


_fits: list[_Fit] = []


def row_digests(records: RecordSet) -> np.ndarray:
    """Return a keyed digest of every record, of x and y together: equal records have equal ones."""
    found = [np.zeros(0, dtype=np.uint64)]
    for x, y in sequential_batches(records, _PIECE):
        rows = [np.ascontiguousarray(part.numpy()).reshape(len(y), -1).view(np.uint8) for part in (x, y)]
        found.append(_hashed(np.concatenate(rows, axis=1)))
    return np.concatenate(found)


def digests_of(records: RecordSet, owners: Any = None) -> np.ndarray:
    """Return the keyed digests of all records, and of the names of their owners where there are any."""
    if owners is None:
        return row_digests(records)
    names = {name for name in map(plain_name, owners) if name is not None}
    words = [hashlib.blake2b(name.encode(errors="replace"), digest_size=8, key=_NAMES).digest() for name in names]
    return np.concatenate([row_digests(records), np.frombuffer(b"".join(words), dtype=np.uint64)])


def _hashed(rows: np.ndarray) -> np.ndarray:
    """Hash rows of bytes: a secret random multiplier for each word, summed modulo 2⁶⁴, the upper half of two sums."""
    words = np.zeros((len(rows), -(-rows.shape[1] // 4)), dtype=np.uint32)
    words.view(np.uint8)[:, : rows.shape[1]] = rows
    keys = np.random.Generator(np.random.PCG64DXSM(_KEY)).integers(2**64, size=(2, words.shape[1]), dtype=np.uint64)
    high, low = ((words.astype(np.uint64) * key).sum(axis=1, dtype=np.uint64) >> np.uint64(32) for key in keys)
    return (high << np.uint64(32)) | low


def tally(digests: np.ndarray, epsilon: float, delta: float, unit: str = "record") -> Repeated | None:
    """Add a fit of this cost; return what it adds up to with earlier ones that have read one of its records.

    None if there are none. Warns at the second fit, and whenever their number has doubled.
    """
    own = np.unique(digests)
    fits, epsilons, deltas = np.ones(len(own)), np.full(len(own), epsilon), np.full(len(own), delta)
    told, mixed = 1, False
    for earlier in _fits:
        shared = np.isin(own, earlier.digests, assume_unique=True)
        fits[shared] += 1
        epsilons[shared] += earlier.epsilon
        deltas[shared] += earlier.delta
        told = max(told, earlier.told) if shared.any() else told
        mixed |= bool(shared.any()) and earlier.unit != unit
    worst = (int(fits.max(initial=1)), float(epsilons.max(initial=0)), float(deltas.max(initial=0)))
    result = Repeated(*worst, mixed, mostly=bool(2 * (fits > 1).sum() >= len(own)))
    again = result.fits >= 2 * told
    _fits.append(_Fit(own, epsilon, delta, unit, result.fits if again else told))
    if again:
        warnings.warn(_words(result), PrivacyWarning, stacklevel=4)
    return result if result.fits > 1 else None


def _words(found: Repeated) -> str:
    total = f"ε = {found.epsilon:g} at δ = {found.delta:.3g}" if math.isfinite(found.epsilon) else "no privacy at all"
    if found.mixed:
        total = f"{total}, if all of it were one unit's: some fits protect a record and some an owner"
    why = "" if math.isfinite(found.epsilon) else ", since one of them was not private"
    same = "the same records were"
    if not found.mostly:
        same = "some rows, or names of owners, equal those of earlier fits; if they are the same people's, these were"
    return (
        f"{same} read {found.fits} times in this process, which adds up to {total}{why}: a repeated "
        "fit, cross-validation or a search spends ε each time. PrivateTuning tries settings within one budget; "
        "account=FILE keeps the total and refuses what exceeds it. (Said again when the number doubles.)"
    )


def forget() -> None:
    """Forget all fits: for tests."""
    _fits.clear()
