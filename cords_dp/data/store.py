"""Stores: where records lie, and how they are read by their place.

A store is arrays, files, a table, features on disk, or a dataset that a user hands over. What changes how records are
read (padding, a guard against unreadable ones) is a store around a store.

Formal guarantee that every store keeps: what it reads for record i is a function of record i and of public values. No
statistic is fitted on records.
"""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cords_dp.errors import ConfigError, MechanismError

if TYPE_CHECKING:
    from cords_dp.data.half_rows import HalfRows


class Origin(NamedTuple):
    """Where records come from: which rows of which object. memory: where each begins, and how long one is."""

    owner: Any
    rows: np.ndarray
    memory: tuple[np.ndarray, int] | None = None


class Store(ABC):
    """Where records lie. `read` and a length make a store; the other methods are for stores that can do better.

    constants: public numbers that reading depends on, for the name of cached features. names: of the records, for a
    table of predictions. dataset: what was handed over as a torch dataset. may_fail: can reading raise, or give records
    of different shapes? Such a store is guarded (`readable.ReadableStore`), and any is that does not say otherwise.
    """

    constants: Any = None
    dataset: Any = None
    names: Sequence[str] | None = None
    may_fail: bool = True

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Read records by their place in the store, and their labels. Row i depends on record i alone."""

    def record(self, row: int) -> Any:
        """Read one record as it is, before records are made to fit together."""
        x, y = self.read(np.array([row]))
        return x[0], y[0]

    def labels(self, rows: np.ndarray) -> Tensor:
        return self.read(rows)[1]

    def listed_labels(self) -> Any:
        """Return all labels, in whatever form they are listed beside the records; None where they are not."""
        return None

    def content(self) -> Iterator[bytes] | None:
        """Yield bytes that decide the x of every record in the store, in pieces.

        Features are then kept for the whole store. None: they are kept for each set, named after what is read.
        """
        return None

    def half_rows(self, rows: np.ndarray) -> HalfRows | None:
        """Return features in half precision, to be read where they lie; None where there are none."""
        return None

    def range(self, start: int, stop: int) -> Store:
        """Return a store of ``start … stop − 1`` only, which forgets the other records if it can. Nothing is read."""
        return RangeOfStore(self, start, stop)

    # -- which records these are: public facts ------------------------------------------------------------

    def binding(self, rows: np.ndarray, *, built: bool) -> list[Any]:
        """Return what a ledger is bound to (`build.data_binding`). ``built``: the store was made from the config."""
        return ["rows", len(rows), digest_of_rows(rows)]

    def file_rows(self, rows: np.ndarray) -> np.ndarray | None:
        """Return the numbers of records in their file or published set; None where the store does not tell."""
        return rows

    def origins(self, rows: np.ndarray) -> list[Origin]:
        """List where the records of these rows come from, for `handed_over.refuse_shared_records`."""
        return [Origin(self, rows)]

    def identifiers(self, column: str) -> list[Any]:
        """Return the values of a column of the file that the records were read from."""
        raise ConfigError("--id", column, "only the records of a table have columns")

    # -- what a source has handed out (`sources.base.Source.sums`, ``prepared``) ---------------------------

    def innermost(self) -> Store:
        """Return the store as its source has handed it out, without what was put around it since."""
        return self

    def with_handed_out(self, dataset: Any) -> Store:
        """Return the same store around another set of the source's."""
        return dataset.store

    def guard(self) -> Any:
        """Return the `readable.ReadableStore` among the stores, from the outermost inwards; None if there is none."""
        return None


