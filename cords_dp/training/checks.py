"""Checks which keys of a config go together, and tells which of them a run does not use. No data is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from cords_dp.config import PrivacySettings, SubsetSettings
from cords_dp.config.keys import COMMON_STRATEGY_KEYS, CORDS_STRATEGY_KEYS, DEAD_SECTIONS
from cords_dp.config.settings import AUTO, PUBLIC, SELECTION_PRIVACY_KEYS
from cords_dp.config.values import list_of, one_of
from cords_dp.data.published import dataset_name, has_classes, public_facts, refuse_telling_rows
from cords_dp.data.sources.base import find_source
from cords_dp.errors import ConfigError, Problems
from cords_dp.evaluation.measured import fitting
from cords_dp.planning import Mechanism
from cords_dp.planning.mechanism import registered_mechanisms
from cords_dp.training.metrics import LABELS
from cords_dp.training.run import Run
from cords_dp.training.strategies import Strategy


def check_subset(config: Mapping[str, Any], subset: SubsetSettings, strategy: Strategy) -> None:
    if subset.compute_fraction != 1 and not strategy.uses_all:
        fix = "only FullDP takes it: use dss_args.fraction"
        raise ConfigError("dss_args.compute_fraction", subset.compute_fraction, fix)
    if subset.secret_subset and (config.get("ckpt") or {}).get("is_load"):
        raise ConfigError("ckpt.is_load", True, "a run on a secret subset cannot be resumed: no file holds the subset")


def check_temperature(config: Mapping[str, Any], strategy: Strategy, mechanism: Mechanism | None) -> None:
    if config["privacy"].get("temperature") and not (mechanism and mechanism.reads_validation):
        fix = f"is fitted on the validation set, and {strategy.name} reads none here: leave it out"
        raise ConfigError("privacy.temperature", True, fix)


def check_train_on_validation(
    config: Mapping[str, Any], privacy: PrivacySettings | None, mechanism: Mechanism | None
) -> None:
    """Refuse a part in the steps, where it is asked for, of a V that is not read or has no budget of its own."""
    if privacy is None or not config["privacy"].get("train_on_validation"):
        return
    if not (mechanism and mechanism.reads_validation):
        fix = "is for strategies that read a validation set; all others train on its records anyway: leave it out"
        raise ConfigError("privacy.train_on_validation", True, fix)
    if privacy.validation != "private":
        fix = "charges V's own budget, and this validation set is public: leave it out, or add its records to D"
        raise ConfigError("privacy.train_on_validation", True, fix)


def check_head_start(privacy: PrivacySettings | None, strategy: Strategy, mechanism: Mechanism | None) -> None:
    """Refuse first steps on a V that the strategy does not read, or that has no budget of its own."""
    if privacy is None or privacy.head_start in (0, AUTO):
        return
    if not (mechanism and mechanism.reads_validation):
        fix = f"takes steps on the validation set, and {strategy.name} reads none here: leave it out"
        raise ConfigError("privacy.head_start", privacy.head_start, fix)
    if privacy.validation != "private":
        fix = "takes steps on a validation set with a budget of its own, and this one is public: leave it out"
        raise ConfigError("privacy.head_start", privacy.head_start, fix)


def check_automatic(config: Mapping[str, Any], strategy: Strategy) -> None:
    for section, key in (("dataloader", "batch_size"), ("optimizer", "lr")):
        if config[section][key] == AUTO and not strategy.private:
            fix = "follows the privacy plan, which only private strategies have; give a number"
            raise ConfigError(f"{section}.{key}", AUTO, fix)


def check_reports(config: Mapping[str, Any], privacy: PrivacySettings | None) -> None:
    """Refuse reports to a search from private records: it would choose by exact values."""
    if not config.get("report_tune") or privacy is None or config["dataset"].get("test") in (None, PUBLIC):
        return
    if privacy.validation == "private" and not privacy.exact_metrics:
        fix = "nothing exact may be reported of a private test set; `cords-dp tune` searches within one budget"
        raise ConfigError("report_tune", True, fix)


def check_metrics(config: Mapping[str, Any], *, own_data: bool) -> None:
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


def check_loss(config: Mapping[str, Any], strategy: Strategy, *, own_data: bool) -> None:
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


def unused_keys(config: Mapping[str, Any], strategy: Strategy, mechanism: Mechanism | None) -> tuple[str, ...]:
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


def check_publishing(run: Run) -> None:
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


def notes_on(
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
