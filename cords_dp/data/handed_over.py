"""Datasets that a user hands over: how they become record sets, what can be wrong with them, and what then happens.

A torch dataset becomes a store once, at the door (`as_records`).

The sizes of the sets, the shape and the types of their records are public; a set in which they are wrong is refused.
What single private records hold decides nothing that shows: a label that is no class makes its record all NaN (words
of a text keep what they are, and the label becomes one without a loss), and a record that is not finite contributes
zero, by the same steps as any other. A record that cannot be read, whose shape or type is another than that of the
first readable one, or that holds a word outside of the model's vocabulary is one without a label. `unreadable_records`
tells the owner which these are.

Records of different lengths are brought to one public length, each by itself. CORDS pads a batch to its longest record,
so a record's logits depend on who else is in the batch. Here every record is cut or filled up to the same length, which
the config says and no data decides. A collate function of the user's is given one record at a time, so whatever it
does, it cannot carry anything from one record to another.

Formal guarantee: row i of a batch is a function of record i, of the public length and of nothing else.
"""

from __future__ import annotations

import copy
import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from cords_dp.config.values import whole
from cords_dp.data.owners import Numbered, Owners, named_owners, own_file
from cords_dp.data.record_set import ClassTarget, RealTarget, RecordSet, Splits, collated, records_at
from cords_dp.data.sources.base import find_source
from cords_dp.data.store import Origin, Store, StoreAround, digest_of_rows, memory_of
from cords_dp.data.text_sets import TEXT_SETS
from cords_dp.errors import AccountingError, ConfigError, DataError
from cords_dp.files import write_durably

_NAMES = ("trainset", "validset", "testset")
_TRIED_TWICE = 8  # records, to see whether they change from one reading to the next


# --- the door ----------------------------------------------------------------------------------------------------


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
    """The dataset as a record set: itself, if it is one."""
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
        """By kind and size alone where nothing more is known; of a set from the config, ``rows`` are its file's."""
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


# --- checks ------------------------------------------------------------------------------------------------------


def checked_splits(
    data: Splits,
    *,
    private: bool,
    regression: bool = False,
    without_validation: bool = False,
    private_test: bool = False,
) -> Splits:
    """The same sets, checked by what is public of them; a private run's D and V are guarded record by record.

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
    """Targets are real numbers, as many for every record; one that is not finite makes its record contribute zero."""
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
    """The set and its first record, of which the shape and the types are looked at, and no value."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(f"{name} is no dataset: it needs a length and records by index")
    records = as_records(dataset)
    if records.total < 1 and name not in may_be_empty:
        raise DataError(f"{name} is empty")
    if guarded:
        records = readable(records)
    x, y = records.batch(np.arange(min(1, len(records))))
    if x.is_complex() or x.dtype == torch.float64:
        raise DataError(f"the records of {name} must be tensors of float32; convert them with .float()")
    return records, x, y


def _check_targets(name: str, records: RecordSet, classes: int) -> None:
    """Labels of a set that is not private, where it lists them."""
    try:
        labels = torch.as_tensor(records.store.listed_labels())
        labels = labels[torch.from_numpy(records.rows)] if labels.dim() == 1 else labels
    except Exception:
        return  # it lists none, or something else by that name
    if labels.dim() == 1 and len(labels) and not bool(((labels >= 0) & (labels < classes)).all()):
        raise DataError(f"{name} has labels outside of 0 … {classes - 1}, its {classes} classes (num_cls)")


# --- records that cannot be read ---------------------------------------------------------------------------------


def readable(records: RecordSet) -> RecordSet:
    """The set, guarded against records that cannot be read. Stores of our own read every record."""
    guarded = records.store.may_fail and len(records.store)  # a part may have none
    return records.with_store(ReadableStore(records.store)) if guarded else records