class LabelledStore(Store):
    """A store whose labels are all in memory, and its records read a few at a time."""

    def __init__(self, all_labels: Tensor):
        self.all_labels = all_labels

    def __len__(self) -> int:
        return len(self.all_labels)

    @abstractmethod
    def records(self, rows: np.ndarray) -> Tensor:
        """Read the x of records by their place in the store. Row i depends on record i alone."""

    @abstractmethod
    def keep_range(self, start: int, stop: int) -> None:
        """Forget all records of the store but these; nothing is read."""

    def read(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        return self.records(rows), self.labels(rows)

    def labels(self, rows: np.ndarray) -> Tensor:
        return self.all_labels[torch.from_numpy(rows)]

    def listed_labels(self) -> Tensor:
        return self.all_labels

    def range(self, start: int, stop: int) -> LabelledStore:
        kept = copy.copy(self)
        kept.all_labels = self.all_labels[start:stop].clone()
        kept.keep_range(start, stop)
        return kept


class StoreAround(Store):
    """A store that reads the records of another in a way of its own. What it does not say, the other one says."""

    def __init__(self, source: Store):
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    @property
    def may_fail(self) -> bool:  # type: ignore[override]
        return self.source.may_fail

    def range(self, start: int, stop: int) -> Store:
        return self._around(self.source.range(start, stop))

    def binding(self, rows: np.ndarray, *, built: bool) -> list[Any]:
        return self.source.binding(rows, built=built)

    def file_rows(self, rows: np.ndarray) -> np.ndarray | None:
        return self.source.file_rows(rows)

    def origins(self, rows: np.ndarray) -> list[Origin]:
        return self.source.origins(rows)

    def innermost(self) -> Store:
        return self.source.innermost()

    def with_handed_out(self, dataset: Any) -> Store:
        return self._around(self.source.with_handed_out(dataset))

    def guard(self) -> Any:
        return self.source.guard()

    def _around(self, source: Store) -> Store:
        outer = copy.copy(self)
        outer.source = source
        return outer


class RangeOfStore(StoreAround):
    """A range of a store that only its owner can make smaller."""

    def __init__(self, source: Store, start: int, stop: int):
        super().__init__(source)
        self.start, self.stop = start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def read(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        return self.source.read(rows + self.start)

    def record(self, row: int) -> Any:
        return self.source.record(row + self.start)

    def labels(self, rows: np.ndarray) -> Tensor:
        return self.source.labels(rows + self.start)

    def range(self, start: int, stop: int) -> Store:
        return RangeOfStore(self.source, self.start + start, self.start + stop)

    def origins(self, rows: np.ndarray) -> list[Origin]:
        return self.source.origins(rows + self.start)

    def innermost(self) -> Store:
        raise MechanismError(
            "the source hands out sets that cannot be cut into parts, so its sums would be over all records in every "
            "process; let the sets be RecordSets of a store with `range`, or train in one process"
        )


def digest_of_rows(rows: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(rows, dtype=np.int64).tobytes()).hexdigest()


# --- arrays in memory --------------------------------------------------------------------------------------------


class RawData(NamedTuple):
    """Arrays as published: features (uint8 images as N×C×H×W, or floats) and integer labels."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


class PixelConstants(NamedTuple):
    """Public constants by which pixels are normalised, channel by channel: (pixel / 255 − mean) / std."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, card: Mapping[str, Sequence[float]]) -> PixelConstants:
        """Read the constants that `to_plain` has put into a card."""
        return cls(tuple(card["mean"]), tuple(card["std"]))

    def to_plain(self) -> dict[str, list[float]]:
        return {"mean": list(self.mean), "std": list(self.std)}


IMAGENET = PixelConstants((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def normalised(pixels: Tensor, constants: PixelConstants) -> Tensor:
    """Normalise pixels N×C×H×W of 0…255 by public constants."""
    mean, std = (torch.tensor(values).reshape(1, -1, 1, 1) * 255 for values in constants)
    return (pixels.float() - mean) / std


_PIECE = 256


class ArrayStore(LabelledStore):
    """Records in memory, normalised by fixed public constants when they are read."""

    constants: PixelConstants
    may_fail = False

    def __init__(self, x: np.ndarray, y: np.ndarray, mean: Sequence[float] = (), std: Sequence[float] = ()):
        super().__init__(torch.from_numpy(np.asarray(y, dtype=np.int64)))
        self.x = torch.from_numpy(np.ascontiguousarray(x))
        self.constants = PixelConstants(tuple(mean), tuple(std))

    def records(self, rows: np.ndarray) -> Tensor:
        x = self.x[torch.from_numpy(rows)]
        return normalised(x, self.constants) if self.constants.mean and self.constants.std else x.float()

    def keep_range(self, start: int, stop: int) -> None:
        self.x = self.x[start:stop].clone()  # a copy: a view would keep the memory of the other rows

    def content(self) -> Iterator[bytes]:
        for start in range(0, len(self), _PIECE):
            yield self.x[start : start + _PIECE].numpy().tobytes()

    def origins(self, rows: np.ndarray) -> list[Origin]:
        return [Origin(self, rows, memory_of(self.x, rows))]


def memory_of(x: Tensor, rows: np.ndarray) -> tuple[np.ndarray, int]:
    """Return where rows of a tensor begin in memory, and how far each reaches.

    That is to the next one at least: between rows that lie apart are other columns of the same records, or records that
    nobody can tell from them.
    """
    steps = zip(x.shape[1:], x.stride()[1:], strict=True)
    reach = max(x.stride(0), 1 + sum((size - 1) * stride for size, stride in steps)) if x.numel() else 0
    return x.data_ptr() + rows * x.stride(0) * x.element_size(), reach * x.element_size()
