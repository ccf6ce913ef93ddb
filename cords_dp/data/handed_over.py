"""Datasets that a user hands over: what can be wrong with them, and what then happens.

The sizes of the sets, the shape and the types of their records are public; a set in which they are wrong is refused.
What single private records hold decides nothing that shows: a label that is no class makes its record all NaN (words
of a text keep what they are, and the label becomes one without a loss), and a record that is not finite contributes
zero, by the same steps as any other. A record that cannot be read, whose shape or type is another than that of the
first readable one, or that holds a word outside of the model's vocabulary is one without a label. `unreadable_records`
tells the owner which these are.

Records of different lengths, brought to one public length, each by itself.

CORDS pads a batch to its longest record, so a record's logits depend on who else is in the batch. Here every record is
cut or filled up to the same length, which the config says and no data decides. A collate function of the user's is
given one record at a time, so whatever it does, it cannot carry anything from one record to another.

Formal guarantee: row i of a batch is a function of record i, of the public length and of nothing else.

Which data a run is on, as a digest of public facts: a ledger is continued on the same data and split only.

Which rows of a file, of arrays or of a published set the records of a training set are.

A run splits records by a permutation, so the number of a record in D says nothing to anybody else. Rows depend on the
number of records and on the seed alone. Where they depend on labels or values, because an imbalance is made for a
study or files are sorted by class, they are not told.
"""

from __future__ import annotations

import copy
import hashlib
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from cords_dp.config import to_plain
from cords_dp.config.values import whole
from cords_dp.data.arrays import ArrayDataset, RowsOfStore, Splits, one_by_one, records_at
from cords_dp.data.published import DATASETS, dataset_name, refuse_telling_rows
from cords_dp.data.shards import Guard, Part, digest_of_rows, whole_size
from cords_dp.data.sources.base import find_source
from cords_dp.data.text_sets import TEXT_SETS
from cords_dp.errors import AccountingError, DataError
from cords_dp.files import write_durably

_NAMES = ("trainset", "validset", "testset")
_Origin = tuple[Any, np.ndarray | None]  # where records lie, and which of those there; None: all
_TRIED_TWICE = 8  # records, to see whether they change from one reading to the next


def checked_splits(data: Splits, *, private: bool, regression: bool = False) -> Splits:
    """The same sets, checked by what is public of them; a private run's D and V are guarded record by record."""
    if regression:
        return _checked_regression(data)
    classes = whole("num_cls", data.num_classes, low=2)
    parts = []
    for name, part in zip(_NAMES, data[:3], strict=True):
        if private and name != "testset":
            part = readable(part)
        _, y = _check_schema(name, part)
        if y.dim() != 1 or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise DataError(f"the labels of {name} must be whole numbers from 0 on, one for each record")
        if private and name != "testset" and not isinstance(part, GuardedDataset):
            part = GuardedDataset(part, classes)
        elif not private or name == "testset":
            _check_targets(name, part, classes)
        parts.append(part)
    return Splits(parts[0], parts[1], parts[2], classes)


def _checked_regression(data: Splits) -> Splits:
    """Targets are real numbers, as many for every record; one that is not finite makes its record contribute zero."""
    shapes = set()
    data = Splits(readable(data.train), readable(data.validation), data.test, data.num_classes)
    for name, part in zip(_NAMES, data[:3], strict=True):
        _, y = _check_schema(name, part)
        if y.is_complex() or y.dtype == torch.bool or y.dim() > 2:
            raise DataError(f"the targets of {name} must be numbers, or short rows of numbers")
        shapes.add(y.shape[1:])
    if len(shapes) > 1:
        raise DataError("the targets of trainset, validset and testset must have the same shape")
    (shape,) = shapes
    train, validation, test = (RealTargets(part) for part in data[:3])
    return Splits(train, validation, test, max(1, shape.numel()))


_IGNORED = -100  # torch's cross-entropy leaves such a record out