class ReadableStore(StoreAround):
    """A dataset of the user's, of which no record ends a run: one that cannot be read has zeros and no label.

    Formal guarantee: what is given for record i is a function of record i and of the public shape and type of a record,
    which are those of the first record that can be read. A null record and one that cannot be read look alike.
    """

    may_fail = False  # type: ignore[assignment]
    vocabulary: Tensor | None = None  # how many words the model knows at each place of a record; 0: any number will do
    digests: RecordDigests | None = None

    def __init__(self, source: Store):
        super().__init__(source)
        for row in range(len(self)):
            first = self._alone(row)
            if first is not None:
                self._null = torch.zeros_like(first[0]), torch.full_like(first[1], -1)
                if first[1].is_floating_point():
                    self._null[1].fill_(torch.nan)
                return
        raise DataError("no record of the dataset can be read: each must be (x, y), tensors or numbers")

    def guard(self) -> ReadableStore:
        return self

    def read(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        found = self._found(rows)
        x, y = found if found is not None and self._fits(*found) else self._each_alone(rows)
        if self.digests is not None:
            self.digests.check(rows, x, y)
        return (x, y) if self.vocabulary is None else self._without_strange_words(x, y, self.vocabulary)

    def unreadable(self) -> list[int]:
        """The rows that contribute nothing because they cannot be read, or have another shape."""
        found = ((row, self._alone(row)) for row in range(len(self)))
        return [row for row, record in found if record is None or not self._fits(*record)]

    @property
    def changes(self) -> bool:
        """Does a record change from one reading to the next, as with random transforms? Tried on the first few."""
        few = np.arange(min(len(self), _TRIED_TWICE))
        return not torch.equal(self.read(few)[0].nan_to_num(), self.read(few)[0].nan_to_num())

    def _each_alone(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """The records one by one, those that cannot be read or do not fit as null."""
        alone = [self._alone(int(row)) for row in rows]
        records = [record if record is not None and self._fits(*record) else self._null for record in alone]
        of_x, of_y = self._null
        x = torch.cat([of_x[:0], *(record[0] for record in records)])
        return x, torch.cat([of_y[:0], *(record[1] for record in records)])

    def _without_strange_words(self, x: Tensor, y: Tensor, vocabulary: Tensor) -> tuple[Tensor, Tensor]:
        strange = ((vocabulary > 0) & ((x < 0) | (x >= vocabulary))).flatten(1).any(dim=1)
        x = torch.where(strange.reshape(-1, *[1] * (x.dim() - 1)), torch.zeros_like(x), x)
        return x, torch.where(strange.reshape(-1, *[1] * (y.dim() - 1)), self._null[1].expand_as(y), y)

    def _fits(self, x: Tensor, y: Tensor) -> bool:
        (of_x, of_y), found = self._null, (x, y)
        return all(
            (part.shape[1:], part.dtype, part.device) == (wanted.shape[1:], wanted.dtype, wanted.device)
            for part, wanted in zip(found, (of_x, of_y), strict=True)
        )

    def _alone(self, row: int) -> tuple[Tensor, Tensor] | None:
        return self._found(np.array([row]))

    def _found(self, rows: np.ndarray) -> tuple[Tensor, Tensor] | None:
        """Records, labels as signed whole numbers; None if any cannot be read."""
        try:
            x, y = self.source.read(rows)
        except (Exception, SystemExit, GeneratorExit):  # what it says might tell what is in a record
            return None
        x, y = x.detach(), y.detach()
        return x, y if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool else y.long()


def unreadable_records(dataset: Any) -> list[int]:
    """Return the numbers of the records that contribute nothing because they cannot be read, or have another shape.

    For the owner's eyes: the answer is exact, and not private.
    """
    return ReadableStore(as_records(dataset).store).unreadable()


# --- a run is resumed on the same records only ----------------------------------------------------------------------


class RecordDigests:
    """Digests of a set's records, each made when the record is first read: a run is resumed on the same records only.

    They are keyed by a number that lies beside them, in a file that is the owner's alone: whoever has it can try out
    guesses about single records, so it is never to be shared. Of sets whose records change from reading to reading only
    the labels count.
    """

    def __init__(self, path: Path, size: int, *, labels_only: bool, resumed: bool):
        self._path, self._labels_only = path, labels_only
        self._checked = np.zeros(size, dtype=bool)  # in this process
        if resumed:
            self._key, self._known = self._read(size)
        else:
            self._key, self._known = secrets.token_bytes(16), np.zeros(size, dtype=np.uint64)

    def check(self, indices: np.ndarray, x: Tensor, y: Tensor) -> None:
        """Raise if one of these records is another than when the run began."""
        fresh = np.flatnonzero(~self._checked[indices])
        values = [y.numpy()] if self._labels_only else [x.numpy(), y.numpy()]
        for number in fresh:
            place = indices[number]
            digest = hashlib.blake2b(key=self._key, digest_size=8)
            for value in values:
                digest.update(np.ascontiguousarray(value[number]).tobytes())
            found = np.frombuffer(digest.digest(), dtype=np.uint64)[0] | np.uint64(1)  # 0: not read yet
            if self._known[place] not in (np.uint64(0), found):
                raise AccountingError(
                    "these are other records than those that the run began with: what was charged does not cover "
                    "them; resume with that run's data, or start afresh in another folder"
                )
            self._known[place], self._checked[place] = found, True

    def save(self) -> None:
        """Write down what was read so far, for the owner's eyes only."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(self._path, self._key + self._known.tobytes(), mode=0o600)

    def _read(self, size: int) -> tuple[bytes, np.ndarray]:
        try:
            content = self._path.read_bytes()
        except OSError:
            content = b""
        if len(content) != 16 + 8 * size:
            raise AccountingError(
                f"{self._path.parent.name}/{self._path.name}, which tells the records that the run began with, is "
                "missing or damaged; start afresh in another folder"
            )
        return content[:16], np.frombuffer(content[16:], dtype=np.uint64).copy()


def bound_records(data: Splits, folder: Path, *, resumed: bool, tested: bool = False) -> list[RecordDigests]:
    """Let the records of D and V that a user handed over be the same as when the run began; ``tested``: and of T."""
    digests, sets = [], [("D", data.train), ("V", data.validation), *([("T", data.test)] if tested else [])]
    for name, part in sets:
        guard = part.store.guard()
        if guard is not None:
            path = folder / "private" / f"records-{name}"
            guard.digests = None
            guard.digests = RecordDigests(path, len(guard), labels_only=guard.changes, resumed=resumed)
            digests.append(guard.digests)
    return digests


# --- words that a model does not know ----------------------------------------------------------------------------


def limit_words(data: Splits, model: nn.Module) -> None:
    """Let records with words that the model does not know contribute nothing."""
    guards = [guard for part in data[:3] if (guard := part.store.guard()) is not None]
    if guards and not (words := data.train.no_records()[0]).is_floating_point():
        vocabulary = known_words(model, words.new_zeros(words.shape[1:]))
        for guard in guards:
            guard.vocabulary = vocabulary


def known_words(model: nn.Module, record: Tensor) -> Tensor | None:
    """How many words the model knows at each place of a record, tried on made-up records; 0 where any number will do.

    None if the model looks nothing up.
    """
    tried = copy.deepcopy(model).cpu().eval()
    with _TableSizes() as tables:
        _reads(tried, torch.zeros_like(record, device="cpu"))
    if not tables.found or record.is_floating_point():
        return None
    highest = torch.iinfo(record.dtype).max  # a byte cannot lie outside of a longer table
    sizes = sorted(size for size in tables.found if size <= highest)
    limits = torch.zeros(record.shape, dtype=torch.int64)
    # with one table all places are tried at once
    places = [slice(None)] if len(sizes) == 1 else list(range(record.numel()))
    for place in places:
        for size in sizes:
            words = torch.zeros_like(record, device="cpu")
            words.view(-1)[place] = size
            if not _reads(tried, words):
                limits.view(-1)[place] = size
                break
    return limits


class _TableSizes(TorchFunctionMode):
    """Notes the lengths of all tensors that are used together with whole numbers: tables of words are among them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [value for value in (*args, *(kwargs or {}).values()) if isinstance(value, Tensor) and value.dim()]
        if any(not value.is_floating_point() for value in given):
            self.found |= {len(value) for value in given if value.is_floating_point()}
        return func(*args, **(kwargs or {}))


def _reads(model: nn.Module, record: Tensor) -> bool:
    try:
        with torch.no_grad():
            model(record[None])
    except Exception:
        return False
    return True


# --- sets that share records -------------------------------------------------------------------------------------


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


# --- records of different lengths --------------------------------------------------------------------------------

_FILLER = 0  # as in CORDS: the first word of GloVe's vocabulary
_DEFAULT_LENGTH = 64

Collate = Callable[[list[Any]], Any]


def padded_splits(data: Splits, config: Mapping[str, Any]) -> Splits:
    """The same sets with records of one length, where they are text or the config names a collate function."""
    collate = config["dataloader"].get("collate_fn") or None
    if not (is_text(config) or collate):
        return data
    length = public_length(config) if is_text(config) else None
    return data.each(lambda part: padded(part, length, collate))


def padded(dataset: Any, length: int | None, collate: Collate | None = None) -> RecordSet:
    records = as_records(dataset)
    return records.with_store(PaddedStore(records.store, length, collate))


def is_text(config: Mapping[str, Any]) -> bool:
    """Are records rows of words? Texts of one's own are read by a source, which gives them their length."""
    name = config["dataset"].get("name")
    return name in TEXT_SETS or (config["dataset"].get("type") == "text" and find_source(name) is None)


def public_length(config: Mapping[str, Any]) -> int:
    section = config["dataset"]
    usual = TEXT_SETS[section["name"]].max_length if section.get("name") in TEXT_SETS else _DEFAULT_LENGTH
    return section.get("max_length") or usual


class PaddedStore(StoreAround):
    """Records of one length: words stand at the end, so that a recurrent net ends on the last of them.

    length: None leaves records as long as they are.
    """

    def __init__(self, source: Store, length: int | None, collate: Collate | None = None):
        super().__init__(source)
        self.length, self.collate = length, collate

    def read(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        return collated([self.record(int(row)) for row in rows], lambda: self.record(0))

    def record(self, row: int) -> tuple[Tensor, Tensor]:
        problem = ""
        try:
            x, y = self._alone(row)
            return (x if self.length is None else _filled(x, self.length)), y
        except Exception:  # what it says might tell what is in the record
            problem = "the dataset or its collate_fn cannot make a record: a row of whole numbers and its label"
        raise DataError(problem)

    def _alone(self, row: int) -> tuple[Tensor, Tensor]:
        record = self.source.record(row)
        if self.collate is None:
            return torch.as_tensor(record[0]), torch.as_tensor(record[1])
        x, y = self.collate([record])
        (x,), (y,) = x, y  # a batch of one
        return x, y


def _filled(words: Tensor, length: int) -> Tensor:
    kept = words[:length]
    return torch.cat([kept.new_full((length - len(kept),), _FILLER), kept])
