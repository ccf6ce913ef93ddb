"""Turns a config into a `Run`, before data is read or a file is written. There is no other way to one.

Every check runs on what is sound of the config, so that all problems are found in one pass (`errors.Problems`).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from dotmap import DotMap

from cords_dp.config import PrivacySettings, SubsetSettings, frozen_copy, given_copy, load_config
from cords_dp.config.keys import DEAD_SECTIONS, KEYS, TOP_LEVEL, section_keys, with_defaults
from cords_dp.config.settings import AUTO, PRIVATE, PUBLIC
from cords_dp.config.values import Key, anything, check_keys, folder, keys_of, suggest
from cords_dp.data.published import check_dataset, dataset_name, holds_images, known_sizes, splits_off_validation
from cords_dp.data.sources.base import find_source
from cords_dp.errors import ConfigError, Problems
from cords_dp.models.build import check_model
from cords_dp.planning import read_mechanism
from cords_dp.planning.mechanism import mechanism_keys
from cords_dp.training.checks import (
    check_automatic,
    check_head_start,
    check_loss,
    check_metrics,
    check_publishing,
    check_reports,
    check_subset,
    check_temperature,
    check_train_on_validation,
    notes_on,
    unused_keys,
)
from cords_dp.training.optim import check_optimizer
from cords_dp.training.run import Run, with_unit
from cords_dp.training.strategies import Strategy, get_strategy, strategy_names

# What takes the place of a required key that is missing or wrong, so that the other checks can run. A config with
# such a problem is refused at the end: none of these values reaches a plan that is run.
_STAND_INS: dict[str, dict[str, Any]] = {
    "dss_args": {"fraction": 0.1},
    "privacy": {"epsilon": 3.0},
    "optimizer": {"type": "sgd", "lr": 0.1},
    "dataloader": {"batch_size": 20},
    "train_args": {"num_epochs": 10},
    "loss": {"type": "CrossEntropyLoss"},
}
_REQUIRED = ("dataset", "dataloader", "model", "dss_args", "train_args", "optimizer", "loss")


GivenConfig: TypeAlias = Run | DotMap | Mapping[str, Any] | str | PathLike[str]  # what a trainer takes


def as_given(given: GivenConfig) -> tuple[DotMap, Run | None]:
    """Return a config in CORDS' form, and the run if it is resolved already. Older notebooks name the file of one."""
    if isinstance(given, Run):
        return given.as_cords(), given
    if isinstance(given, (str, PathLike)):
        given = load_config(Path(given))
    return given if isinstance(given, DotMap) else DotMap(given), None


def resolve(cfg: Mapping[str, Any], *, own_data: bool = False, own_model: bool = False, plan: bool = True) -> Run:
    """Check everything that can be checked without data, and report every problem in one `ConfigError`.

    The config itself is left as it is. ``own_data``: datasets will be handed to ``train``. ``own_model``: the model is
    the user's, without a name. ``plan``: the run is about to start; also look at the folders that it will write to, and
    make the plan, which takes seconds.
    """
    run, problems = examine(cfg, own_data=own_data, own_model=own_model)
    problems.refuse()
    if not plan:
        return run
    with problems.noted():
        _ = run.device  # refuses one that there is not
    for section, key in (("train_args", "results_dir"), ("ckpt", "dir")):
        with problems.noted():
            folder(f"{section}.{key}", run.config[section][key])
    with problems.noted():
        if not own_data and run.privacy and (sizes := known_sizes(run.config)) is not None:
            run.plan(*sizes)  # batch size, delta and selection rules depend on n
    problems.refuse()
    return run