class _Reading(Guard, ABC):
    """A dataset that reads the records of another."""

    def __init__(self, source: Dataset):
        self.source = source

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.batch(np.array([index]))
        return x[0], y[0]

    @abstractmethod
    def batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        """Records by index, at once."""


class RealTargets(_Reading):
    """A dataset with targets in float32, as a squared error needs them."""

    def batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        x, y = records_at(self.source, np.asarray(indices))
        return x, y.float()


class GuardedDataset(_Reading):
    """A private dataset whose records with an impossible label contribute nothing, and are never told apart."""

    def __init__(self, source: Dataset, num_classes: int):
        super().__init__(source)
        self.num_classes = num_classes

    def batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        x, y = records_at(self.source, np.asarray(indices))
        known = (y >= 0) & (y < self.num_classes)
        if not x.is_floating_point():  # words of a text have no NaN; the loss of such a label is 0, its gradient too
            return x, torch.where(known, y, torch.full_like(y, _IGNORED)).long()
        if not bool(known.all()):
            x = torch.where(known.reshape(-1, *[1] * (x.dim() - 1)), x, torch.full_like(x, torch.nan))
        return x, torch.where(known, y, torch.zeros_like(y)).long()


class ReadableRecords(Guard):
    """A dataset of the user's, of which no record ends a run: one that cannot be read has zeros and no label.

    Formal guarantee: what is given for record i is a function of record i and of the public shape and type of a record,
    which are those of the first record that can be read. A null record and one that cannot be read look alike.
    """

    vocabulary: Tensor | None = None  # how many words the model knows at each place of a record; 0: any number will do
    digests: RecordDigests | None = None

    def __init__(self, source: Dataset):
        self.source = source
        for index in range(len(self)):
            first = self._alone(index)
            if first is not None:
                self._null = torch.zeros_like(first[0]), torch.full_like(first[1], -1)
                if first[1].is_floating_point():
                    self._null[1].fill_(torch.nan)
                return
        raise DataError("no record of the dataset can be read: each must be (x, y), tensors or numbers")

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.batch(np.array([index]))
        return x[0], y[0]

    def batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        indices = np.asarray(indices, dtype=np.int64)
        found = self._at(indices)
        x, y = found if found is not None and self._fits(*found) else self._each_alone(indices)
        if self.digests is not None:
            self.digests.check(indices, x, y)
        return (x, y) if self.vocabulary is None else self._without_strange_words(x, y, self.vocabulary)

    def _each_alone(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        """The records one by one, those that cannot be read or do not fit as null."""
        alone = [self._alone(int(i)) for i in indices]
        records = [record if record is not None and self._fits(*record) else self._null for record in alone]
        of_x, of_y = self._null
        x = torch.cat([of_x[:0], *(record[0] for record in records)])
        return x, torch.cat([of_y[:0], *(record[1] for record in records)])

    def _without_strange_words(self, x: Tensor, y: Tensor, vocabulary: Tensor) -> tuple[Tensor, Tensor]:
        strange = ((vocabulary > 0) & ((x < 0) | (x >= vocabulary))).flatten(1).any(dim=1)
        x = torch.where(strange.reshape(-1, *[1] * (x.dim() - 1)), torch.zeros_like(x), x)
        return x, torch.where(strange.reshape(-1, *[1] * (y.dim() - 1)), self._null[1].expand_as(y), y)

    @property
    def changes(self) -> bool:
        """Does a record change from one reading to the next, as with random transforms? Tried on the first few."""
        few = np.arange(min(len(self), _TRIED_TWICE))
        return not torch.equal(self.batch(few)[0].nan_to_num(), self.batch(few)[0].nan_to_num())

    def _fits(self, x: Tensor, y: Tensor) -> bool:
        (of_x, of_y), found = self._null, (x, y)
        return all(
            (part.shape[1:], part.dtype, part.device) == (wanted.shape[1:], wanted.dtype, wanted.device)
            for part, wanted in zip(found, (of_x, of_y), strict=True)
        )

    def _alone(self, index: int) -> tuple[Tensor, Tensor] | None:
        return self._at(np.array([index]))

    def _at(self, indices: np.ndarray) -> tuple[Tensor, Tensor] | None:
        """Records, labels as signed whole numbers; None if any cannot be read."""
        try:
            x, y = records_at(self.source, indices)
        except (Exception, SystemExit, GeneratorExit):  # what it says might tell what is in a record
            return None
        x, y = x.detach(), y.detach()
        return x, y if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool else y.long()


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


def bound_records(data: Splits, folder: Path, *, resumed: bool) -> list[RecordDigests]:
    """Let the records of D and V that a user handed over be the same as when the run began."""
    digests = []
    for name, part in (("D", data.train), ("V", data.validation)):
        guard = _inside(part, ReadableRecords)
        if guard is not None:
            path = folder / "private" / f"records-{name}"
            guard.digests = None
            guard.digests = RecordDigests(path, len(guard), labels_only=guard.changes, resumed=resumed)
            digests.append(guard.digests)
    return digests


def readable(dataset: Any) -> Any:
    """The dataset, guarded against records that cannot be read. Sets of our own read every record."""
    if _inside(dataset, ReadableRecords, RowsOfStore) is not None or not hasattr(dataset, "__getitem__"):
        return dataset
    return dataset if not hasattr(dataset, "__len__") or not len(dataset) else ReadableRecords(dataset)


def _inside(dataset: Any, *kinds: type) -> Any:
    """The first of these kinds, from the outermost guard inwards; None if there is none."""
    if isinstance(dataset, kinds):
        return dataset
    return _inside(dataset.source, *kinds) if isinstance(dataset, Guard) else None


def unreadable_records(dataset: Any) -> list[int]:
    """Return the numbers of the records that contribute nothing because they cannot be read, or have another shape.

    For the owner's eyes: the answer is exact, and not private.
    """
    checked = ReadableRecords(dataset)
    found = ((i, checked._alone(i)) for i in range(len(checked)))
    return [i for i, record in found if record is None or not checked._fits(*record)]


def limit_words(data: Splits, model: nn.Module) -> None:
    """Let records with words that the model does not know contribute nothing."""
    guards = [guard for part in data[:2] if (guard := _inside(part, ReadableRecords)) is not None]
    if guards and not (record := guards[0][0][0]).is_floating_point():
        vocabulary = known_words(model, record)
        for guard in guards:
            guard.vocabulary = vocabulary


def known_words(model: nn.Module, record: Tensor) -> Tensor | None:
    """How many words the model knows at each place of a record, tried on made-up records; 0 where any number will do.

    None if the model looks nothing up.
    """
    tried = copy.deepcopy(model).cpu().eval()
    with _TableSizes() as tables:
        _reads(tried, torch.zeros_like(record, device="cpu"))
    sizes = sorted(tables.found)
    if not sizes:
        return None
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
    return any(_overlap(mine, theirs) for mine in _origins(one) for theirs in _origins(other))


def _overlap(one: _Origin, other: _Origin) -> bool:
    (first, rows), (second, others) = one, other
    if first is not second and not _same_memory(first, second):
        return False
    return rows is None or others is None or bool(np.isin(rows, others).any())


def _origins(dataset: Any) -> list[_Origin]:
    """List where a set's records come from, and which of the records there they are."""
    if isinstance(dataset, Guard):
        return _origins(dataset.source)
    if isinstance(dataset, ConcatDataset):
        return [origin for part in dataset.datasets for origin in _origins(part)]
    if isinstance(dataset, Subset):
        return _picked(dataset)
    if isinstance(dataset, RowsOfStore):
        return [(dataset, np.asarray(dataset.rows))]
    return [(dataset, None)]


def _picked(subset: Subset) -> list[_Origin]:
    picked, inner = np.asarray(subset.indices, dtype=np.int64), subset.dataset
    if isinstance(inner, ConcatDataset):
        starts = np.cumsum([0, *(len(part) for part in inner.datasets)])  # type: ignore[arg-type]
        inside = [picked[(picked >= low) & (picked < high)] - low for low, high in pairwise(starts)]
        parts = zip(inner.datasets, inside, strict=True)
        return [origin for part, rows in parts for origin in _picked(Subset(part, rows))]  # type: ignore[arg-type]
    return [(origin, picked if rows is None else rows[picked]) for origin, rows in _origins(inner)]


def _same_memory(one: Any, other: Any) -> bool:
    """Do two sets of tensors, or of arrays with rows, lie in the same memory?"""
    mine, theirs = _memory(one), _memory(other)
    return any(a[0] < b[1] and b[0] < a[1] for a in mine for b in theirs)


def _memory(dataset: Any) -> list[tuple[int, int]]:
    tensors = dataset.tensors[:1] if isinstance(dataset, TensorDataset) else ()
    if isinstance(dataset, ArrayDataset):
        tensors = (dataset.x,)
    return [(t.data_ptr(), t.data_ptr() + _extent(t) * t.element_size()) for t in tensors]


def _extent(values: Tensor) -> int:
    """From its first element to its last: every other row of a tensor reaches as far as all of them."""
    steps = zip(values.shape, values.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps) if values.numel() else 0


def _check_schema(name: str, dataset: Any) -> tuple[Tensor, Tensor]:
    """Sizes, shape and types, from the first record, whose values are not looked at."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(f"{name} is no dataset: it needs a length and records by index")
    if whole_size(dataset) < 1:
        raise DataError(f"{name} is empty")
    x, y = records_at(dataset, np.arange(min(1, len(dataset))))
    if x.is_complex() or x.dtype == torch.float64:
        raise DataError(f"the records of {name} must be tensors of float32; convert them with .float()")
    return x, y


def _check_targets(name: str, dataset: Any, classes: int) -> None:
    """Labels of a set that is not private, where it lists them."""
    targets = dataset.targets if isinstance(dataset, ArrayDataset) else getattr(dataset, "targets", None)
    try:
        labels = torch.as_tensor(targets)
    except Exception:
        return  # it lists none, or something else by that name
    if labels.dim() == 1 and len(labels) and not bool(((labels >= 0) & (labels < classes)).all()):
        raise DataError(f"{name} has labels outside of 0 … {classes - 1}, its {classes} classes (num_cls)")


_FILLER = 0  # as in CORDS: the first word of GloVe's vocabulary
_DEFAULT_LENGTH = 64

Collate = Callable[[list[Any]], Any]


def padded_splits(data: Splits, config: Mapping[str, Any]) -> Splits:
    """The same sets with records of one length, where they are text or the config names a collate function."""
    collate = config["dataloader"].get("collate_fn") or None
    if not (is_text(config) or collate):
        return data
    length = public_length(config) if is_text(config) else None
    train, validation, test = (PaddedDataset(part, length, collate) for part in data[:3])
    return Splits(train, validation, test, data.num_classes)


def is_text(config: Mapping[str, Any]) -> bool:
    """Are records rows of words? Texts of one's own are read by a source, which gives them their length."""
    name = config["dataset"].get("name")
    return name in TEXT_SETS or (config["dataset"].get("type") == "text" and find_source(name) is None)


def public_length(config: Mapping[str, Any]) -> int:
    section = config["dataset"]
    usual = TEXT_SETS[section["name"]].max_length if section.get("name") in TEXT_SETS else _DEFAULT_LENGTH
    return section.get("max_length") or usual


class PaddedDataset(Guard):
    """Records of one length: words stand at the end, so that a recurrent net ends on the last of them.

    length: None leaves records as long as they are.
    """

    def __init__(self, source: Dataset, length: int | None, collate: Collate | None = None):
        self.source, self.length, self.collate = source, length, collate

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        problem = ""
        try:
            x, y = self._alone(index)
            return (x if self.length is None else _filled(x, self.length)), y
        except Exception:  # what it says might tell what is in the record
            problem = "the dataset or its collate_fn cannot make a record: a row of whole numbers and its label"
        raise DataError(problem)

    def batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        return one_by_one(self, np.asarray(indices))

    def _alone(self, index: int) -> tuple[Tensor, Tensor]:
        record = self.source[index]
        if self.collate is None:
            return torch.as_tensor(record[0]), torch.as_tensor(record[1])
        x, y = self.collate([record])
        (x,), (y,) = x, y  # a batch of one
        return x, y


def _filled(words: Tensor, length: int) -> Tensor:
    kept = words[:length]
    return torch.cat([kept.new_full((length - len(kept),), _FILLER), kept])


_PLACES = ("datadir", "cache")  # where files lie says nothing about what is in them


def data_binding(config: Mapping[str, Any], seed: int | None, data: Splits, *, built: bool = False) -> str:
    """A digest of the dataset section, the seed of the split, and which rows are in D and in V.

    Nothing about the records themselves goes in: a digest of private values could be tried out. So of datasets that the
    user hands over without saying which rows of what they are, only the kind and the size are known. ``built``: the
    sets were made from the config, so a source's ``rows`` are numbers of rows in its file.
    """
    section = {key: _named(key, value) for key, value in to_plain(config["dataset"]).items() if key not in _PLACES}
    if built and (source := find_source(section.get("name"))) is not None:
        section["card"] = source.card(config["dataset"])
    facts = [section, seed, _rows(data.train, built), _rows(data.validation, built), data.num_classes]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _named(key: str, value: Any) -> Any:
    """A file by its name, since it may be moved; what a source says about it is in its card."""
    return PurePath(value).name if isinstance(value, str) and key.endswith(("path", "schema", "labels")) else value


def _rows(dataset: Dataset, built: bool) -> list[Any]:
    if isinstance(dataset, Part):  # the whole set's: a run may be resumed with more or fewer processes
        if dataset.rows_digest is None:
            raise DataError("a set is bound to a ledger before it is cut into parts, or knows the rows of the whole")
        return ["rows", dataset.total, dataset.rows_digest]
    size = len(dataset)  # type: ignore[arg-type]
    if isinstance(dataset, ArrayDataset) or (built and hasattr(dataset, "rows")):
        return ["rows", size, digest_of_rows(np.asarray(dataset.rows))]
    if isinstance(dataset, (GuardedDataset, PaddedDataset, RealTargets, ReadableRecords)):
        return _rows(dataset.source, built)
    if isinstance(dataset, Subset):
        return ["subset", size, digest_of_rows(np.asarray(dataset.indices)), _rows(dataset.dataset, built)]
    return [type(dataset).__name__, size]


def rows_of(dataset: Dataset) -> np.ndarray | None:
    """The row of each record where the set was made from; None for a set that does not tell."""
    if isinstance(dataset, Part):  # a part counts from its own first row
        return None
    if isinstance(dataset, Guard):
        return rows_of(dataset.source)
    if isinstance(dataset, Subset):
        inner, picked = rows_of(dataset.dataset), np.asarray(dataset.indices)
        return picked if inner is None else inner[picked]
    rows = getattr(dataset, "rows", None)
    return None if rows is None else np.asarray(rows)


def described_rows(config: Mapping[str, Any], rows: np.ndarray | None, picked: list[int]) -> dict[str, Any]:
    """Some records of D by their rows, and a sentence that says which rows these are."""
    name, section = dataset_name(config), config["dataset"]
    refuse_telling_rows(section)
    if rows is None:
        return {"records": "numbers in the training set as this run has split it, from 0", "rows": sorted(picked)}
    numbers = rows[picked]
    if name in DATASETS and name != "synthetic":  # a set may have changed copies behind its own records: i + n is i
        numbers = numbers % DATASETS[name].num_train
        words = f"training records of {name} in the publisher's order, from 0"
    else:
        file = PurePath(section["path"]).name if isinstance(section.get("path"), str) else name
        words = f"records of {file} in its order, from 0"
    return {"records": words, "rows": sorted(int(number) for number in numbers)}
