"""Datasets that a user hands over: how they become record sets, and what is checked of them.

A torch dataset becomes a store once, at the door (`as_records`).

The sizes of the sets, the shape and the types of their records are public; a set in which they are wrong is refused.
What single private records hold decides nothing that shows: `readable.ReadableStore` guards what is read of them, and a
label that is no class makes its record contribute nothing (`record_set.ClassTarget`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from cords_dp.config.values import whole
from cords_dp.data.owners import Numbered, Owners, named_owners, own_file
from cords_dp.data.readable import ReadableStore, with_guard
from cords_dp.data.record_set import ClassTarget, RealTarget, RecordSet, Splits, records_at
from cords_dp.data.store import Origin, Store, digest_of_rows, memory_of
from cords_dp.errors import ConfigError, DataError

_NAMES = ("trainset", "validset", "testset")


def with_owners(data: Splits, owners: Any, *, validation: bool = True) -> Splits:
    """Say whose the records of handed-over sets are. ``owners``: names for D's records, or (for D's, for V's).

    Formal guarantee: D and V have no owner in common. V loses the records of owners who are in D, and still counts them
    as owners: no size tells who was left out. The test set, which is public, is left as it is. ``validation``: there is
    a V; else nobody reads what stands in its place.
    """
    both = owners if isinstance(owners, tuple) and len(owners) == 2 else (owners, None)
    if validation != (both[1] is not None):
        fix = "give (names for D, names for V)" if validation else "there is no validation set: give names for D alone"
        raise ConfigError("owners", "lists of names", fix)
    numbered, train = Numbered(), as_records(data.train)
    codes = named_owners(both[0], len(train), numbered)
    made = _owned(train, own_file(codes, codes[:0]))
    if not validation:
        return data._replace(train=made, validation=made)
    held_out = as_records(data.validation)
    named = named_owners(both[1], len(held_out), numbered)
    return data._replace(train=made, validation=_owned(held_out, own_file(named, codes)))


def _owned(records: RecordSet, found: tuple[np.ndarray, Owners]) -> RecordSet:
    rows, owners = found
    return RecordSet(records.store, records.rows[rows], records.target, owners=owners)


def as_records(dataset: Any) -> RecordSet:
    """Return the dataset as a record set: itself, if it is one."""
    return dataset if isinstance(dataset, RecordSet) else RecordSet(DatasetStore(dataset))


class DatasetStore(Store):
    """A torch dataset as it was handed over: read at once where it can (``batch``), one by one elsewhere."""

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        return records_at(self.dataset, rows)

    def record(self, row: int) -> Any:
        return self.dataset[row]

    def listed_labels(self) -> Any:
        return getattr(self.dataset, "targets", None)

    @property
    def names(self) -> Any:  # type: ignore[override]
        return getattr(self.dataset, "names", None)

    def identifiers(self, column: str) -> list[Any]:
        own = getattr(self.dataset, "identifiers", super().identifiers)
        return own(column)

    def binding(self, rows: np.ndarray, *, built: bool) -> list[Any]:
        """Bind by kind and size alone where nothing more is known; in a set from the config ``rows`` are its file's."""
        size, dataset = len(self), self.dataset
        if built and hasattr(dataset, "rows"):
            return ["rows", size, digest_of_rows(np.asarray(dataset.rows))]
        if isinstance(dataset, Subset):
            inner = as_records(dataset.dataset).binding(built=built)
            return ["subset", size, digest_of_rows(np.asarray(dataset.indices)), inner]
        return [type(dataset).__name__, size]

    def file_rows(self, rows: np.ndarray) -> np.ndarray | None:
        found = getattr(self.dataset, "rows", None)
        if isinstance(self.dataset, Subset):
            inner, found = as_records(self.dataset.dataset).file_rows(), np.asarray(self.dataset.indices)
            found = found if inner is None else inner[found]
        return None if found is None else np.asarray(found)[rows]

    def origins(self, rows: np.ndarray) -> list[Origin]:
        """Look through torch's own ways to join and to pick records."""
        dataset = self.dataset
        if isinstance(dataset, ConcatDataset):
            starts = np.cumsum([0, *(len(part) for part in dataset.datasets)])  # type: ignore[arg-type]
            inside = [rows[(rows >= low) & (rows < high)] - low for low, high in pairwise(starts)]
            parts = zip(dataset.datasets, inside, strict=True)
            return [origin for part, picked in parts for origin in _origins(part, picked)]
        if isinstance(dataset, Subset):
            return _origins(dataset.dataset, np.asarray(dataset.indices, dtype=np.int64)[rows])
        memory = memory_of(dataset.tensors[0], rows) if isinstance(dataset, TensorDataset) else None
        return [Origin(dataset, rows, memory)]

    def with_handed_out(self, dataset: Any) -> Store:
        return as_records(dataset).store