def examine(cfg: Mapping[str, Any], *, own_data: bool, own_model: bool) -> tuple[Run, Problems]:
    """Read a config as far as it goes, and say what is wrong with it. A run with problems must not be started."""
    problems = Problems()
    given = _without_budget(given_copy(cfg))
    if given.get("setting") is not None:
        check_keys("", {"setting": given["setting"]}, TOP_LEVEL)  # sections of another setting are not ours to judge
    config, strategy = _readable(given, problems)
    own_data = own_data or problems.about("dataset.name")
    own_model = own_model or problems.about("model.architecture")
    checks: list[Callable[[], object]] = [
        partial(check_optimizer, config),
        partial(check_metrics, config, own_data=own_data),
        partial(check_automatic, config, strategy),
    ]
    checks += [] if own_model else [partial(check_model, config, own_data=own_data)]
    checks += [] if own_data else [partial(check_dataset, config, private=strategy.private)]
    for check in checks:
        with problems.noted():
            check()
    regression = config["loss"]["type"] == "MeanSquaredLoss"
    with problems.noted():
        check_loss(config, strategy, own_data=own_data or problems.about("dataset"))
    privacy = PrivacySettings(**_given(config["privacy"])) if strategy.private else None
    subset = _subset(config) if strategy.private else SubsetSettings()
    with problems.noted():
        if not own_data:  # of sets that are handed over it is known with them (`Run.for_owners`)
            privacy = with_unit(privacy, owned=config["dataset"].get("owner") is not None)
    mechanism, source = None, None if own_data else find_source(dataset_name(config))
    with problems.noted():
        check_subset(config, subset, strategy)
    with problems.noted():
        if privacy and privacy.augmentations > 1 and not own_data and not holds_images(config):
            raise ConfigError("privacy.augmentations", privacy.augmentations, "only images can be shown in other views")
    with problems.noted():
        if privacy and strategy.selects:
            mechanism = read_mechanism(config["dss_args"], privacy, subset, default=strategy.mechanism)
    unused: tuple[str, ...] = ()
    with problems.noted():
        if strategy.private and (mechanism or not strategy.selects):
            unused = unused_keys(config, strategy, mechanism)
            check_temperature(config, strategy, mechanism)
            check_head_start(privacy, strategy, mechanism)
            check_train_on_validation(config, privacy, mechanism)
    config["dataset"] = _with_test(config["dataset"], privacy, own=source is not None and not source.published)
    with problems.noted():
        check_reports(config, privacy)
    preparation = None
    with problems.noted():
        if strategy.private and source is not None:
            preparation = source.preparation(config["dataset"])
    run = Run(
        config=_with_defaults({**config, "is_reg": regression}, strategy, subset),
        strategy=strategy,
        privacy=privacy,
        subset=subset,
        mechanism=mechanism,
        epochs=config["train_args"]["num_epochs"],
        batch_size=None if config["dataloader"]["batch_size"] == AUTO else config["dataloader"]["batch_size"],
        learning_rate=None if config["optimizer"]["lr"] == AUTO else float(config["optimizer"]["lr"]),
        seed=config["train_args"].get("seed"),
        unused=unused,
        notes=tuple(notes_on(given, config, strategy, subset)),
        preparation=preparation,
    )
    with problems.noted():
        check_publishing(run)
    with problems.noted():
        if mechanism is not None or not strategy.selects:
            run = _with_records_of_validation(run, own_data=own_data)
    return run, problems


def _with_records_of_validation(run: Run, *, own_data: bool) -> Run:
    """Return the run that trains on V's records too, where nothing reads V and the config does not ask for it."""
    section = run.section("dataset")
    share = section.get("validation_fraction")
    if run.reads_validation:
        if share == 0 and section.get("validation_path") is None:
            fix = f"{run.strategy.name} reads the validation set: leave the key out (a tenth), or give a share above 0"
            raise ConfigError("dataset.validation_fraction", share, fix)
        return run
    if own_data or share is not None or not splits_off_validation(run.config):
        return run
    return replace(
        run, config=frozen_copy({**run.config, "dataset": {**section, "validation_fraction": 0.0}}), whole=True
    )


def _with_test(section: Mapping[str, Any], privacy: PrivacySettings | None, *, own: bool) -> dict[str, Any]:
    """Write down what may be told of the test set: of one's ``own`` records nothing exact unless it is declared public.

    Published sets, and sets that a program hands over, are taken as public, and so is that of a run without privacy.
    """
    test = section.get("test") or (PRIVATE if own else None)
    if test == PRIVATE and (privacy is None or privacy.noiseless):
        test = PUBLIC
    return {**section, **({} if test is None else {"test": test})}


