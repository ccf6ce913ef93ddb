"""Turns a config into a `Run`, before data is read or a file is written. There is no other way to one.

Every check runs on what is sound of the config, so that all problems are found in one pass (`errors.Problems`).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from cords_dp.config import PrivacySettings, SubsetSettings, frozen_copy, given_copy
from cords_dp.config.keys import (
    COMMON_STRATEGY_KEYS,
    CORDS_STRATEGY_KEYS,
    DEAD_SECTIONS,
    KEYS,
    TOP_LEVEL,
    section_keys,
    with_defaults,
)
from cords_dp.config.settings import AUTO, PRIVATE, PUBLIC, RECORDS_PER_OWNER, SELECTION_PRIVACY_KEYS
from cords_dp.config.values import Key, anything, check_keys, folder, keys_of, list_of, one_of, suggest
from cords_dp.data.published import (
    check_dataset,
    dataset_name,
    has_classes,
    holds_images,
    known_sizes,
    public_facts,
    refuse_telling_rows,
    splits_off_validation,
)
from cords_dp.data.record_set import Splits
from cords_dp.data.sources.base import find_source
from cords_dp.errors import AccountingError, ConfigError, Problems
from cords_dp.evaluation.measured import fitting
from cords_dp.models.build import check_model
from cords_dp.noise.generators import Streams
from cords_dp.planning import Mechanism, PrivacyPlan, build_plan, read_mechanism
from cords_dp.planning.mechanism import mechanism_keys, registered_mechanisms
from cords_dp.planning.schedule import Preparation
from cords_dp.processes import current_world, local_rank
from cords_dp.training.metrics import LABELS
from cords_dp.training.optim import check_optimizer
from cords_dp.training.strategies import Strategy, get_strategy, strategy_names


@dataclass(frozen=True)
class Run:
    """Everything that a config says, checked. ``config`` is a read-only copy with defaults filled in.

    privacy is None for a strategy that is not private, mechanism for one that does not select. batch_size and
    learning_rate are None where the plan chooses. unused: CORDS' keys that this run does not use.
    notes: sentences about what else of the config is not used. preparation: what is released of D before training.
    own_device: that of a model which is on one already. whole: no V is split off, since nothing reads it and the config
    does not ask for one (``dataset.validation_fraction`` is then 0 in ``config``): its records are trained on.
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
    whole: bool = False

    @property
    def resumes(self) -> bool:
        """Whether it continues an earlier run from its checkpoint."""
        return bool((self.config.get("ckpt") or {}).get("is_load"))

    @property
    def reads_validation(self) -> bool:
        """Whether anything reads V: the strategy, which may read what it is handed, or its mechanism."""
        return self.strategy.reads_validation or (self.mechanism is not None and self.mechanism.reads_validation)

    def with_validation(self) -> Run:
        """Return the same run with V split off, as every run had it that began before V's records were trained on."""
        section = {key: value for key, value in self.section("dataset").items() if key != "validation_fraction"}
        return replace(self, config=frozen_copy({**self.config, "dataset": section}), whole=False)

    @property
    def regression(self) -> bool:
        return bool(self.config["is_reg"])

    @cached_property
    def device(self) -> str:
        """Where it runs: the device of the config, if this machine has it. Asking imports torch."""
        return self.own_device or _device(self.config["train_args"].get("device"))

    def section(self, name: str) -> Mapping[str, Any]:
        return self.config.get(name) or {}

    @property
    def test(self) -> str:
        """What may be told of the test set: ``private`` (one noisy release), ``public`` (exact metrics), ``unread``."""
        return str(self.section("dataset").get("test") or PUBLIC)

    def plan(self, n: int, n_validation: int, n_test: int = 0) -> PrivacyPlan | None:
        """Return the privacy plan for public sizes, or None for a strategy that is not private.

        ``n_test``: of a private test set; 0 plans no release of it, and then nothing is told of it.
        """
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
                n_test=n_test if self.test == PRIVATE else 0,
            )
        except AccountingError as error:
            raise ConfigError(
                "privacy.epsilon", self.privacy.epsilon, f"no noise meets this budget with the other keys: {error}"
            ) from error

    def for_owners(self, *, owned: bool) -> Run:
        """Return the same run on sets that a program has handed over; ``owned``: with owners of their records."""
        if self.privacy is None:
            return self
        if owned:
            return replace(self, privacy=_of_owners(self.privacy))
        if self.privacy.records_per_owner is not None:
            raise ConfigError("privacy.records_per_owner", self.privacy.records_per_owner, _NO_OWNERS)
        return self

    def with_plan(self, plan: PrivacyPlan | None, learning_rate: float) -> Run:
        """Return the same run with everything known: batch size and learning rate as they will be used."""
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
        partial(_check_metrics, config, own_data=own_data),
        partial(_check_automatic, config, strategy),
    ]
    checks += [] if own_model else [partial(check_model, config, own_data=own_data)]
    checks += [] if own_data else [partial(check_dataset, config, private=strategy.private)]
    for check in checks:
        with problems.noted():
            check()
    regression = config["loss"]["type"] == "MeanSquaredLoss"
    with problems.noted():
        _check_loss(config, strategy, own_data=own_data or problems.about("dataset"))
    privacy = PrivacySettings(**_given(config["privacy"])) if strategy.private else None
    subset = _subset(config) if strategy.private else SubsetSettings()
    with problems.noted():
        privacy = _with_unit(privacy, config["dataset"], own_data=own_data)
    mechanism, source = None, None if own_data else find_source(dataset_name(config))
    with problems.noted():
        _check_subset(config, subset, strategy)
    with problems.noted():
        if privacy and privacy.augmentations > 1 and not own_data and not holds_images(config):
            raise ConfigError("privacy.augmentations", privacy.augmentations, "only images can be shown in other views")
    with problems.noted():
        if privacy and strategy.selects:
            mechanism = read_mechanism(config["dss_args"], privacy, subset, default=strategy.mechanism)
    unused: tuple[str, ...] = ()
    with problems.noted():
        if strategy.private and (mechanism or not strategy.selects):
            unused = _unused_keys(config, strategy, mechanism)
    config["dataset"] = _with_test(config["dataset"], privacy, own=source is not None and not source.published)
    with problems.noted():
        _check_reports(config, privacy)
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
        notes=tuple(_notes(given, config, strategy, subset)),
        preparation=preparation,
    )
    with problems.noted():
        _check_publishing(run)
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


