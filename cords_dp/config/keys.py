"""Every key of a config, with the check of its value: CORDS' own keys, those of its train loops, and ours.

None is the same as leaving a key out. What depends on two keys, on a mechanism or on the data is checked where it is
used; here stands what can be said about a value by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cords_dp.config.values import file_name, flag, function, list_of, number, one_of, path, text, whole
from cords_dp.errors import ConfigError

AUTO = "auto"  # optimizer.lr and dataloader.batch_size that follow the plan
# A schedule, a layer and a data set of more than this are slips of the keyboard that would fill the memory.
MOST_EPOCHS, _WIDEST, _MOST_SAMPLES, _LONGEST = 100_000, 100_000, 10_000_000, 10_000
_GREEDY = ("Naive", "RGreedy", "Stochastic", "Frozen")  # CORDS' three and ours
_LARGEST = 1e9  # a rate beyond it overflows in a step or two

Check = Callable[[str, Any], Any]

_positive = partial(number, low=0)
_count = partial(whole, high=10**9)
_size = partial(whole, high=_WIDEST)
_share = partial(number, low=0, high=1, high_included=True)
_part = partial(number, low=0, high=1)
_rate = partial(number, low=0, high=_LARGEST)


def _any(key: str, value: Any) -> Any:
    return value


def _section(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(key, value, "must be a dict")
    return value


def _auto_or(check: Check) -> Check:
    def checked(key: str, value: Any) -> Any:
        return value if isinstance(value, str) and value == AUTO else check(key, value)

    return checked


def _range(key: str, value: Any) -> Any:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ConfigError(key, value, "must be two shares, the lowest and the highest, such as (0.8, 1.0)")
    low, high = list_of(key, value, _share)
    if low > high:
        raise ConfigError(key, value, "the first share must not exceed the second")
    return value


def _milestones(key: str, value: Any) -> Any:
    milestones = list_of(key, value, _count)
    if list(milestones) != sorted(set(milestones)):
        raise ConfigError(key, value, "must be epochs in ascending order")
    return value


# CORDS' names of supervised learning, and what to do about a config for something else.
_SUPERVISED = ("SL", "supervisedlearning")
_OTHER_SETTINGS = {
    "SSL": "semi-supervised training looks at records without labels too, outside of the mechanisms that are proved "
    "here; use a config of CORDS' configs/SL, whose setting is 'SL'",
    "hyperparamtuning": "this file says how to tune, not how to train; train the config that its subset_config names "
    "(docs/from-cords.md)",
}
# Sections that CORDS' notebooks write to and CORDS never reads, with the section that was meant.
DEAD_SECTIONS = {"dss_strategy": "dss_args"}


def check_setting(key: str, value: Any) -> Any:
    if isinstance(value, str) and value in _OTHER_SETTINGS:
        raise ConfigError(key, value, _OTHER_SETTINGS[value])
    return one_of(key, value, choices=_SUPERVISED)


TOP_LEVEL: dict[str, Check] = {"setting": check_setting, "is_reg": flag, "report_tune": flag}

# None: the section is read into a class of its own (`config.settings.PrivacySettings`).
KEYS: dict[str, Mapping[str, Check] | None] = {
    "dataset": {
        "name": file_name, "datadir": path, "feature": text, "type": text, "classimb_ratio": _part,
        "balanced_validation": flag, "num_samples": partial(whole, low=20, high=_MOST_SAMPLES), "ss_path": path,
        "use_ss_if_exists": flag, "max_length": partial(whole, high=_LONGEST),
        "data_dir": path, "wordvec_dim": _size, "weight_path": path, "validation_fraction": _part,
        "test_from_train": _part,
        "class_separation": partial(number, low=0, high=1e6), "keep_range": _range,
        "cut_classes": partial(list_of, check=partial(whole, low=0, high=10**6)), "cut_share": _share,
        "inverted_share": _share,
        "rotated_share": _share,
        "label_noise": partial(number, low=0, high=1, low_included=True),
        "label_noise_kind": partial(one_of, choices=("pair", "random")),
    },
    "dataloader": {
        "shuffle": flag, "batch_size": _auto_or(_count), "pin_memory": flag, "collate_fn": function,
    },
    "model": {
        "architecture": text, "type": text, "numclasses": _size, "num_classes": _size, "input_dim": _size,
        "h1": _size, "h2": _size, "l1": _size, "l2": _size, "wordvec_dim": _size, "weight_path": path,
        "num_layers": _size, "hidden_size": _size, "args": _section, "features": text, "weights": path,
        "feature_cache": flag,
    },
    "ckpt": {"is_load": flag, "is_save": flag, "dir": path, "save_every": _count},
    "loss": {"type": text, "use_sigmoid": flag},
    "optimizer": {
        "type": text, "momentum": partial(number, low=0, high=1, low_included=True), "lr": _auto_or(_rate),
        "lr1": _rate, "lr2": _rate, "lr3": _rate, "weight_decay": partial(number, low=0, high=_LARGEST,
        low_included=True), "nesterov": flag, "lr_scale": partial(number, low=0, high=100),
    },
    "scheduler": {
        "type": text, "T_max": _count, "T_0": _count, "T_mult": _count, "stepsize": _count, "step_size": _count,
        "gamma": _share, "milestones": _milestones, "max_steps": _count,
    },
    "dss_args": {
        "type": file_name, "mechanism": text, "score": text, "collate_fn": function, "fraction": _share,
        "select_every": _count, "kappa": partial(number, low=0, high=1, low_included=True),
        # CORDS' own
        "linear_layer": flag, "selection_type": text, "greedy": partial(one_of, choices=_GREEDY), "r": _positive,
        "lam": partial(number, low=0, low_included=True), "valid": flag, "v1": flag, "eps": _positive,
        "temperature": _positive, "per_class": flag, "global_order_file": path, "gc_ratio": _positive,
        "gc_stochastic_subsets_file": path, "stochastic_subsets_file": path, "submod_function": text,
        "if_convex": flag, "size_chunk": _count,
    },
    "train_args": {
        "num_epochs": partial(whole, high=MOST_EPOCHS), "device": _any, "print_every": _count,
        "run": partial(_count, low=0), "results_dir": path, "wandb": flag, "tensorboard": flag,
        "print_args": _any, "return_args": _any,
        "seed": partial(whole, low=0, high=2**63 - 1),
        "shares": partial(list_of, check=partial(number, low=0, high=1e12, low_included=True)),
    },
    "privacy": None,
}  # fmt: skip

# The keys of ``dataset`` that a source of records of the user's own reads, by its name (`datasets.sources`).
SOURCE_KEYS: dict[str, Mapping[str, Check]] = {}
_OF_ANY_SOURCE = ("name", "datadir", "feature", "type")


def section_checks(section: str, values: Mapping[str, Any]) -> Mapping[str, Check] | None:
    """The keys that a section may have, with their checks. Those of ``dataset`` depend on its name."""
    checks, name = KEYS[section], values.get("name")
    if section != "dataset" or checks is None or not isinstance(name, str) or name not in SOURCE_KEYS:
        return checks
    return {**{key: checks[key] for key in _OF_ANY_SOURCE}, **SOURCE_KEYS[name]}


def check_values(cfg: Mapping[str, Any]) -> None:
    """Check every value that is given, one by one. Keys that are not known here are left to others."""
    for key, check in TOP_LEVEL.items():
        if cfg.get(key) is not None:
            check(key, cfg[key])
    for section in KEYS:
        values = cfg.get(section) or {}
        for key, check in (section_checks(section, values) or {}).items():
            if values.get(key) is not None:
                check(f"{section}.{key}", values[key])
