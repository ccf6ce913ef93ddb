"""``scaling="private"``: means and spreads of numeric columns, by one charged Gaussian release on D.

Formal guarantee
----------------
Unit and relation: one record of D, zero-out; n and the columns are public. Released: Σ_j φ(z_j) + N(0, (σ·Δ)²·I).

Let k columns be numeric without bins. A value is moved into its public range and scaled to v ∈ [−1, 1], by itself. In
φ(z) a column has the coordinates (v, v², 1), or (0, 0, 0) where its value is missing; φ(z) = 0 for a record whose label
is no class, and for a null record. Then ‖φ(z)‖² ≤ Σ_columns (v² + v⁴ + 1) ≤ 3k, so one record moves the sum by at most
Δ = √(3k) in L2 norm, and the release is one Gaussian event with noise multiplier σ, charged to D in the phase
"preparation" (`planning.plan`, `training.preparing`). All records of D take part, so no amplification by a secret
subset applies; such a plan is refused.

Centres and widths are functions of the released sums and of public numbers, and so is what training does with them: a
record's vector is then a function of that record and of released values. It is moved into [−1, 1] again, so a record is
no longer than before.

Where the unit is an owner, its part of the sum is the mean of φ over its records: at most √(3k) long as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from cords_dp.data.record_set import RecordSet
from cords_dp.data.sources.table.encoding import Encoding, Scales
from cords_dp.data.sources.table.store import TableStore
from cords_dp.errors import ConfigError
from cords_dp.planning.schedule import Preparation

_ROWS = 1 << 16
_SPREAD = 2.0  # deviations from the centre that become ±1
_TRUSTED = 10.0  # deviations of the noise that a count must exceed, or the public range is kept


def preparation(encoding: Encoding) -> Preparation:
    columns = len(encoding.numeric)
    if not columns:
        raise ConfigError("dataset.scaling", "private", "the schema has no numeric column without bins; use 'range'")
    words = f"{math.sqrt(3 * columns):.6g} (value, square and count of {columns} numeric columns, each in [−1, 1])"
    return Preparation("scales", sensitivity(columns), words)


def sensitivity(columns: int) -> float:
    """Return Δ = √(3k)."""
    return math.sqrt(3 * columns)


def sums(dataset: RecordSet[TableStore]) -> np.ndarray:
    """Add up φ over the records of D, rows of a `TableStore`: values, squares, counts. A private value."""
    columns = len(dataset.store.encoding.numeric)
    total = np.zeros((3, columns))
    for start in range(0, len(dataset), _ROWS):
        some = np.arange(start, min(start + _ROWS, len(dataset)))
        each = parts(dataset, some)
        if dataset.owners is not None:  # an owner's part is the mean of its records', no longer than a record's
            each *= dataset.owners.masses[some][:, None, None]
        total += each.sum(axis=0)
    return total.ravel()


def parts(dataset: RecordSet[TableStore], indices: np.ndarray) -> np.ndarray:
    """Compute φ of records: 3 × k numbers each."""
    records = dataset.store.stored[dataset.rows[indices]]
    labels = records["label"]
    known = labels >= 0 if dataset.store.encoding.schema.classes else np.isfinite(labels)
    values = np.clip(records["numbers"].astype(np.float64), -1.0, 1.0)
    present = known[:, None] & np.isfinite(values)
    values = np.where(present, values, 0.0)
    return np.stack([values, values**2, present.astype(np.float64)], axis=1)


def fitted(released: np.ndarray, deviation: float) -> dict[str, Any]:
    """Derive centres and widths from the released sums; ``deviation``: of their noise, a public number."""
    values, squares, counts = np.asarray(released, dtype=np.float64).reshape(3, -1)
    trusted = counts > max(_TRUSTED * deviation, 1.0)
    counts = np.where(trusted, counts, 1.0)
    centres = np.clip(values / counts, -1.0, 1.0)
    # a spread below what the noise can make up is not known to be so small
    variances = np.maximum(squares / counts - centres**2, 2 * deviation / counts)
    widths = np.clip(_SPREAD * np.sqrt(np.maximum(variances, 1e-6)), 1e-3, 2.0)
    return {
        "centres": np.where(trusted, centres, 0.0).tolist(),
        "widths": np.where(trusted, widths, 1.0).tolist(),
    }


def scaled(dataset: RecordSet[TableStore], fit: Mapping[str, Any]) -> RecordSet[TableStore]:
    """Return the same records around the released centres."""
    scales = Scales(tuple(fit["centres"]), tuple(fit["widths"]))
    store = dataset.store
    return dataset.with_store(store.with_encoding(Encoding(store.encoding.schema, scales)))
