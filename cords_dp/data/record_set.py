"""One kind of record set: rows of a store, and what their targets are.

Formal guarantee: what a set gives for record i is a function of record i and of public values.

Of several processes each holds a part of every set. A store of N records is cut into contiguous ranges of its row
numbers, one for each process: by N and by the declared shares, both public. A set becomes those of its rows that lie in
the range. So a file can be read from its range only, and the training, validation and test sets of one store share the
range. Every record of a set lies in exactly one part, whose choice looks at no record: which process holds a record
changes no law (`processes`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from cords_dp.data.owners import Owners
from cords_dp.data.store import ArrayStore, Store, digest_of_rows
from cords_dp.errors import ConfigError, DataError

if TYPE_CHECKING:
    from cords_dp.data.half_rows import HalfRows

Indices = Sequence[int] | np.ndarray | Tensor


# --- what this process holds -------------------------------------------------------------------------------------


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
        """Return the range of row numbers that is this part: where it ends the next begins, the last at ``total``."""
        weights = np.array(self.weights or (1.0,) * self.size)
        edges = np.floor(np.concatenate([[0.0], np.cumsum(weights) / weights.sum()]) * total + 0.5).astype(np.int64)
        edges[-1] = total
        return int(edges[self.rank]), int(edges[self.rank + 1])


WHOLE = Share()


@dataclass(frozen=True)
class Part:
    """Where the records of this process stand in the whole set. All of it is public.

    total: how many records the whole set has. places: where these stand in it. rows_digest: of the rows of the whole
    set in its store, where the store was read as a part; None for a set that was cut.
    """

    total: int
    places: np.ndarray
    rows_digest: str | None = None


# --- targets -----------------------------------------------------------------------------------------------------


class Target(ABC):
    """What the targets of a set are, and what makes a record with an impossible one contribute nothing.

    It is laid over what a store reads, features included: a label counts as it is now, whatever is cached.
    """

    @abstractmethod
    def guarded(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Make impossible targets do no harm, each record by itself."""

    @abstractmethod
    def labels(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return targets, and which of them are possible."""


_IGNORED = -100  # torch's cross-entropy leaves such a record out


@dataclass(frozen=True)
class ClassTarget(Target):
    """One of ``count`` classes. A record with another label contributes nothing, and is never told apart."""

    count: int

    def guarded(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        labels, known = self.labels(y)
        if not x.is_floating_point():  # words of a text have no NaN; the loss of such a label is 0, its gradient too
            return x, torch.where(known, y, torch.full_like(y, _IGNORED)).long()
        if not bool(known.all()):
            x = torch.where(known.reshape(-1, *[1] * (x.dim() - 1)), x, torch.full_like(x, torch.nan))
        return x, labels

    def labels(self, y: Tensor) -> tuple[Tensor, Tensor]:
        known = (y >= 0) & (y < self.count)
        return torch.where(known, y, torch.zeros_like(y)).long(), known


@dataclass(frozen=True)
class RealTarget(Target):
    """Real numbers, in float32 as a squared error needs them. One that is not finite has no finite gradient."""

    def guarded(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, y.float()

    def labels(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return y.float(), torch.ones(len(y), dtype=torch.bool)


# --- the set -----------------------------------------------------------------------------------------------------


S = TypeVar("S", bound=Store, covariant=True)
T = TypeVar("T", bound=Store)


class RecordSet(Dataset, Generic[S]):
    """``rows`` of a store, by default all of them.

    target: what the targets are, once a run knows; None gives them as they are stored. part: where this process's
    records stand in the whole set; None if it holds all. owners: whose each record is, where the unit of privacy is an
    owner; None where it is a record. Whatever belongs to single records stands beside ``rows``, to be narrowed in `_at`
    alone.
    """

    def __init__(
        self,
        store: S,
        rows: np.ndarray | None = None,
        target: Target | None = None,
        part: Part | None = None,
        owners: Owners | None = None,
    ):
        self.store, self.target, self.part, self.owners = store, target, part, owners
        self.rows = np.arange(len(store)) if rows is None else np.asarray(rows, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.batch([index])
        return x[0], y[0]

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Read records by index, at once."""
        x, y = self.store.read(self.rows[np.asarray(indices, dtype=np.int64)])
        return (x, y) if self.target is None else self.target.guarded(x, y)

    def no_records(self) -> tuple[Tensor, Tensor]:
        """Return an empty batch, which tells the shape and type of a record, also in a part that has none."""
        return self.batch(np.arange(0))

    def labels(self) -> tuple[Tensor, Tensor]:
        """Return all targets, and which of them are possible."""
        y = self.store.labels(self.rows)
        return (y, torch.ones(len(y), dtype=torch.bool)) if self.target is None else self.target.labels(y)

    @property
    def targets(self) -> Tensor:
        return self.labels()[0]

    def half_rows(self) -> HalfRows | None:
        """Return all features where they are stored in half precision; None where they are not.

        Records with impossible labels keep their features here: whoever uses them leaves out those that `labels` does
        not know.
        """
        return self.store.half_rows(self.rows)

    # -- other sets ---------------------------------------------------------------------------------------

    def with_target(self, target: Target) -> RecordSet[S]:
        return RecordSet(self.store, self.rows, target, self.part, self.owners)

    def with_store(self, store: T, rows: np.ndarray | None = None) -> RecordSet[T]:
        """Return the same records in another store, at other rows of it if these are given."""
        return RecordSet(store, self.rows if rows is None else rows, self.target, self.part, self.owners)

    def at(self, indices: np.ndarray) -> RecordSet[S]:
        """Return some of the records, as a set of their own."""
        return self._at(indices, self.store, 0, None)

    def kept(self, mask: np.ndarray) -> RecordSet[S]:
        """Return the set, or part of a set, without some of its records."""
        part = None if self.part is None else Part(self.part.total, self.part.places[mask], self.part.rows_digest)
        return self._at(np.flatnonzero(mask), self.store, 0, part)

    def cut(self, share: Share, ranges: dict[int, Store] | None = None) -> RecordSet:
        """Return what this process holds of the set. One that was read as a part stays as it is.

        ranges: of stores that were cut before, by the store's id, for sets that share one.
        """
        if share.size == 1 or self.part is not None:
            return self
        if self.owners is not None:
            return self._whole_owners(share, self.owners)
        start, stop = share.bounds(len(self.store))
        ranges = {} if ranges is None else ranges
        if id(self.store) not in ranges:
            ranges[id(self.store)] = self.store.range(start, stop)
        places = _places(self.rows, start, stop)
        return self._at(places, ranges[id(self.store)], start, Part(len(self), places))

    def _whole_owners(self, share: Share, owners: Owners) -> RecordSet[S]:
        """Return what this process holds where no owner may be in two parts: a range of owners, of the whole store."""
        start, stop = share.bounds(owners.count)
        places = _places(owners.codes, start, stop)
        return self._at(places, self.store, 0, Part(len(self), places))

    def _at(self, indices: np.ndarray, store: T, first: int, part: Part | None) -> RecordSet[T]:
        """Return some of the records, out of a store that begins with row ``first``."""
        owners = None if self.owners is None else self.owners.at(indices)
        return RecordSet(store, self.rows[indices] - first, self.target, part, owners)

    # -- public facts -------------------------------------------------------------------------------------

    @property
    def total(self) -> int:
        """How many records the set has in all processes together."""
        return len(self) if self.part is None else self.part.total

    @property
    def units(self) -> int:
        """How many units of privacy the set has in all processes together: owners, or records. Public."""
        return self.total if self.owners is None else self.owners.count

    @property
    def places(self) -> np.ndarray | None:
        """Where the records of this process stand in the whole set; None if it has all of them."""
        return None if self.part is None else self.part.places

    def binding(self, *, built: bool) -> list[Any]:
        """Return what a ledger is bound to: the whole set's rows, as a run may be resumed by more or fewer processes.

        Which rows belong to whom, and how many an owner has, is private: there the number of owners alone goes in.
        """
        if self.owners is not None:
            return ["owners", self.owners.count]
        if self.part is None:
            return self.store.binding(self.rows, built=built)
        if self.part.rows_digest is None:
            raise DataError("a set is bound to a ledger before it is cut into parts, or knows the rows of the whole")
        return ["rows", self.part.total, self.part.rows_digest]

    def file_rows(self) -> np.ndarray | None:
        """Return the row of each record where the set was made from; None for a set that does not tell, as a part."""
        told = self.part is None and self.owners is None  # rows by owner tell which records belong together
        return self.store.file_rows(self.rows) if told else None

    # -- what the source has handed out -------------------------------------------------------------------

    def handed_out(self) -> Dataset:
        """Return what the source has handed out, or this process's part: a sum over more would count records twice."""
        store = self.store.innermost()
        return RecordSet(store, self.rows, owners=self.owners) if store.dataset is None else store.dataset

    def with_handed_out(self, change: Callable[[Dataset], Dataset]) -> RecordSet:
        """Change what the source has handed out; whatever guards its records stays around them."""
        return self.with_store(self.store.with_handed_out(change(self.handed_out())))


class Splits(NamedTuple):
    """What CORDS' ``gen_dataset`` returns: train, validation and test sets and the number of classes.

    Of a private run they are `RecordSet`s.
    """

    train: Any
    validation: Any
    test: Any
    num_classes: int

    def each(self, change: Callable[[Any], Any]) -> Splits:
        """Apply the same function to all three sets."""
        return Splits(change(self.train), change(self.validation), change(self.test), self.num_classes)


def cut_splits(data: Splits, share: Share) -> Splits:
    """Return what this process holds of all three sets; those of one store share its range."""
    ranges: dict[int, Store] = {}
    return data.each(lambda records: records.cut(share, ranges))


def _places(rows: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Return the places in a set of those of its rows that lie in the range."""
    return np.flatnonzero((rows >= start) & (rows < stop))


def read_part(total: int, rows: np.ndarray | None, share: Share, read: Callable[[int, int], T]) -> RecordSet[T]:
    """Read the part of a set of ``rows`` (None: all) of a store of ``total`` records.

    Of the store, ``read(start, stop)`` reads the range of this process alone.
    """
    everything = np.arange(total) if rows is None else rows
    start, stop = share.bounds(total)
    places = _places(everything, start, stop)
    part = Part(len(everything), places, digest_of_rows(everything))
    return RecordSet(read(start, stop), everything[places] - start, part=part)


def array_set(
    x: np.ndarray,
    y: np.ndarray,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    rows: np.ndarray | None = None,
) -> RecordSet[ArrayStore]:
    """Make a set of records in memory. For several sets of the same arrays make one `ArrayStore`, which they share."""
    return RecordSet(ArrayStore(x, y, mean, std), rows)


# --- batches of any dataset --------------------------------------------------------------------------------------


def records_at(dataset: Dataset, indices: np.ndarray) -> tuple[Tensor, Tensor]:
    """Read records by index: at once where the dataset can (``batch``), one by one elsewhere."""
    if hasattr(dataset, "batch"):
        return dataset.batch(indices)
    return collated([dataset[int(i)] for i in indices], lambda: dataset[0])


def collated(records: list[Any], first: Callable[[], Any]) -> tuple[Tensor, Tensor]:
    """Join records to one batch; of none, an empty batch in the shape of the first record.

    What torch says about records that do not fit together tells their shapes: it stays here.
    """
    given = records or [first()]
    try:
        x, y = default_collate(given)
        return torch.as_tensor(x)[: len(records)], torch.as_tensor(y)[: len(records)]
    except Exception:
        problem = "a dataset must give (x, y): tensors or numbers, of the same shape and type for every record"
    raise DataError(problem)  # outside of the handler, so that no traceback shows the cause


def sequential_batches(dataset: Dataset, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield all records in order, ``size`` at a time."""
    total = len(dataset)  # type: ignore[arg-type]
    for start in range(0, total, size):
        yield records_at(dataset, np.arange(start, min(start + size, total)))


def category_codes(dataset: RecordSet, column: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return each record's code in a categorical column of a table, and the categories that the codes count."""
    if not hasattr(dataset.store, "category_codes"):
        raise DataError("only the records of a table have columns")
    codes, categories = dataset.store.category_codes(column)
    return codes[dataset.rows], categories
