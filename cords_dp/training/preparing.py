"""Prepares a run for `TrainClassifier`: its model and its plan. Nothing is written yet.

Everything that can be wrong is found here, before a log is opened. Records are read only where their number, which is
public, has to be counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cords_dp.accounting import Ledger
from cords_dp.config.settings import PRIVATE, PUBLIC
from cords_dp.data.build import UNREADABLE, build_dataset, describe_padding, readable
from cords_dp.data.handed_over import as_records, refuse_shared_records, with_owners
from cords_dp.data.published import known_sizes, public_facts
from cords_dp.data.record_set import Splits
from cords_dp.data.sources.base import find_source
from cords_dp.data.store import PixelConstants
from cords_dp.errors import ConfigError
from cords_dp.models.build import check_input, check_outputs
from cords_dp.noise.generators import Streams
from cords_dp.planning import PrivacyPlan
from cords_dp.processes import World
from cords_dp.training.checkpoint import ledger_path
from cords_dp.training.optim import planned_learning_rate
from cords_dp.training.resolve import Run, sizes_of
from cords_dp.training.session import share_of

BuildModel = Callable[[int, Sequence[int], PixelConstants | None], nn.Module]


@dataclass(frozen=True)
class Prepared:
    """A run that can begin.

    run: with batch size and learning rate as they will be used. plan: None for a strategy that is not private. record:
    zeros in the shape and type of a record. data: the sets, if they had to be counted.
    """

    run: Run
    plan: PrivacyPlan | None
    model: nn.Module
    record: Tensor
    data: Splits | None
    remarks: tuple[str, ...] = ()

    def dataset(self, world: World) -> Splits:
        return load_dataset(self.run, world) if self.data is None else self.data


def prepare(run: Run, build: BuildModel, world: World, given: Splits | None = None, owners: Any = None) -> Prepared:
    """Build the model, make the plan, and refuse what cannot be trained. ``given``: sets that are handed over."""
    if given is not None:
        run = run.for_owners(owned=owners is not None)
    elif owners is not None:
        raise ConfigError("owners", "a list", "is for sets that are handed over; name dataset.owner in the config")
    facts = public_facts(run.config) if given is None else None
    record = model = None
    if facts is not None:
        record = torch.zeros(facts.shape, dtype=facts.dtype)
        model = _fitting_model(run, build, facts.num_classes, record, facts.constants)
    sizes = known_sizes(run.config) if given is None else None
    data = _counted(run, given, owners, world) if sizes is None else None
    counted = sizes if data is None else sizes_of(data, run)
    assert counted is not None
    plan = run.plan(*counted)
    if record is None or model is None:
        assert data is not None
        record = torch.zeros_like(data.train[0][0])
        model = _fitting_model(run, build, data.num_classes, record)
    _refuse(run, plan, world, None if given is None else data)
    rate = run.learning_rate
    if rate is None:
        assert plan is not None
        rate = planned_learning_rate(run.config, plan, model)
    remarks = describe_padding(run.config) if data is not None and run.strategy.private else ()
    return Prepared(run.with_plan(plan, rate), plan, model, record, data, tuple(remarks))


def load_dataset(run: Run, world: World) -> Splits:
    """Load the configured data; of several processes each reads its share where it can."""
    return build_dataset(run.config, Streams(run.seed).numpy("data"), share_of(world, run.config))


def began_with_validation(run: Run, plan: PrivacyPlan | None, checkpoint: Path | None) -> bool:
    """Return whether the run that is resumed began with V split off, by a version that always did.

    Its ledger was opened under another plan then: the one for D without V's records is tried, or the run refused.
    """
    path = None if checkpoint is None else ledger_path(checkpoint)
    if plan is None or not (run.whole and run.resumes) or path is None or not path.is_file():
        return False
    return Ledger.read(path).fingerprint != plan.fingerprint


def fixed_lines(run: Run, plan: PrivacyPlan | None, *, built: bool) -> list[str]:
    """Return what a run says before it begins, whatever the records hold."""
    section = run.config["dataset"]
    lines = [UNREADABLE] if plan is not None and not built else []
    source = find_source(section.get("name")) if built else None
    if source is not None and (remark := source.remark(section)):
        lines.append(remark)
    if run.whole and built:
        lines.append(f"{run.strategy.name} reads no validation set: none is split off, its records are in D.")
    if run.planned_learning_rate:
        lines.append(f"Learning rate by the plan: {run.learning_rate:.4g}.")
    if run.device != str(run.config["train_args"].get("device") or "cpu"):
        lines.append("No CUDA on this machine: training on the CPU instead.")
    return lines


def _counted(run: Run, given: Splits | None, owners: Any, world: World) -> Splits:
    """Read the sets whose sizes, which are public, have to be counted."""
    own = given is not None or find_source(run.config["dataset"].get("name")) is not None
    data = readable(given or load_dataset(run, world), run.config, private=run.strategy.private, own=own)
    return data if owners is None else with_owners(data, owners)


def _fitting_model(
    run: Run, build: BuildModel, num_classes: int, record: Tensor, constants: PixelConstants | None = None
) -> nn.Module:
    """Build the configured model; refuse it where it cannot read such records."""
    model = build(num_classes, record.shape, constants)
    if run.strategy.private:
        check_input(model, record)
    if run.strategy.private and run.regression:
        check_outputs(model, record, num_classes)
    return model


# --- what is refused -----------------------------------------------------------------------------------------------


def _refuse(run: Run, plan: PrivacyPlan | None, world: World, given: Splits | None) -> None:
    """Refuse sets that share records, metrics of a V that is not there, and several processes without privacy."""
    if plan is None:
        if world.size > 1:
            raise ConfigError("dss_args.type", run.strategy.name, "only private strategies train in several processes")
        return
    if given is not None:
        refuse_shared_records(given, validation_is_read=plan.validation_is_read)
        _refuse_private_test(run, given)
    _refuse_metrics_of_nothing(run, plan)


def _refuse_private_test(run: Run, given: Splits) -> None:
    """Refuse a private test set that was handed over and of which a record's part of the release has no bound."""
    if run.test != PRIVATE:
        return
    if run.regression:
        fix = "targets that are handed over have no public range; read them as a table whose schema has one"
        raise ConfigError("dataset.test", PRIVATE, fix)
    if run.privacy is not None and run.privacy.unit == "owner" and as_records(given.test).owners is None:
        fix = f"nobody says whose the test records are: read them with dataset.owner, or declare them {PUBLIC!r}"
        raise ConfigError("dataset.test", PRIVATE, fix)


def _refuse_metrics_of_nothing(run: Run, plan: PrivacyPlan) -> None:
    """Refuse exact metrics of V that the config insists on (others are left out with a line in the log)."""
    wanted = [name for name in run.section("train_args").get("print_args") or () if name.startswith("val_")]
    if plan.shape.n_validation or not wanted:
        return
    if plan.privacy.exact_metrics or plan.privacy.validation == PUBLIC:
        fix = f"{run.strategy.name} trains on all records, so there is no validation set to measure: leave "
        fix += f"{', '.join(wanted)} out, or keep a share of the records apart with dataset.validation_fraction"
        raise ConfigError("train_args.print_args", wanted, fix)


__all__ = ["Prepared", "began_with_validation", "fixed_lines", "load_dataset", "prepare"]
