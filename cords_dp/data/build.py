"""From a config to the sets of a run: built, split, bound to a ledger, readable, as features, and in batches.

A ledger is continued on the same data and split only: `data_binding` is a digest of public facts.

A run splits records by a permutation, so the number of a record in D says nothing to anybody else. Which rows of a
file, of arrays or of a published set the records of D are depends on the number of records and on the seed alone. Where
they depend on labels or values, because an imbalance is made for a study or files are sorted by class, they are not
told (`described_rows`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from dotmap import DotMap
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from cords_dp.config import thawed_copy, to_plain
from cords_dp.config.settings import PRIVATE, UNREAD
from cords_dp.data.fetch import image_arrays
from cords_dp.data.handed_over import as_records, checked_splits
from cords_dp.data.padding import is_text, padded_splits, public_length
from cords_dp.data.published import (
    DATASETS,
    dataset_name,
    feature_of,
    for_testing,
    held_out,
    records_of,
    refuse_telling_rows,
)
from cords_dp.data.record_set import WHOLE, RecordSet, Share, Splits, array_set, sequential_batches
from cords_dp.data.sources.base import find_source
from cords_dp.data.store import ArrayStore, RawData
from cords_dp.data.text_sets import TEXT_SETS, build_text
from cords_dp.data.variants import (
    cut_classes,
    inverted,
    keep_share,
    mild_imbalance,
    shift_set,
    turned,
    wrong_labels,
)
from cords_dp.errors import DatasetUnavailableError

_EVALUATION_BATCH = 1024
UNREADABLE = (
    "Records that cannot be read, or differ in shape or type from the first one, contribute nothing: "
    "cords_dp.data.handed_over.unreadable_records(trainset) lists them, for the owner's eyes."
)


def build_dataset(cfg: Mapping[str, Any], rng: np.random.Generator, share: Share = WHOLE) -> Splits:
    """Train, validation and test sets. The validation set is split off without looking at the records.

    ``share``: what a source of large files need not read beyond; other sets are to be cut to it (`RecordSet.cut`).
    """
    data = _built(cfg, rng, share)
    if isinstance(data.validation, RecordSet) or len(data.validation):
        return data
    return data._replace(validation=as_records(data.train).at(np.arange(0)))  # so that a record's shape is known


def _built(cfg: Mapping[str, Any], rng: np.random.Generator, share: Share) -> Splits:
    section, name = cfg["dataset"], dataset_name(cfg)
    if (source := find_source(name)) is not None:
        return source.build(section, rng) if share.size == 1 else source.build_part(section, rng, share)
    if name in TEXT_SETS:
        return build_text(section, rng)
    if name not in DATASETS:
        return _cords_dataset(section)
    if name == "synthetic":
        separation = float(section.get("class_separation") or 1.6)
        parts = shift_set(records_of(section, name), separation, rng)
        made = [array_set(x, y) for x, y in parts]
        return Splits(made[0], made[1], made[2], 2)
    info = DATASETS[name]
    raw = _digits() if name == "digits" else image_arrays(name, Path(section["datadir"]).expanduser())
    if (len(raw.y_train), len(raw.y_test)) != (info.num_train, info.num_test):
        raise DatasetUnavailableError(
            f"{name} in the data directory is not whole: {len(raw.y_train)} and {len(raw.y_test)} records for training "
            f"and testing instead of {info.num_train} and {info.num_test}; remove {name}.npz and unpack it again"
        )
    train, validation, testing = _split(raw.y_train, section, rng)
    images, labels = raw.x_train, raw.y_train
    if section.get("feature") == "shift":
        train, labels = _shifted(raw.y_train, train, section, info.num_classes, rng)
        for key, change in (("inverted_share", inverted), ("rotated_share", turned)):
            if section.get(key):
                images, labels = np.concatenate([images, change(images)]), np.concatenate([labels, labels])
                train = train + len(labels) // 2 * (rng.random(len(train)) < float(section[key]))
    published = ArrayStore(raw.x_train, raw.y_train, info.mean, info.std)
    changed = published if labels is raw.y_train else ArrayStore(images, labels, info.mean, info.std)
    tested = RecordSet(published, testing) if len(testing) else array_set(raw.x_test, raw.y_test, info.mean, info.std)
    return Splits(RecordSet(changed, train), RecordSet(published, validation), tested, info.num_classes)


def _split(
    labels: np.ndarray, section: Mapping[str, Any], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return indices of training, validation and testing records, after the imbalance that the config asks for."""
    feature = feature_of(section)
    everything = np.arange(len(labels))
    if feature == "mildimb":
        everything = mild_imbalance(labels, tuple(section.get("keep_range") or (0.8, 1.0)), rng)
    balanced_validation = bool(section.get("balanced_validation"))
    if feature == "classimb" and not balanced_validation:
        everything = cut_classes(labels, float(section["classimb_ratio"]), rng)
    order = rng.permutation(everything)[: section.get("num_samples")]
    validating = held_out(section, len(order))
    testing = for_testing(section, len(order))
    validation, rest = order[:validating], order[validating:]
    test, train = rest[:testing], rest[testing:]
    if feature == "classimb" and balanced_validation:
        train = train[cut_classes(labels[train], float(section["classimb_ratio"]), rng)]
    return train, validation, test


