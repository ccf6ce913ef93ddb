"""Records of the user's own, by kind: ``dataset.name`` chooses a source, which reads the other keys of the section.

A source knows some facts before it reads a record (`Facts`): they are public, they come from the config, a schema or
the header of a file, and the model is built from them. Everything else that it reads is private, except how many
records there are.

Formal guarantee that every source keeps: what `Source.build` hands out for record i depends on record i, on the config
and on public facts alone; which rows come into which split depends on the number of rows and the seed alone; and no
record decides whether a run fails, or what it logs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import EntryPoint
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cords_dp.config.keys import SOURCE_KEYS
from cords_dp.config.settings import PUBLIC
from cords_dp.config.values import Check, Key, flag, list_of, number, path, text, whole
from cords_dp.data.owners import Numbered, Owners, own_file, owner_rows, refuse_no_owners
from cords_dp.data.record_set import RecordSet, Share, Splits
from cords_dp.data.store import IMAGENET, PixelConstants
from cords_dp.errors import ConfigError, DataError, MechanismError
from cords_dp.extensions import load, offered_sources
from cords_dp.planning.schedule import Preparation

NO_CLASS = -1  # a label that no class has: its record contributes nothing
_GREY = PixelConstants((0.5,), (0.25,))
VALIDATION_FRACTION, TEST_FRACTION = 0.1, 0.2
# Keys that say how records of one's own are split, for a source to take over into its `keys`.
SPLIT_KEYS: Mapping[str, Key] = {
    "validation_fraction": Key(
        partial(number, low=0, high=1, low_included=True),
        None,
        "the share that becomes the validation set V; left out, a tenth where V is read, else none",
    ),
    "test_fraction": Key(partial(number, low=0, high=1), None, "the share that becomes the test set"),
    "validation_path": Key(path, None, "a file of its own for V"),
    "test_path": Key(path, None, "a file of its own for the test set"),
    "cache": Key(flag, None, "keep a compact copy below `datadir`, for its owner alone"),
}


@dataclass(frozen=True)
class Facts:
    """What is public of a source before any record is read.

    shape: of one record's tensor. classes: their names, in the order of the labels; empty for a regression. images: are
    the records images, C×H×W? norm: a length that no record's tensor exceeds, where one is known (`input_norm` of a
    linear model, which ``optimizer.lr="auto"`` needs). constants: by which pixels were normalised, for backbones that
    want others. dtype: of a record's tensor, None for torch's own; texts are rows of bytes.
    """

    shape: tuple[int, ...]
    classes: tuple[str, ...]
    images: bool = False
    norm: float | None = None
    constants: PixelConstants | None = None
    dtype: torch.dtype | None = None

    @property
    def num_classes(self) -> int:
        """As many as a model has outputs: the classes, or the one number that a regression predicts."""
        return len(self.classes) or 1


class Source(ABC):
    """One kind of records.

    name: the word in ``dataset.name``. keys: the keys of the section that it reads, each a `Key` with its check and
    meaning (a check alone will do); besides them it is given ``name``, ``datadir``, ``feature``, ``type`` and ``test``,
    as any dataset. published: everybody has these records, so that their test set is public unless the config says
    otherwise; that of any other source is private, and `tested_records` then leaves none of its records out.
    """

    name: ClassVar[str]
    keys: ClassVar[Mapping[str, Key | Check]]
    published: ClassVar[bool] = False

    @abstractmethod
    def check(self, section: Mapping[str, Any], *, private: bool) -> None:
        """Raise a typed error for a section that cannot be used. Nothing is written and no record is read."""

    @abstractmethod
    def facts(self, section: Mapping[str, Any]) -> Facts:
        """Return public facts, without reading a record. Raises as `check` does."""

    @abstractmethod
    def build(self, section: Mapping[str, Any], rng: np.random.Generator) -> Splits:
        """Train, validation and test sets and `Facts.num_classes`: each a `RecordSet` of a store that reads records, or
        any torch dataset. Labels that are no class may be any number below 0: the private sets are guarded by
        `handed_over.checked_splits` afterwards. A ledger is bound to the rows of a `RecordSet`, or to what a dataset
        has as ``rows`` (`build.data_binding`)."""

    def build_part(self, section: Mapping[str, Any], rng: np.random.Generator, share: Share) -> Splits:
        """Build the same, where this is one of several processes. What it hands out is cut to this process's records
        afterwards; a source of large files may read its range only and hand out parts (`record_set.read_part`)."""
        return self.build(section, rng)

    def remark(self, section: Mapping[str, Any]) -> str:
        """Return what a run's log says about how records are read: a function of the section alone, not of records."""
        return ""

    # -- what is fitted on D, where anything is ---------------------------------------------------------

    def preparation(self, section: Mapping[str, Any]) -> Preparation | None:
        """Declare a release on D before training, which the plan pays for; None where nothing is fitted on records."""
        return None

    def sums(self, dataset: Any) -> np.ndarray:
        """Return what is released, before noise: a sum over the records of D, of several processes over those of this
        one, so that the parts add up. ``dataset``: what `build` handed out, or the part of it. A private value."""
        raise self._unprepared()

    def fitted(self, released: np.ndarray, deviation: float) -> dict[str, Any]:
        """Derive public values, fit for JSON, from the noisy sum; ``deviation`` is that of the noise."""
        raise self._unprepared()

    def prepared(self, dataset: Any, fit: Mapping[str, Any]) -> Dataset:
        """Return a set that `build` handed out, with its records as the fitted values want them."""
        raise self._unprepared()

    def _unprepared(self) -> MechanismError:
        return MechanismError(
            f"source {self.name!r} asks for a release before training; it needs sums, fitted, prepared"
        )

    # -- for a prediction -------------------------------------------------------------------------------

    @abstractmethod
    def card(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """Return public facts that a prediction needs, fit for JSON: the source's name, its schema, class names and
        shape. Of a run that has fitted something the card also has that, as ``fitted`` (`TrainClassifier.card`)."""

    @abstractmethod
    def read(self, card: Mapping[str, Any], path: str) -> Dataset:
        """Read the records of a file, in the file's order, for a prediction. Labels may be missing; they are not used.
        One that cannot be read is not finite. A set of a file with columns has ``identifiers(column)``, their
        values."""

    def read_frame(self, card: Mapping[str, Any], frame: Any) -> Dataset | None:
        """Read the records of a pandas table, for a prediction; None where its rows are no records of this source."""
        return None

    def in_target_unit(self, card: Mapping[str, Any], values: np.ndarray) -> np.ndarray:
        """Return what a regression predicts, or is to predict, in the target's own unit.

        Here as it is trained on; where the card has a public ``target_range``, [−1, 1] stands for that.
        """
        if card.get("target_range") is None:
            return values
        low, high = map(float, card["target_range"])
        return low + (np.clip(values, -1.0, 1.0) + 1) / 2 * (high - low)


_SOURCES: dict[str, Source] = {}


@cache
def _offered() -> dict[str, EntryPoint]:
    """Return the sources that nobody has asked for yet, by name. Some need packages that others do not."""
    return offered_sources()


def register_source(source: Source, *, force: bool = False) -> None:
    """Make ``dataset.name = source.name`` read records by this source."""
    find_source(source.name)
    if source.name in _SOURCES and not force:
        raise MechanismError(f"there is a source {source.name!r} already; pass force=True to replace it")
    _SOURCES[source.name] = source
    SOURCE_KEYS[source.name] = {n: key if isinstance(key, Key) else Key(key) for n, key in source.keys.items()}


def unregister_source(name: str) -> None:
    """Forget a source, for instance after a test."""
    _offered().pop(name, None)
    _SOURCES.pop(name, None)
    SOURCE_KEYS.pop(name, None)


def find_source(name: Any) -> Source | None:
    """Return the source of this name; None where the name is that of a published dataset, or of nothing.

    The keys of one that is loaded for it are known to `config.keys` from then on.
    """
    if not isinstance(name, str):
        return None
    if name in _offered():
        source = load(_offered()[name])()
        if source.name != name:
            raise MechanismError(f"the extension that offers the source {name!r} has one named {source.name!r}")
        del _offered()[name]
        register_source(source)
    return _SOURCES.get(name)


def source_names() -> list[str]:
    return sorted({*_SOURCES, *_offered()})


# --- splits ----------------------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """Which rows of the file at ``path`` are in each set; empty for a set that has a file of its own."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def check_split(section: Mapping[str, Any]) -> None:
    """Refuse a split that contradicts itself; call it in `Source.check`."""
    for part in ("validation", "test"):
        if section.get(f"{part}_path") is not None and section.get(f"{part}_fraction"):
            fix = f"the {part} set has a file of its own ({part}_path); give one of them"
            raise ConfigError(f"dataset.{part}_fraction", section[f"{part}_fraction"], fix)
    held_out, testing = _fractions(section)
    if held_out + testing >= 1:
        raise ConfigError("dataset.test_fraction", testing, "leaves no record to train on; lower it")


def split_rows(total: int, section: Mapping[str, Any], rng: np.random.Generator) -> Rows:
    """Split rows into the training, validation and test sets: by a permutation that looks at their number alone.

    ``validation_fraction=0`` leaves V empty: nothing reads it, and D has its records.
    """
    held_out, testing = (int(total * share) for share in _fractions(section))
    order = rng.permutation(total)
    rows = Rows(order[held_out + testing :], order[:held_out], order[held_out : held_out + testing])
    if any(needed and not len(part) for needed, part in zip(_wanted(section), rows, strict=True)):
        raise DataError(f"{total} records are too few for a training, a validation and a test set")
    return rows


def _wanted(section: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    """Return which of the three sets must have records of the file at ``path``."""
    split_off = section.get("validation_path") is None and section.get("validation_fraction") != 0
    return True, split_off, section.get("test_path") is None


def _fractions(section: Mapping[str, Any]) -> tuple[float, float]:
    """Return the shares that are held out for validation and for testing; 0 for a set with a file of its own."""

    def share(part: str, usual: float) -> float:
        given = section.get(f"{part}_fraction")
        return 0.0 if section.get(f"{part}_path") is not None else usual if given is None else float(given)

    return share("validation", VALIDATION_FRACTION), share("test", TEST_FRACTION)


def with_own_files(section: Mapping[str, Any], **sets: Any) -> dict[str, Any]:
    """Return the section as if each set that is given, not None, had a file of its own, so that none is split off."""
    return {**section, **{f"{name}_path": True for name, given in sets.items() if given is not None}}


def split_store(
    records: RecordSet,
    validation: RecordSet | None,
    test: RecordSet | None,
    section: Mapping[str, Any],
    rng: np.random.Generator,
    classes: int,
    owners: Sequence[Iterable[Any]] | None = None,
) -> Splits:
    """Split one store's rows among the sets that have none of their own, by the number of records and the seed alone.

    Of a test set that is public, those without a known label are left out: nothing can be said of them. A private one
    keeps them, since its size is public; they contribute nothing.
    ``owners``: whose each record of the three is, by name; sets are then made of whole owners (`_split_owners`).
    """
    given = with_own_files(section, validation=validation, test=test)
    if owners is not None:
        train, held_out, tested = _split_owners((records, validation, test), owners, given, rng)
    else:
        rows = split_rows(len(records), given, rng)
        train = records.at(rows.train)
        held_out = records.at(rows.validation) if validation is None else validation
        tested = records.at(rows.test) if test is None else test
    return Splits(train, held_out, tested_records(tested, section, classes), classes)


def _split_owners(
    sets: tuple[RecordSet, RecordSet | None, RecordSet | None],
    owners: Sequence[Iterable[Any]],
    section: Mapping[str, Any],
    rng: np.random.Generator,
) -> Iterator[RecordSet]:
    """Split as `split_store` does, by whole owners: D, V and the test set have no owner in common.

    Formal guarantee: which owners come into which set depends on their number and the seed alone. Of sets with files of
    their own, V loses the records of owners who are in D's file and the test set those of owners in either; they count
    as owners without a record, so nothing that V releases, and no size, depends on who was left out.
    """
    numbered, records = Numbered(), sets[0]
    seen = numbered.codes(owners[0])
    split = owner_rows(seen, *_fractions(section), rng)
    refuse_no_owners(split, _wanted(section))
    yield _owned(records, split.train)
    for part, names, dealt in zip(sets[1:], owners[1:], split[1:], strict=True):
        if part is None:
            yield _owned(records, dealt)
            continue
        codes = numbered.codes(names)
        yield _owned(part, own_file(codes, elsewhere=seen))
        seen = np.concatenate([seen, codes])


def refuse_used_column(owner: str, columns: Iterable[str | None]) -> None:
    """Refuse a column of owners that is learned from or predicted."""
    if owner in columns:
        raise ConfigError("dataset.owner", owner, "is learned from or predicted; name one that says whose a record is")


def _owned(records: RecordSet, found: tuple[np.ndarray, Owners]) -> RecordSet:
    rows, owners = found
    if len(records.rows) != len(records.store):
        raise DataError("owners are split over all rows of a file")
    return RecordSet(records.store, rows, records.target, owners=owners)


def tested_records(records: RecordSet, section: Mapping[str, Any], classes: int) -> RecordSet:
    """Return the test set: of a public one, the records with a known label."""
    return with_known_labels(records, classes) if section.get("test") in (None, PUBLIC) else records


def with_known_labels(records: RecordSet, classes: int) -> RecordSet:
    """Return the records whose label is a class, or whose target a number. For a test set that is public, alone."""
    labels = records.targets
    known = torch.isfinite(labels) if labels.is_floating_point() else (labels >= 0) & (labels < classes)
    return records.kept(known.numpy())


def refuse_empty(records: RecordSet, what: str) -> None:
    if len(records) < 1:
        raise DataError(f"there is no record in {what}")


# --- keys that several sources read ------------------------------------------------------------------------------


def class_names(key: str, value: Any) -> tuple[str, ...]:
    """Check names of the classes, in the order of the labels; a number stands for 0, 1, …"""
    if isinstance(value, int):
        return tuple(map(str, range(whole(key, value, low=2, high=100_000))))
    names = list_of(key, value, text)
    if len(names) < 2 or len(set(names)) < len(names):
        raise ConfigError(key, value, "must be two or more names, all different, or the number of classes")
    return names


def declared_classes(section: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the classes that the config declares: labels are private, so they cannot be looked up."""
    if section.get("classes") is None:
        fix = "declare the classes: their names in the order of the labels, or how many there are"
        raise ConfigError("dataset.classes", None, fix)
    return class_names("dataset.classes", section["classes"])


def label_numbers(labels: np.ndarray, classes: Sequence[str]) -> Tensor:
    """Turn labels into places in ``classes``, each by itself: a name, or a number. What is no class is `NO_CLASS`."""
    if labels.dtype.kind in "iub":
        known = (labels >= 0) & (labels < len(classes))
        return torch.from_numpy(np.where(known, labels, NO_CLASS).astype(np.int64))
    numbers = {str(number): number for number in range(len(classes))}
    place = {**numbers, **{name: number for number, name in enumerate(classes)}}
    found = (place.get(str(label), NO_CLASS) if isinstance(label, (str, int)) else NO_CLASS for label in labels)
    return torch.tensor(list(found), dtype=torch.int64)


OWN_SPLIT_KEYS = {name: key for name, key in SPLIT_KEYS.items() if name != "cache"}
_CONSTANTS = "constants by which pixels are normalised"
IMAGE_KEYS: dict[str, Key] = {
    "size": Key(partial(whole, low=8, high=1024), None, "pixels a side that images are brought to"),
    "channels": Key(partial(whole, low=1, high=3), None, "1 for grey, 3 for colour"),
    "mean": Key(partial(list_of, check=partial(number, low=-10, high=10)), None, _CONSTANTS),
    "std": Key(partial(list_of, check=partial(number, low=0, high=10)), None, _CONSTANTS),
}
PATH = Key(path, None, "the file or folder")


def owner_key(where: str) -> Key:
    """Return the key `owner` of a source; ``where`` says what in its files it names."""
    unit = "the unit of privacy is then the person, and sets are made of whole people. A record without a name is a"
    return Key(text, None, f"whose each record is, where one person has several: {unit} person's only one. {where}")


CLASSES = Key(class_names, None, "names of the classes, in the order of the labels, or how many there are")
TARGET = Key(text, None, "the column to predict")
TEXT = Key(text, None, "the column of texts")
MAX_LENGTH = Key(partial(whole, low=8, high=100_000), None, "bytes to which every text is cut")


def pixel_constants(section: Mapping[str, Any], channels: int) -> PixelConstants:
    """Return constants of the config, or those that are usual: ImageNet's for colours. They are never fitted."""
    usual = IMAGENET if channels == 3 else _GREY
    given = [tuple(map(float, section.get(key) or getattr(usual, key))) for key in ("mean", "std")]
    for key, values in zip(("mean", "std"), given, strict=True):
        if len(values) != channels:
            raise ConfigError(f"dataset.{key}", section.get(key), f"must be {channels} numbers, one for each channel")
    return PixelConstants(*given)
