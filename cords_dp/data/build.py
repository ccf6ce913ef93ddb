"""From a config's ``dataset`` section to train, validation and test sets."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from dotmap import DotMap

from cords_dp.config import thawed_copy
from cords_dp.data.arrays import ArrayDataset, RawData, Splits
from cords_dp.data.fetch import image_arrays
from cords_dp.data.published import DATASETS, dataset_name, feature_of, for_testing, held_out, shift_set
from cords_dp.data.shards import WHOLE, Share
from cords_dp.data.sources.base import find_source
from cords_dp.data.text_sets import TEXT_SETS, build_text
from cords_dp.data.variants import cut_classes, inverted, keep_share, mild_imbalance, turned, wrong_labels
from cords_dp.errors import DatasetUnavailableError


def build_dataset(cfg: Mapping[str, Any], rng: np.random.Generator, share: Share = WHOLE) -> Splits:
    """Train, validation and test sets. The validation set is split off without looking at the records.

    ``share``: what a source of large files need not read beyond; other sets are to be cut to it (`shards.cut_splits`).
    """
    section, name = cfg["dataset"], dataset_name(cfg)
    if (source := find_source(name)) is not None:
        return source.build(section, rng) if share.size == 1 else source.build_part(section, rng, share)
    if name in TEXT_SETS:
        return build_text(section, rng)
    if name not in DATASETS:
        return _cords_dataset(section)
    if name == "synthetic":
        separation = float(section.get("class_separation") or 1.6)
        parts = shift_set(section.get("num_samples") or 5000, separation, rng)
        train_part, validation_part, test_part = (ArrayDataset(x, y) for x, y in parts)
        return Splits(train_part, validation_part, test_part, 2)
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
    return Splits(
        ArrayDataset(images, labels, info.mean, info.std, rows=train),
        ArrayDataset(raw.x_train, raw.y_train, info.mean, info.std, rows=validation),
        ArrayDataset(raw.x_train, raw.y_train, info.mean, info.std, rows=testing)
        if len(testing)
        else ArrayDataset(raw.x_test, raw.y_test, info.mean, info.std),
        info.num_classes,
    )


def _split(
    labels: np.ndarray, section: Mapping[str, Any], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Indices of training, validation and testing records, after the imbalance that the config asks for."""
    feature = feature_of(section)
    everything = np.arange(len(labels))
    if feature == "mildimb":
        everything = mild_imbalance(labels, tuple(section.get("keep_range") or (0.8, 1.0)), rng)
    balanced_validation = bool(section.get("balanced_validation"))
    if feature == "classimb" and not balanced_validation:
        everything = cut_classes(labels, float(section["classimb_ratio"]), rng)
    order = rng.permutation(everything)
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
    """The training rows that are kept and all labels, some wrong in the training set; validation stays as it is."""
    kept = train[keep_share(labels[train], section.get("cut_classes") or (), float(section.get("cut_share") or 1), rng)]
    share, kind = float(section.get("label_noise") or 0.0), section.get("label_noise_kind") or "pair"
    noisy = labels.copy()
    noisy[kept] = wrong_labels(labels[kept], share, kind, classes, rng)
    return kept, noisy


def _digits() -> RawData:
    """scikit-learn's 8×8 digits; the publisher's order, the last fifth for testing. Pixels are 0…16.

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
    return Splits(*gen_dataset(section["datadir"], section["name"], section["feature"], **options))