def _origins(dataset: Any, picked: np.ndarray) -> list[Origin]:
    records = as_records(dataset)
    return records.store.origins(records.rows[picked])


# --- checks ----------------------------------------------------------------------------------------------------------


def checked_splits(
    data: Splits,
    *,
    private: bool,
    regression: bool = False,
    without_validation: bool = False,
    private_test: bool = False,
) -> Splits:
    """Check sets by what is public of them; guard a private run's D and V record by record.

    Without a test set (None), V stands in its place. ``without_validation``: V may be empty, since nothing reads it.
    ``private_test``: the test set is guarded as D is.
    """
    may_be_empty = ("validset",) if without_validation else ()
    open_sets = () if private_test else ("testset",)
    if regression:
        return _checked_regression(data, may_be_empty, open_sets)
    classes = whole("num_cls", data.num_classes, low=2)
    parts: list[Any] = []
    for name, part in zip(_NAMES, data[:3], strict=True):
        if part is None and name == "testset":
            parts.append(parts[1])
            continue
        guarded = private and name not in open_sets
        records, _, y = _checked_schema(name, part, guarded=guarded, may_be_empty=may_be_empty)
        if y.dim() != 1 or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise DataError(f"the labels of {name} must be whole numbers from 0 on, one for each record")
        if guarded and records.target is None:
            records = records.with_target(ClassTarget(classes))
        elif not guarded:
            _check_targets(name, records, classes)
        parts.append(records if private else part)  # CORDS' own strategies read whatever they were given
    return Splits(parts[0], parts[1], parts[2], classes)


def _checked_regression(data: Splits, may_be_empty: Sequence[str], open_sets: Sequence[str]) -> Splits:
    """Check targets: real numbers, as many a record; one that is not finite makes its record contribute zero."""
    shapes: set[torch.Size] = set()
    parts: list[RecordSet] = []
    for name, part in zip(_NAMES, data[:3], strict=True):
        if part is None and name == "testset":
            parts.append(parts[-1])
            continue
        records, _, y = _checked_schema(name, part, guarded=name not in open_sets, may_be_empty=may_be_empty)
        if y.is_complex() or y.dtype == torch.bool or y.dim() > 2:
            raise DataError(f"the targets of {name} must be numbers, or short rows of numbers")
        shapes.add(y.shape[1:])
        parts.append(records.with_target(RealTarget()))
    if len(shapes) > 1:
        raise DataError("the targets of trainset, validset and testset must have the same shape")
    (shape,) = shapes
    return Splits(parts[0], parts[1], parts[2], max(1, shape.numel()))


