"""A config, checked and resolved once: what a run needs to know before it touches data or writes a file.

How many records a run has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any

import torch

from cords_dp.config import PrivacySettings, SubsetSettings, frozen_copy, given_copy
from cords_dp.config.keys import DEAD_SECTIONS, KEYS, TOP_LEVEL, check_values
from cords_dp.config.settings import (
    AUTO,
    CORDS_STRATEGY_KEYS,
    SELECTION_PRIVACY_KEYS,
    check_keys,
    check_sections,
    read_privacy,
    read_subset,
    read_training,
)
from cords_dp.config.values import folder, list_of, one_of
from cords_dp.data.published import (
    check_dataset,
    dataset_name,
    has_classes,
    holds_images,
    known_sizes,
    public_facts,
    refuse_telling_rows,
)
from cords_dp.data.sources.base import find_source
from cords_dp.errors import AccountingError, ConfigError
from cords_dp.models.build import check_model
from cords_dp.noise.generators import Streams
from cords_dp.planning import Mechanism, PrivacyPlan, build_plan, read_mechanism
from cords_dp.planning.mechanism import mechanism_keys, registered_mechanisms
from cords_dp.planning.schedule import Preparation
from cords_dp.processes import current_world, local_rank
from cords_dp.training.metrics import LABELS
from cords_dp.training.optim import check_optimizer
from cords_dp.training.strategies import Strategy, get_strategy

_OWN_KEYS = frozenset({"type", "mechanism", "collate_fn", *(f.name for f in fields(SubsetSettings))})


@dataclass(frozen=True)
class Run:
    """Everything that a config says, checked. ``config`` is a read-only copy with defaults filled in.

    privacy is None for a strategy that is not private, mechanism for one that does not select. batch_size and
    learning_rate are None where the plan chooses. unused: CORDS' keys that this run does not use.
    notes: what else of the config is not used, in words. preparation: what is released of D before training.
    own_device: that of a model which is on one already.
    """

    config: Mapping[str, Any]
    strategy: Strategy
    privacy: PrivacySettings | None
    subset: SubsetSettings
    mechanism: Mechanism | None
    epochs: int
    batch_size: int | None
    learning_rate: float | None
    seed: int | None
    unused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    planned_learning_rate: bool = False
    preparation: Preparation | None = None
    own_device: str | None = None

    @property
    def resumes(self) -> bool:
        """Does it continue an earlier run from its checkpoint?"""
        return bool((self.config.get("ckpt") or {}).get("is_load"))

    @property
    def regression(self) -> bool:
        return bool(self.config["is_reg"])

    @cached_property
    def device(self) -> str:
        """Where it runs: the device of the config, if this machine has it. Asking imports torch."""
        return self.own_device or _device(self.config["train_args"].get("device"))

    def section(self, name: str) -> Mapping[str, Any]:
        return self.config.get(name) or {}

    def plan(self, n: int, n_validation: int) -> PrivacyPlan | None:
        """The privacy plan for public sizes, or None for a strategy that is not private."""
        if self.privacy is None:
            return None
        try:
            return build_plan(
                self.strategy.name,
                self.privacy,
                self.subset,
                self.mechanism,
                epochs=self.epochs,
                batch_size=self.batch_size,
                n=n,
                n_validation=n_validation,
                uses_all=self.strategy.uses_all,
                preparation=self.preparation,
            )
        except AccountingError as error:
            raise ConfigError(
                "privacy.epsilon", self.privacy.epsilon, f"no noise meets this budget with the other keys: {error}"
            ) from error

    def with_plan(self, plan: PrivacyPlan | None, learning_rate: float) -> Run:
        """The same run with everything known: batch size and learning rate as they will be used."""
        batch_size = plan.shape.batch_size if plan else self.batch_size
        changes = {
            "dataloader": {**self.section("dataloader"), "batch_size": batch_size},
            "optimizer": {**self.section("optimizer"), "lr": learning_rate},
        }
        config = frozen_copy({**self.config, **changes})
        planned = self.learning_rate is None
        return replace(
            self, config=config, batch_size=batch_size, learning_rate=learning_rate, planned_learning_rate=planned
        )


def resolve(cfg: Mapping[str, Any], *, own_data: bool = False, own_model: bool = False, plan: bool = True) -> Run:
    """Check everything that can be checked without data. The config itself is left as it is.

    ``own_data``: datasets will be handed to ``train``. ``own_model``: the model is the user's, without a name.
    ``plan``: the run is about to start; also look at the folders that it will write to, and make the plan, which takes
    seconds.
    """
    config = given_copy(cfg)
    _find_keys_of_source(config)
    check_sections(config)
    config, notes = _without_dead_sections(config)
    check_values(config)
    strategy = get_strategy((config.get("dss_args") or {}).get("type"))
    if strategy.private:
        check_keys("dss_args", config["dss_args"], {*_OWN_KEYS, *CORDS_STRATEGY_KEYS, *mechanism_keys()})
    epochs, batch_size, learning_rate = read_training(config)
    check_optimizer(config)
    if not own_model:
        check_model(config, own_data=own_data)
    _check_metrics(config["train_args"])
    for key, value in (("dataloader.batch_size", batch_size), ("optimizer.lr", learning_rate)):
        if value is None and not strategy.private:
            raise ConfigError(key, AUTO, "follows the privacy plan, which only private strategies have; give a number")
    regression = _check_loss(config, strategy, own_data=own_data)
    if config.get("is_reg") is not None and config["is_reg"] != regression:
        kind = "a regression" if regression else "a classifier"
        notes.append(f"is_reg = {config['is_reg']} is not used: loss.type = {config['loss']['type']!r} trains {kind}.")
    if not own_data:
        check_dataset(config, private=strategy.private)
    privacy = read_privacy(config) if strategy.private else None
    subset = read_subset(config, uses_all=strategy.uses_all) if strategy.private else SubsetSettings()
    if privacy and privacy.augmentations > 1 and not own_data and not holds_images(config):
        raise ConfigError("privacy.augmentations", privacy.augmentations, "only images can be shown in other views")
    mechanism, source = None, None if own_data else find_source(dataset_name(config))
    if privacy and strategy.selects:
        mechanism = read_mechanism(config["dss_args"], privacy, subset, default=strategy.mechanism)
    if strategy.uses_all and subset.fraction != 1:
        notes.append(
            f"dss_args.fraction = {subset.fraction:g} has no effect: {strategy.name} trains on all records. RandomDP "
            "trains on a share of them; dss_args.compute_fraction takes fewer steps."
        )
    run = Run(
        config=_with_defaults({**config, "is_reg": regression}, strategy, subset),
        strategy=strategy,
        privacy=privacy,
        subset=subset,
        mechanism=mechanism,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        seed=config["train_args"].get("seed"),
        unused=_unused_keys(config, strategy, mechanism) if strategy.private else (),
        notes=tuple(notes),
        preparation=source.preparation(config["dataset"]) if strategy.private and source is not None else None,
    )
    _check_publishing(run)
    if plan:
        _ = run.device  # refuses one that there is not
        folder("train_args.results_dir", run.config["train_args"]["results_dir"])
        folder("ckpt.dir", run.config["ckpt"]["dir"])
    if plan and not own_data and strategy.private and (sizes := known_sizes(config)) is not None:
        run.plan(*sizes)  # batch size, delta and selection rules depend on n
    return run


def _find_keys_of_source(config: Mapping[str, Any]) -> None:
    """Let the source of the records, if there is one, say which keys its section may have."""
    section = config.get("dataset")
    find_source(section.get("name") if isinstance(section, Mapping) else None)


def _check_metrics(section: Mapping[str, Any]) -> None:
    for key in ("print_args", "return_args"):
        if section.get(key) is not None:
            list_of(f"train_args.{key}", section[key], partial(one_of, choices=LABELS), empty=True)


def _without_dead_sections(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """The config less the sections that CORDS does not read either, and a note on each that holds something."""
    kept = {key: value for key, value in config.items() if key in KEYS or key in TOP_LEVEL}
    dead = [key for key in config if key in DEAD_SECTIONS and config[key]]
    return kept, [f"CORDS reads no section {key!r}: set what is in it in {DEAD_SECTIONS[key]!r}." for key in dead]


def _check_loss(config: Mapping[str, Any], strategy: Strategy, *, own_data: bool) -> bool:
    """Is this a regression? The loss decides."""
    loss = config["loss"].get("type")
    if loss not in ("CrossEntropyLoss", "MeanSquaredLoss"):
        raise ConfigError("loss.type", loss, "must be CrossEntropyLoss or MeanSquaredLoss")
    if loss == "CrossEntropyLoss":
        if not own_data and (facts := public_facts(config)) is not None and not facts.classes:
            raise ConfigError("loss.type", loss, f"the target of {dataset_name(config)} is a number: MeanSquaredLoss")
        return False
    if strategy.private and not own_data and has_classes(config):
        raise ConfigError("loss.type", loss, f"the labels of {dataset_name(config)} are classes: CrossEntropyLoss")
    if strategy.private and strategy.selects:
        raise ConfigError(
            "dss_args.type",
            strategy.name,
            "none of its mechanisms is proved for a regression, which has no classes; use RandomDP or FullDP",
        )
    return True


def _unused_keys(config: Mapping[str, Any], strategy: Strategy, mechanism: Mechanism | None) -> tuple[str, ...]:
    """Return CORDS' keys that this run does not use. A key of ours that it does not use is an error."""
    used = mechanism.own_keys() if mechanism else frozenset()
    dss_args = {key: value for key, value in config["dss_args"].items() if value is not None}
    extra = [key for key in dss_args if key not in {*used, *_OWN_KEYS} or (key == "mechanism" and mechanism is None)]
    extra += [key for key in sorted(used) if key in dss_args and dss_args[key] != getattr(mechanism, key)]
    wanted = mechanism.privacy_keys if mechanism else frozenset()
    privacy = {key: value for key, value in config["privacy"].items() if value is not None}
    ours = [("dss_args", key, dss_args[key]) for key in extra if key not in CORDS_STRATEGY_KEYS]
    ours += [("privacy", key, privacy[key]) for key in privacy if key in SELECTION_PRIVACY_KEYS - wanted]
    for section, key, value in ours:
        raise ConfigError(f"{section}.{key}", value, _who_uses(section, key, strategy, mechanism))
    if mechanism is None:  # it does not select at all, so CORDS' keys about selecting need no mention
        return ("dss_args.fraction",) if strategy.uses_all and dss_args.get("fraction", 1) != 1 else ()
    return tuple(f"dss_args.{key}" for key in extra)