def _shifted(
    labels: np.ndarray, train: np.ndarray, section: Mapping[str, Any], classes: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the training rows that are kept, and all labels, some wrong in the training set and none in validation."""
    if section.get("only_share"):
        return train[: round(float(section["only_share"]) * len(train))], labels
    spared, train = np.split(train, [round(float(section.get("clean_share") or 0.0) * len(train))])
    kept = train[keep_share(labels[train], section.get("cut_classes") or (), float(section.get("cut_share") or 1), rng)]
    share, kind = float(section.get("label_noise") or 0.0), section.get("label_noise_kind") or "pair"
    noisy = labels.copy()
    noisy[kept] = wrong_labels(labels[kept], share, kind, classes, rng)
    return np.concatenate([spared, kept]), noisy


def _digits() -> RawData:
    """Return scikit-learn's 8×8 digits; the publisher's order, the last fifth for testing. Pixels are 0…16.

    Its file is read here: importing scikit-learn takes as long as training on it.
    """
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise DatasetUnavailableError("the digits come with scikit-learn: pip install scikit-learn")
    table = np.loadtxt(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    x, y = (table[:, :-1] / 16.0 - 0.3).astype(np.float32), table[:, -1].astype(np.int64)
    cut = DATASETS["digits"].num_train
    return RawData(x[:cut], y[:cut], x[cut:], y[cut:])


def _cords_dataset(section: Mapping[str, Any]) -> Splits:
    from cords_dp.cords import gen_dataset

    options: dict[str, Any] = {"dataset": DotMap(thawed_copy(section))}
    if section.get("feature") == "classimb":
        options["classimb_ratio"] = section["classimb_ratio"]
    data = Splits(*gen_dataset(section["datadir"], section["name"], section["feature"], **options))
    if section.get("validation_fraction") != 0:
        return data
    everything: Dataset = ConcatDataset([data.train, data.validation])  # CORDS always splits V off
    return data._replace(train=everything, validation=Subset(everything, []))


# --- which records these are -------------------------------------------------------------------------------------

_PLACES = ("datadir", "cache")  # where files lie says nothing about what is in them


def data_binding(config: Mapping[str, Any], seed: int | None, data: Splits, *, built: bool = False) -> str:
    """Return a digest of the dataset section, the seed of the split, and which rows are in D and in V.

    Nothing about the records themselves goes in: a digest of private values could be tried out. So of datasets that the
    user hands over without saying which rows of what they are, only the kind and the size are known. ``built``: the
    sets were made from the config, so a source's ``rows`` are numbers of rows in its file.
    """
    section = {key: _named(key, value) for key, value in to_plain(config["dataset"]).items() if key not in _PLACES}
    private_test = section.pop("test", None) == PRIVATE
    if section.get("validation_fraction") == 0:  # the rows say it
        del section["validation_fraction"]
    if built and (source := find_source(section.get("name"))) is not None:
        section["card"] = source.card(config["dataset"])
    read = data[:3] if private_test else data[:2]  # a test set that nothing is charged to may be another
    rows = [as_records(part).binding(built=built) for part in read]
    facts = [section, seed, *rows, data.num_classes]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _named(key: str, value: Any) -> Any:
    """Return a file by its name, since it may be moved; what a source says about it is in its card."""
    return PurePath(value).name if isinstance(value, str) and key.endswith(("path", "schema", "labels")) else value


def described_rows(config: Mapping[str, Any], rows: np.ndarray | None, picked: list[int]) -> dict[str, Any]:
    """Name some records of D by their rows, and say which rows these are."""
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


# --- as a run reads them -----------------------------------------------------------------------------------------


def readable(data: Splits, config: Mapping[str, Any], *, private: bool, own: bool) -> Splits:
    """Make a private run's records readable, each by itself; ``own``: the user's, which are checked."""
    regression = bool(config["is_reg"])
    if private:
        data = padded_splits(data, config)
    if regression and not private:
        return data  # CORDS' own sets and losses
    if not own:
        return data
    section = config["dataset"]
    empty, guarded = section.get("validation_fraction") == 0, section.get("test") in (PRIVATE, UNREAD)
    return checked_splits(data, private=private, regression=regression, without_validation=empty, private_test=guarded)


def describe_padding(config: Mapping[str, Any]) -> list[str]:
    """Say what a user of texts should know about `readable`."""
    if not is_text(config):
        return []
    return [f"Every record is cut or filled up to {public_length(config)} words (dataset.max_length)."]


def evaluation_batches(
    dataset: Dataset, config: Mapping[str, Any], *, private: bool
) -> Iterable[tuple[Tensor, Tensor]]:
    collate = config["dataloader"].get("collate_fn") or None
    if collate is None or private:  # private records are collated one by one
        return sequential_batches(dataset, _EVALUATION_BATCH)
    return DataLoader(dataset, batch_size=_EVALUATION_BATCH, collate_fn=collate)