def _checked_schema(
    name: str, dataset: Any, *, guarded: bool, may_be_empty: Sequence[str]
) -> tuple[RecordSet, Tensor, Tensor]:
    """Return the set and its first record, of which the shape and the types are looked at, and no value."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(f"{name} is no dataset: it needs a length and records by index")
    records = as_records(dataset)
    if records.total < 1 and name not in may_be_empty:
        raise DataError(f"{name} is empty")
    if guarded:
        records = with_guard(records)
    x, y = records.batch(np.arange(min(1, len(records))))
    if x.is_complex() or x.dtype == torch.float64:
        raise DataError(f"the records of {name} must be tensors of float32; convert them with .float()")
    return records, x, y


def _check_targets(name: str, records: RecordSet, classes: int) -> None:
    """Check the labels of a set that is not private, where it lists them."""
    try:
        labels = torch.as_tensor(records.store.listed_labels())
        labels = labels[torch.from_numpy(records.rows)] if labels.dim() == 1 else labels
    except Exception:
        return  # it lists none, or something else by that name
    if labels.dim() == 1 and len(labels) and not bool(((labels >= 0) & (labels < classes)).all()):
        raise DataError(f"{name} has labels outside of 0 … {classes - 1}, its {classes} classes (num_cls)")


def unreadable_records(dataset: Any) -> list[int]:
    """Return the numbers of the records that contribute nothing because they cannot be read, or have another shape.

    For the owner's eyes: the answer is exact, and not private.
    """
    return ReadableStore(as_records(dataset).store).unreadable()


# --- sets that share records -----------------------------------------------------------------------------------------


def refuse_shared_records(data: Splits, *, validation_is_read: bool, test_is_shown: bool = True) -> None:
    """Refuse sets that are the same object, or the same rows of one: a record would pay twice, or be shown as a test.

    Of sets that only look different nothing is known. A loop has no test set of ours: ``test_is_shown=False``.
    """
    train, validation, test = ("trainset", data.train), ("validset", data.validation), ("testset", data.test)
    pairs = [(train, test)] if test_is_shown else []
    if validation_is_read:
        pairs += [(train, validation)] + ([(validation, test)] if test_is_shown else [])
    for (one, first), (other, second) in pairs:
        if _share_records(first, second):
            raise DataError(
                f"{one} and {other} share records: what is charged to each assumes that they are apart, and exact "
                "metrics of a test set are shown; split the records first, for instance with torch's random_split"
            )


def refuse_repeated_records(sets: Mapping[str, Any], *, by_owner: bool) -> None:
    """Refuse a set in which a record stands at two places, as an oversampled one: each place pays, the record twice.

    Where the unit is an owner all of its places pay together; the set has to say then whose each of them is, and must
    not say it elsewhere. What only looks different, as a copy, is not known.
    """
    for name, part in sets.items():
        records = as_records(part)
        if (records.owners is not None) != by_owner:
            raise DataError(
                f"{name} says whose its records are, and the config does not (dataset.owner), or conversely"
            )
        if records.owners is not None:
            codes = records.owners.codes
            if codes.shape != records.rows.shape or (
                len(codes) and not 0 <= codes.min() <= codes.max() < records.units
            ):
                raise DataError(f"the owners of {name} must be numbers from 0 on, one for each record")
            continue
        picked: dict[int, list[np.ndarray]] = {}
        for origin in records.store.origins(records.rows):
            picked.setdefault(id(origin.owner), []).append(origin.rows)
        for rows in map(np.concatenate, picked.values()):
            if len(rows) and (rows.min() < 0 or len(np.unique(rows)) < len(rows)):
                raise DataError(
                    f"a record of {name} is there more than once, or counted from the end: it would pay once and be "
                    "used several times. Leave repeated records out; for rare classes GLISTERDP has balanced_softmax"
                )


def _share_records(one: Any, other: Any) -> bool:
    mine, theirs = (records.store.origins(records.rows) for records in (as_records(one), as_records(other)))
    return any(_overlap(a, b) for a in mine for b in theirs)


def _overlap(one: Origin, other: Origin) -> bool:
    if one.owner is other.owner:
        return bool(np.isin(one.rows, other.rows).any())
    if one.memory is None or other.memory is None:
        return False
    (mine, length), (theirs, size) = one.memory, other.memory
    mine = np.sort(mine)
    first, last = np.searchsorted(mine, theirs - length, side="right"), np.searchsorted(mine, theirs + size)
    return bool((first < last).any())  # a row of mine begins inside of one of theirs, or reaches into it