def _without_budget(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Take ``privacy.epsilon = None``, where it is written down, for an infinite one: a run that is not private."""
    section = given.get("privacy")
    if not isinstance(section, Mapping) or "epsilon" not in section or section["epsilon"] is not None:
        return given
    return {**given, "privacy": {**section, "epsilon": math.inf}}


def _readable(given: Mapping[str, Any], problems: Problems) -> tuple[dict[str, Any], Strategy]:
    """Return the part of a config that can be read: known keys with sound values, stand-ins for what must be there."""
    section = given.get("dataset")
    find_source(section.get("name") if isinstance(section, Mapping) else None)  # it says which keys the section has
    for name, value in given.items():
        empty = isinstance(value, Mapping) and not value  # a DotMap makes one of every name that is read
        if name not in {*TOP_LEVEL, *KEYS, *DEAD_SECTIONS} and not empty:
            problems.note(ConfigError(name, value, suggest(name, {*TOP_LEVEL, *KEYS})))
        elif name in KEYS and not isinstance(value, Mapping):
            problems.note(ConfigError(name, value, "this is a section: write it as dict(...)"))
    config = {name: value for name, value in given.items() if name in TOP_LEVEL}
    with problems.noted():
        check_keys("", config, TOP_LEVEL)
    config = {name: value for name, value in config.items() if not problems.about(name)}
    sections = {name: given[name] for name in KEYS if isinstance(given.get(name), Mapping)}
    strategy = _strategy(sections.get("dss_args", {}), problems)
    for name, values in sections.items():
        keys = dict(section_keys(name, values))
        if name == "dss_args":
            others = mechanism_keys() if strategy.private else values.keys()  # CORDS checks its strategies' own
            keys = {**dict.fromkeys(others, Key(anything)), **keys}
        config[name] = _sound(name, values, keys, problems)
    for name in _REQUIRED:
        if not sections.get(name):
            problems.note(ConfigError(name, None, "this section is missing; see configs/ for complete examples"))
    for name in (*_REQUIRED, *(["privacy"] if strategy.private else [])):
        config[name] = _complete(name, config.get(name) or {}, strategy, problems)
    return config, strategy


def _strategy(section: Mapping[str, Any], problems: Problems) -> Strategy:
    """Return the strategy of this name; for an unknown name, one that looks like it."""
    name = section.get("type")
    with problems.noted():
        if section:
            return get_strategy(name)
    return get_strategy(next(iter(difflib.get_close_matches(str(name), strategy_names(), 1, 0.5)), "RandomDP"))


def _sound(name: str, values: Mapping[str, Any], keys: Mapping[str, Key], problems: Problems) -> dict[str, Any]:
    for key in (key for key in values if key not in keys):
        problems.note(ConfigError(f"{name}.{key}", values[key], suggest(key, keys)))
    with problems.noted():
        check_keys(name, values, keys)
    return {key: value for key, value in values.items() if not problems.about(f"{name}.{key}")}


def _complete(name: str, values: Mapping[str, Any], strategy: Strategy, problems: Problems) -> dict[str, Any]:
    """Return the section with a stand-in for each required key that is missing, which is a problem."""
    stand_ins = _STAND_INS.get(name, {})
    if name == "dss_args" and (strategy.uses_all or not strategy.private):
        return dict(values)  # the share of the records is left to the strategy
    missing = [key for key in stand_ins if values.get(key) is None]
    for key in missing:
        with problems.noted():
            if (name, key) in _ADVICE:
                raise ConfigError(f"{name}.{key}", None, _ADVICE[name, key])
            KEYS[name][key].check(f"{name}.{key}", None)
    return {**values, **{key: stand_ins[key] for key in missing}}


_ADVICE = {
    ("privacy", "epsilon"): "a private strategy needs a budget: privacy=dict(epsilon=3.0)",
    ("dss_args", "fraction"): "say which share of the data to train on, e.g. 0.1",
}


def _given(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if value is not None}


def _subset(config: Mapping[str, Any]) -> SubsetSettings:
    names = keys_of(SubsetSettings)
    return SubsetSettings(**{key: value for key, value in _given(config["dss_args"]).items() if key in names})


def _with_defaults(config: Mapping[str, Any], strategy: Strategy, subset: SubsetSettings) -> Mapping[str, Any]:
    """Return the config as CORDS' constructor reads it, with the values that a short one leaves out."""
    usual = {"select_every": subset.select_every, "kappa": subset.kappa}
    usual |= {"fraction": 1.0} if strategy.uses_all else {}
    section = config["dss_args"]
    missing = {key: value for key, value in usual.items() if section.get(key) is None}
    return frozen_copy({**with_defaults(config), "dss_args": {**section, **missing}})