def _check_reports(config: Mapping[str, Any], privacy: PrivacySettings | None) -> None:
    """Refuse reports to a search from private records: it would choose by exact values."""
    if not config.get("report_tune") or privacy is None or config["dataset"].get("test") in (None, PUBLIC):
        return
    if privacy.validation == "private" and not privacy.exact_metrics:
        fix = "nothing exact may be reported of a private test set; `cords-dp tune` searches within one budget"
        raise ConfigError("report_tune", True, fix)


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


def _with_unit(
    privacy: PrivacySettings | None, section: Mapping[str, Any], *, own_data: bool
) -> PrivacySettings | None:
    """Let the unit of privacy be an owner where the config says whose each record is, and only there.

    Of sets that are handed over it is known with them (`Run.for_owners`).
    """
    if privacy is None or own_data:
        return privacy
    if section.get("owner") is not None:
        return _of_owners(privacy)
    if privacy.records_per_owner is not None:
        raise ConfigError("privacy.records_per_owner", privacy.records_per_owner, _NO_OWNERS)
    return privacy


def _of_owners(privacy: PrivacySettings) -> PrivacySettings:
    return replace(privacy, records_per_owner=privacy.records_per_owner or RECORDS_PER_OWNER)


_NO_OWNERS = "nobody owns several records here; say whose each record is (dataset.owner, or owners=), or leave it out"


def _subset(config: Mapping[str, Any]) -> SubsetSettings:
    names = keys_of(SubsetSettings)
    return SubsetSettings(**{key: value for key, value in _given(config["dss_args"]).items() if key in names})


def _check_subset(config: Mapping[str, Any], subset: SubsetSettings, strategy: Strategy) -> None:
    if subset.compute_fraction != 1 and not strategy.uses_all:
        fix = "only FullDP takes it: use dss_args.fraction"
        raise ConfigError("dss_args.compute_fraction", subset.compute_fraction, fix)
    if subset.secret_subset and (config.get("ckpt") or {}).get("is_load"):
        raise ConfigError("ckpt.is_load", True, "a run on a secret subset cannot be resumed: no file holds the subset")


def _check_automatic(config: Mapping[str, Any], strategy: Strategy) -> None:
    for section, key in (("dataloader", "batch_size"), ("optimizer", "lr")):
        if config[section][key] == AUTO and not strategy.private:
            fix = "follows the privacy plan, which only private strategies have; give a number"
            raise ConfigError(f"{section}.{key}", AUTO, fix)


def _notes(
    given: Mapping[str, Any], config: Mapping[str, Any], strategy: Strategy, subset: SubsetSettings
) -> Iterator[str]:
    """List what of a config is not used, although CORDS or a reader might expect it."""
    for name, meant in DEAD_SECTIONS.items():
        if given.get(name):
            yield f"CORDS reads no section {name!r}: set what is in it in {meant!r}."
    loss, flagged = config["loss"]["type"], config.get("is_reg")
    if flagged is not None and flagged != (loss == "MeanSquaredLoss"):
        kind = "a classifier" if flagged else "a regression"
        yield f"is_reg = {flagged} is not used: loss.type = {loss!r} trains {kind}."
    if strategy.uses_all and subset.fraction != 1:
        yield (
            f"dss_args.fraction = {subset.fraction:g} has no effect: {strategy.name} trains on all records. RandomDP "
            "trains on a share of them; dss_args.compute_fraction takes fewer steps."
        )


