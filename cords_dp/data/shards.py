"""The records that one process of several holds and reads.

A store of N records (a file, an array, a folder) is cut into contiguous ranges of its row numbers, one for each
process: by N and by the declared shares, both public. A set that picks rows out of a store becomes those of its rows
that lie in the range. So a file can be read from its range only, and the training, validation and test sets of one
store share the range.

Formal guarantee: every record of a set lies in exactly one part, whose choice looks at no record: which process holds a
record changes no law (`distributed`).
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from cords_dp.data.arrays import RowsOfStore, Splits, records_at
from cords_dp.errors import ConfigError


@dataclass(frozen=True)
class Share:
    """Which of ``size`` parts a process holds. ``weights``: how large they are beside each other; equal if left out."""

    rank: int = 0
    size: int = 1
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.weights and (len(self.weights) != self.size or min(self.weights) < 0 or not sum(self.weights) > 0):
            fix = f"must be {self.size} numbers, one for each process, of at least 0 and not all 0"
            raise ConfigError("train_args.shares", list(self.weights), fix)

    def bounds(self, total: int) -> tuple[int, int]:
        """The range of row numbers that is this part: where one part ends the next begins, the last at ``total``."""
        weights = np.array(self.weights or (1.0,) * self.size)
        edges = np.floor(np.concatenate([[0.0], np.cumsum(weights) / weights.sum()]) * total + 0.5).astype(np.int64)
        edges[-1] = total
        return int(edges[self.rank]), int(edges[self.rank + 1])


WHOLE = Share()


class Guard(Dataset):
    """A set that reads another record by record: what it gives for record i is a function of the source's record i."""

    source: Any

    def __len__(self) -> int:
        return len(self.source)


class Part(Guard):
    """The records of a set that this process holds: ``source`` has these and no others.

    total: how many the whole set has. places: where these stand in it. rows_digest: of the rows of the whole set in its
    store, for `datasets.binding`. All of it is public.
    """

    def __init__(self, source: Dataset, total: int, places: np.ndarray, *, rows_digest: str | None = None):
        self.source, self.total, self.places, self.rows_digest = source, total, places, rows_digest

    def __getitem__(self, index: int) -> Any:
        return self.source[index]

    def batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        return records_at(self.source, np.asarray(indices, dtype=np.int64))


class Picks(Dataset):
    """Some records of a set that has others too and that only its owner can make smaller."""

    def __init__(self, whole: Any, indices: np.ndarray):
        self.whole, self.indices = whole, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        """Where there are none, number 0 is the whole set's: who asks for it wants the shape of a record."""
        return self.whole[int(self.indices[index]) if len(self.indices) else 0]

    def batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        return records_at(self.whole, self.indices[np.asarray(indices, dtype=np.int64)])


def cut_splits(data: Splits, share: Share) -> Splits:
    """What this process holds of all three sets. A set that was read as a part stays as it is."""
    train, validation, test = (cut(part, share) for part in data[:3])
    return Splits(train, validation, test, data.num_classes)


def cut(dataset: Any, share: Share) -> Dataset:
    if share.size == 1 or isinstance(dataset, Part):
        return dataset
    if isinstance(dataset, Guard):
        outer = copy.copy(dataset)
        outer.source = cut(dataset.source, share)
        return outer
    if isinstance(dataset, RowsOfStore):
        start, stop = share.bounds(dataset.store_size)
        where, rows = part_of_rows(np.asarray(dataset.rows), start, stop)
        return Part(dataset.part(start, stop, rows), len(dataset), where)
    where = np.arange(*share.bounds(len(dataset)))
    return Part(Picks(dataset, where), len(dataset), where)


def digest_of_rows(rows: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(rows, dtype=np.int64).tobytes()).hexdigest()


def part_of_rows(rows: np.ndarray, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Of a set's rows those in the range: their places in the set, and their numbers from ``start`` on."""
    where = np.flatnonzero((rows >= start) & (rows < stop))
    return where, rows[where] - start


def read_part(
    total: int, rows: np.ndarray | None, share: Share, read: Callable[[int, int, np.ndarray], RowsOfStore]
) -> Part:
    """The part of a set of ``rows`` (None: all) of a store of ``total`` records, of which the range alone is read, by
    ``read(start, stop, numbers)``; the numbers are those of the set's rows there, counted from ``start`` on."""
    everything = np.arange(total) if rows is None else rows
    start, stop = share.bounds(total)
    where, numbers = part_of_rows(everything, start, stop)
    return Part(read(start, stop, numbers), len(everything), where, rows_digest=digest_of_rows(everything))


def kept(part: Part, mask: np.ndarray) -> Part:
    """Some of the records of a part that was read from a store."""
    store = part.source
    rest = store.part(0, store.store_size, np.asarray(store.rows)[mask])
    return Part(rest, part.total, part.places[mask], rows_digest=part.rows_digest)


def part_inside(dataset: Any) -> Part | None:
    if isinstance(dataset, Part):
        return dataset
    return part_inside(dataset.source) if isinstance(dataset, Guard) else None


def whole_size(dataset: Any) -> int:
    """How many records the set has in all processes together: a public number."""
    part = part_inside(dataset)
    return len(dataset) if part is None else part.total


def places(dataset: Any) -> np.ndarray | None:
    """Where the records of this process stand in the whole set; None if it has all of them."""
    part = part_inside(dataset)
    return None if part is None else part.places


def no_records(dataset: Any) -> tuple[Tensor, Tensor]:
    """An empty batch, which tells the shape and type of a record, also in a part that has none."""
    return records_at(dataset, np.arange(0))
