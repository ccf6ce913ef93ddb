"""What is public of the datasets that come by name, and what their section of a config may say. Nothing is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cords_dp.config.keys import SOURCE_KEYS
from cords_dp.config.settings import PRIVATE
from cords_dp.config.values import folder, path
from cords_dp.data.class_folders import sorted_by_class
from cords_dp.data.sources.base import VALIDATION_FRACTION, Facts, find_source, source_names
from cords_dp.data.store import PixelConstants
from cords_dp.data.text_sets import TEXT_SETS
from cords_dp.data.variants import SYNTHETIC_FEATURES
from cords_dp.errors import ConfigError

FEATURE_NAMES = ("dss", "classimb", "mildimb", "shift")

__all__ = ["DATASETS", "DatasetInfo", "dataset_name"]


@dataclass(frozen=True)
class DatasetInfo:
    """Public facts of a dataset: sizes, shape, and the constants that its pixels are normalised with."""

    num_train: int
    num_test: int
    shape: tuple[int, ...]
    num_classes: int
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


# The constants are CORDS' own; they are published with the datasets, not fitted here.
DATASETS: dict[str, DatasetInfo] = {
    "mnist": DatasetInfo(60_000, 10_000, (1, 28, 28), 10, (0.1307,), (0.3081,)),
    "cifar10": DatasetInfo(50_000, 10_000, (3, 32, 32), 10, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": DatasetInfo(50_000, 10_000, (3, 32, 32), 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "tinyimagenet": DatasetInfo(100_000, 10_000, (3, 64, 64), 200, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "digits": DatasetInfo(1_437, 360, (64,), 10),
    "synthetic": DatasetInfo(4_000, 500, (SYNTHETIC_FEATURES,), 2),
}
_ALIASES = {"sklearn-digits": "digits"}
# Sets that CORDS reads with fixed constants.
_CORDS_IMAGE_SETS = {"fashion-mnist", "svhn", "kmnist", "stl10", "emnist"}
_SORTED_BY_CLASS = {"folder", "tinyimagenet"}
_HAND_OVER = (
    "hand over records that are scaled by public constants: "
    "TrainClassifier(cfg).train(trainset=..., validset=..., testset=..., num_cls=...)"
)
# Sets that CORDS standardises with statistics of the training records.
_STANDARDISED = {
    "dna", "Community_Crime", "LawSchool", "LawSchool_selcon", "cadata", "abalone", "cpusmall", "MSD", "adult",
    "connect_4", "letter", "satimage", "svmguide1", "usps", "ijcnn1", "covertype", "census",
}  # fmt: skip


def dataset_name(cfg: Mapping[str, Any]) -> str:
    name = cfg["dataset"].get("name")
    return _ALIASES.get(name, name)


def check_dataset(cfg: Mapping[str, Any], *, private: bool) -> None:
    """Refuse a dataset section that cannot be used, before anything is read."""
    name, feature = dataset_name(cfg), feature_of(cfg["dataset"])
    if not name:
        known = ", ".join([*DATASETS, *source_names()])
        raise ConfigError("dataset.name", name, f"name a dataset: {known}")
    if (source := find_source(name)) is not None:
        if feature != "dss":
            raise ConfigError("dataset.feature", feature, "changes published sets only; leave the key out")
        source.check(cfg["dataset"], private=private)
        return
    if name not in DATASETS:
        if (some := cfg["dataset"].get("num_samples")) is not None:
            raise ConfigError("dataset.num_samples", some, f"takes a part of {', '.join(DATASETS)}; leave the key out")
        if private and name not in _CORDS_IMAGE_SETS and name not in TEXT_SETS:
            raise ConfigError("dataset.name", name, f"{_why_not(name)}; {_HAND_OVER}")
        return
    _check_built(cfg["dataset"], name, feature)


def public_facts(cfg: Mapping[str, Any]) -> Facts | None:
    """Return what is public of a set before it is read; None for one whose records have to be looked at."""
    name = dataset_name(cfg)
    if (source := find_source(name)) is not None:
        return source.facts(cfg["dataset"])
    info = DATASETS.get(name)
    if info is None:
        return None
    constants = PixelConstants(info.mean, info.std) if info.mean else None
    classes = tuple(map(str, range(info.num_classes)))
    return Facts(info.shape, classes, images=len(info.shape) == 3, constants=constants)


def _why_not(name: str) -> str:
    """Return the reason why a set cannot be read privately."""
    if name in _STANDARDISED:
        return "CORDS standardises it with statistics of the training records, which no budget pays for"
    if name == "boston":
        return "scikit-learn has withdrawn it"
    known = ", ".join(sorted([*DATASETS, *_CORDS_IMAGE_SETS, *TEXT_SETS, *source_names()]))
    return f"no set of this name can be read privately (known are {known})"


def has_classes(cfg: Mapping[str, Any]) -> bool:
    """Say whether it is a set whose labels are known to be classes."""
    facts = public_facts(cfg)
    if facts is not None:
        return bool(facts.classes)
    return dataset_name(cfg) in {*_CORDS_IMAGE_SETS, *TEXT_SETS}


def _check_built(section: Mapping[str, Any], name: str, feature: Any) -> None:
    """Check the rest of the section, for a set that is built here. Its sizes are public, so they are checked now."""
    info = DATASETS[name]
    if feature not in FEATURE_NAMES:
        raise ConfigError("dataset.feature", feature, f"must be one of {', '.join(FEATURE_NAMES)}")
    if feature != "dss" and name == "synthetic":
        raise ConfigError("dataset.feature", feature, "the synthetic set is imbalanced already; use 'dss'")
    if feature == "shift":
        _check_shift(section, info.num_classes)
    ratio = section.get("classimb_ratio")
    if feature == "classimb" and (ratio is None or int(ratio * info.num_classes) < 1):
        few = f"classimb needs the share of classes to cut, in (0, 1), at least one of {info.num_classes}"
        raise ConfigError("dataset.classimb_ratio", ratio, few)
    share = section.get("validation_fraction")
    if name == "synthetic" and share is not None:
        raise ConfigError("dataset.validation_fraction", share, "the synthetic set has a validation set of its own")
    if name == "synthetic" and section.get("test_from_train") is not None:
        raise ConfigError("dataset.test_from_train", share, "the synthetic set has a test set of its own")
    total = records_of(section, name)
    if name != "synthetic" and total > info.num_train:
        raise ConfigError("dataset.num_samples", total, f"{name} has {info.num_train} records for training")
    validating, testing = held_out(section, total), for_testing(section, total)
    fits = validating + testing < total and (validating or share == 0)
    if name != "synthetic" and not fits:
        raise ConfigError("dataset.validation_fraction", share, f"leaves no record of {total} on one side")
    if name not in ("synthetic", "digits"):
        if section.get("datadir") is None:
            raise ConfigError("dataset.datadir", None, f"say in which folder {name} is, or where to put it")
        if not (path("dataset.datadir", section["datadir"]) / f"{name}.npz").is_file():
            folder("dataset.datadir", section["datadir"])  # it will be fetched into it


def held_out(section: Mapping[str, Any], total: int) -> int:
    share = section.get("validation_fraction")
    return int(total * (VALIDATION_FRACTION if share is None else share))


def splits_off_validation(cfg: Mapping[str, Any]) -> bool:
    """Return whether V is a share of the records that D has too. One with a file or a law of its own is not."""
    name, section = dataset_name(cfg), cfg["dataset"]
    if find_source(name) is not None:
        return "validation_fraction" in SOURCE_KEYS[name] and section.get("validation_path") is None
    if name in TEXT_SETS:
        return TEXT_SETS[name].held_out == "validation"
    return name != "synthetic"


def for_testing(section: Mapping[str, Any], total: int) -> int:
    """Count the training records that serve as the test set, for choosing settings without the published test set."""
    return int(total * (section.get("test_from_train") or 0.0))


def holds_images(cfg: Mapping[str, Any]) -> bool:
    facts = public_facts(cfg)
    if facts is None:  # CORDS' other sets that can be read privately are images or text
        return dataset_name(cfg) not in TEXT_SETS
    return facts.images


def _check_shift(section: Mapping[str, Any], classes: int) -> None:
    cut = section.get("cut_classes") or ()
    if not all(isinstance(c, int) and 0 <= c < classes for c in cut):
        raise ConfigError("dataset.cut_classes", cut, f"must be a list of classes from 0 to {classes - 1}")


def known_sizes(cfg: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return (n, |V|) where the config alone tells them; None where data, or a private test set, must be counted."""
    name, section = dataset_name(cfg), cfg["dataset"]
    if name not in DATASETS or feature_of(section) != "dss" or section.get("test") == PRIVATE:
        return None
    total = records_of(section, name)
    if name == "synthetic":
        return total - 2 * (total // 10), total // 10
    return total - held_out(section, total) - for_testing(section, total), held_out(section, total)


def records_of(section: Mapping[str, Any], name: str) -> int:
    """Return how many records of a published set are split into D and V; of the synthetic one, also into the test set.

    Which ones the seed of the data decides, not what they hold.
    """
    return section.get("num_samples") or (5000 if name == "synthetic" else DATASETS[name].num_train)


def feature_of(section: Mapping[str, Any]) -> str:
    return section.get("feature") or "dss"


def refuse_telling_rows(section: Mapping[str, Any]) -> None:
    """Refuse to publish rows of records whose row tells what nobody paid for: their labels, or a column of theirs.

    Elsewhere rows depend on the number of records and the seed alone, so that a row in D says nothing of its record.
    """
    if section.get("name") in _SORTED_BY_CLASS or _read_from_class_folders(section):
        why = (
            "images in folders are named and ordered by their class, so a published subset would tell labels that "
            "nobody paid for; store them as arrays (dataset.name='arrays'), in an order that tells nothing"
        )
    elif (key := _cut_by(section)) is not None:
        why = (
            f"dataset.{key} = {section[key]!r} keeps records in D for what they hold, so published rows would tell "
            "labels or values that nobody paid for; leave that key out, or publish no subset"
        )
    else:
        return
    raise ConfigError("dss_args.publish_subset", True, why)


def _read_from_class_folders(section: Mapping[str, Any]) -> bool:
    name, datadir = dataset_name({"dataset": section}), section.get("datadir")
    return name in DATASETS and datadir is not None and sorted_by_class(name, Path(datadir).expanduser())


def _cut_by(section: Mapping[str, Any]) -> str | None:
    """Return the key by which records are left out of D for what they hold."""
    if feature_of(section) in ("classimb", "mildimb"):
        return "feature"
    return next((key for key in ("cut_classes", "cut_column") if section.get(key)), None)