def _who_uses(section: str, key: str, strategy: Strategy, mechanism: Mechanism | None) -> str:
    """What to do about a key that means nothing to this strategy or mechanism."""
    if mechanism is None:
        return (
            f"{strategy.name} selects nothing, so it does not use this key; remove it, or choose dss_args.type from "
            "the strategies that select, such as GLISTERDP"
        )
    users = ", ".join(
        m.name for m in registered_mechanisms() if key in (m.own_keys() if section == "dss_args" else m.privacy_keys)
    )
    return f"mechanism {mechanism.name!r} does not use it; remove it, or choose dss_args.mechanism from {users}"


def _check_publishing(run: Run) -> None:
    secret = run.subset.secret_subset or (run.mechanism is not None and run.mechanism.secret_pool)
    if run.subset.publish_subset and (run.strategy.uses_all or secret):
        paid = ", ".join(repr(m.name) for m in registered_mechanisms() if not m.secret_pool)
        raise ConfigError(
            "dss_args.publish_subset",
            True,
            "the pool of this strategy is secret state of the training mechanism (or all records); to publish a subset "
            f"use RandomDP, or GLISTERDP with one of the mechanisms {paid}",
        )
    if run.subset.publish_subset:
        refuse_telling_rows(run.section("dataset"))


def _with_defaults(config: Mapping[str, Any], strategy: Strategy, subset: SubsetSettings) -> Mapping[str, Any]:
    """Values that CORDS' constructor reads and a short config leaves out."""
    defaults: dict[str, dict[str, Any]] = {
        "dss_args": {"select_every": subset.select_every, "kappa": subset.kappa},
        "ckpt": {"is_load": False, "is_save": False, "dir": "results/", "save_every": 1},
        "train_args": {"results_dir": "results/", "run": 1, "print_every": 1},
        "dataset": {"name": "custom"},
        "scheduler": {},
    }
    if strategy.uses_all:
        defaults["dss_args"]["fraction"] = 1.0
    top = {"setting": "SL", "is_reg": False}
    sections = {name: _over(values, config.get(name) or {}) for name, values in defaults.items()}
    return frozen_copy({**config, **_over(top, {key: config.get(key) for key in top}), **sections})


def _over(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """``given``, and the defaults of what it leaves out; None counts as left out."""
    missing = {key: value for key, value in defaults.items() if given.get(key) is None}
    return {**given, **missing}


def _device(name: Any) -> str:
    if name is None or name == "cpu":
        return "cpu"
    wanted = str(name) if isinstance(name, (str, torch.device)) else ""
    try:
        device = torch.device(wanted)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
        raise ConfigError("train_args.device", name, "must be cpu, cuda or cuda:N")
    if device.type == "cpu":
        return wanted
    if not torch.cuda.is_available():
        return "cpu"
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise ConfigError("train_args.device", name, f"this machine has {torch.cuda.device_count()} CUDA devices")
    return f"cuda:{local_rank()}" if current_world().size > 1 else wanted


def public_sizes(run: Run) -> tuple[int, int]:
    """(n, |V|): public; those of an imbalanced variant have to be counted."""
    sizes = known_sizes(run.config)
    if sizes is None:
        from cords_dp.data.build import build_dataset  # late: it needs torch

        data = build_dataset(run.config, Streams(run.seed).numpy("data"))
        sizes = len(data.train), len(data.validation)  # type: ignore[arg-type]
    return sizes