def _check_metrics(config: Mapping[str, Any], *, own_data: bool) -> None:
    section, regression = config["train_args"], config["loss"]["type"] == "MeanSquaredLoss"
    choices = {"print_args": LABELS, "return_args": LABELS, "metrics": fitting(regression=regression)}
    for key, known in choices.items():
        if section.get(key) is not None:
            list_of(f"train_args.{key}", section[key], partial(one_of, choices=known), empty=True)
    if section.get("metrics_by") is not None:
        _check_group_column(config, section["metrics_by"], own_data=own_data)


def _check_group_column(config: Mapping[str, Any], column: str, *, own_data: bool) -> None:
    """Refuse a column that the table's schema does not list as a categorical one."""
    source = None if own_data else find_source(dataset_name(config))
    schema = source.card(config["dataset"]).get("schema") if source is not None else None
    if not isinstance(schema, Mapping):
        raise ConfigError("train_args.metrics_by", column, "only the records of a table have columns; leave it out")
    known = [str(one["name"]) for one in schema.get("columns", ()) if one.get("categories")]
    if column not in known:
        fix = f"must be a categorical column of the schema: {', '.join(known) or 'it has none'}"
        raise ConfigError("train_args.metrics_by", column, fix)


def _check_loss(config: Mapping[str, Any], strategy: Strategy, *, own_data: bool) -> None:
    """Refuse a loss that does not go with the data's target or with the strategy."""
    loss = config["loss"]["type"]
    if loss == "CrossEntropyLoss":
        if not own_data and (facts := public_facts(config)) is not None and not facts.classes:
            raise ConfigError("loss.type", loss, f"the target of {dataset_name(config)} is a number: MeanSquaredLoss")
        return
    if strategy.private and not own_data and has_classes(config):
        raise ConfigError("loss.type", loss, f"the labels of {dataset_name(config)} are classes: CrossEntropyLoss")
    if strategy.private and strategy.selects:
        raise ConfigError(
            "dss_args.type",
            strategy.name,
            "none of its mechanisms is proved for a regression, which has no classes; use RandomDP or FullDP",
        )


def _unused_keys(config: Mapping[str, Any], strategy: Strategy, mechanism: Mechanism | None) -> tuple[str, ...]:
    """Return CORDS' keys that this run does not use. A key of ours that it does not use is an error."""
    used = mechanism.own_keys() if mechanism else frozenset()
    dss_args = {key: value for key, value in config["dss_args"].items() if value is not None}
    common = {key for key in COMMON_STRATEGY_KEYS if key != "mechanism" or mechanism is not None}
    extra = [key for key in dss_args if key not in {*used, *common}]
    extra += [key for key in sorted(used) if key in dss_args and dss_args[key] != getattr(mechanism, key)]
    wanted = mechanism.privacy_keys if mechanism else frozenset()
    privacy = {key: value for key, value in config["privacy"].items() if value is not None}
    ours = [("dss_args", key, dss_args[key]) for key in extra if key not in CORDS_STRATEGY_KEYS]
    ours += [("privacy", key, privacy[key]) for key in privacy if key in SELECTION_PRIVACY_KEYS - wanted]
    problems = Problems()
    for section, key, value in ours:
        problems.note(ConfigError(f"{section}.{key}", value, _who_uses(section, key, strategy, mechanism)))
    problems.refuse()
    if mechanism is None:  # it does not select at all, so CORDS' keys about selecting need no mention
        return ("dss_args.fraction",) if strategy.uses_all and dss_args.get("fraction", 1) != 1 else ()
    return tuple(f"dss_args.{key}" for key in extra)


def _who_uses(section: str, key: str, strategy: Strategy, mechanism: Mechanism | None) -> str:
    """Say what to do about a key that means nothing to this strategy or mechanism."""
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
    """Return the config as CORDS' constructor reads it, with the values that a short one leaves out."""
    usual = {"select_every": subset.select_every, "kappa": subset.kappa}
    usual |= {"fraction": 1.0} if strategy.uses_all else {}
    section = config["dss_args"]
    missing = {key: value for key, value in usual.items() if section.get(key) is None}
    return frozen_copy({**with_defaults(config), "dss_args": {**section, **missing}})


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


def public_sizes(run: Run) -> tuple[int, ...]:
    """Return n, |V| and, of a private test set, |T|: public. Those of an imbalanced variant have to be counted."""
    sizes: tuple[int, ...] | None = known_sizes(run.config)
    if sizes is None:
        from cords_dp.data.build import build_dataset  # late: it needs torch

        data = build_dataset(run.config, Streams(run.seed).numpy("data"))
        sizes = sizes_of(data, run)
    return sizes


def sizes_of(data: Splits, run: Run) -> tuple[int, ...]:
    """Count the units of privacy in D, in V and, where it is private, in the test set."""
    from cords_dp.data.handed_over import as_records

    parts = data[:3] if run.test == PRIVATE else data[:2]
    return tuple(as_records(part).units for part in parts)
