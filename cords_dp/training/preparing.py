"""Prepares a run for whatever trains it: its records, its plan and its model. Nothing is written yet.

Everything that can be wrong is found here, before a log is opened. Records are read only where their number, which is
public, has to be counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cords_dp.config.settings import PRIVATE, PUBLIC
from cords_dp.data.build import UNREADABLE, build_dataset, describe_padding, readable
from cords_dp.data.handed_over import as_records, refuse_repeated_records, refuse_shared_records, with_owners
from cords_dp.data.published import known_sizes, public_facts
from cords_dp.data.record_set import Splits
from cords_dp.data.sources.base import Facts, find_source
from cords_dp.errors import ConfigError
from cords_dp.models.build import build_model, check_input, check_outputs
from cords_dp.models.losses import RecordMSELoss
from cords_dp.models.private import make_private_ready
from cords_dp.noise.generators import Streams
from cords_dp.planning import PrivacyPlan
from cords_dp.processes import World
from cords_dp.training.optim import build_optimizer, build_scheduler, planned_learning_rate
from cords_dp.training.run import Run, sizes_of

BuildModel = Callable[[int, Sequence[int], Facts | None], nn.Module]


@dataclass(frozen=True)
class Prepared:
    """A run that can begin.

    run: with batch size and learning rate as they will be used. plan: None for a strategy that is not private. record:
    zeros in the shape and type of a record. data: the sets, if they were handed over or had to be counted.
    """

    run: Run
    plan: PrivacyPlan | None
    model: nn.Module
    record: Tensor
    data: Splits | None
    remarks: tuple[str, ...] = ()

    def dataset(self, world: World) -> Splits:
        return _load_dataset(self.run, world) if self.data is None else self.data


def prepare(run: Run, build: BuildModel, world: World, given: Splits | None = None, owners: Any = None) -> Prepared:
    """Prepare a run on the configured data, or on sets that are handed over; refuse what a trainer cannot train."""
    if given is not None:
        prepared = prepare_records(run.for_owners(owned=owners is not None), build, given, owners=owners)
    elif owners is None:
        prepared = _prepare_configured(run, build, world)
    else:
        raise ConfigError("owners", "a list", "is for sets that are handed over; name dataset.owner in the config")
    if prepared.plan is not None:
        _refuse_metrics_of_nothing(run, prepared.plan)
    elif world.size > 1:
        raise ConfigError("dss_args.type", run.strategy.name, "only private strategies train in several processes")
    return prepared


def _prepare_configured(run: Run, build: BuildModel, world: World) -> Prepared:
    """Prepare a run on the configured data, which is read here only if its size is not known."""
    facts, sizes = public_facts(run.config), known_sizes(run.config)
    made = None if facts is None else _fitting_model(run, build, facts, None)  # before data is read
    if sizes is not None:
        data, plan = None, run.plan(*sizes)
    else:
        own = find_source(run.config["dataset"].get("name")) is not None
        data = readable(_load_dataset(run, world), run.config, private=run.strategy.private, own=own)
        plan = run.plan(*sizes_of(data, run))
        if own:
            _refuse_what_pays_twice(data, plan, tested=data.test is not None)
    model, record = made or _fitting_model(run, build, facts, data)
    return _completed(run, plan, model, record, data)


def prepare_records(
    run: Run,
    build: BuildModel,
    given: Splits,
    *,
    facts: Facts | None = None,
    owners: Any = None,
    validation: bool = True,
) -> Prepared:
    """Prepare a run on sets that are handed over (`planned_records`). ``facts``: public ones of them, if known."""
    data, plan = planned_records(run, given, owners=owners, validation=validation)
    model, record = _fitting_model(run, build, facts, data)
    return _completed(run, plan, model, record, data)


def planned_records(
    run: Run, given: Splits, *, owners: Any = None, validation: bool = True
) -> tuple[Splits, PrivacyPlan | None]:
    """Check sets that are handed over, say whose their records are, and plan for their sizes.

    ``validation``: there is a V; else nobody reads what stands in its place. Without a test set (None) none is shown.
    """
    data = readable(given, run.config, private=run.strategy.private, own=True)
    if owners is not None:
        data = with_owners(data, owners, validation=validation)
    tested = given.test is not None
    n, n_validation, *n_test = sizes_of(data, run)
    plan = run.plan(n, n_validation if validation else 0, *(n_test if tested else ()))
    if plan is not None and tested:
        _refuse_private_test(run, data)
    _refuse_what_pays_twice(data, plan, tested=tested)
    return data, plan


def _refuse_what_pays_twice(data: Splits, plan: PrivacyPlan | None, *, tested: bool) -> None:
    if plan is None:
        return
    refuse_shared_records(data, validation_is_read=plan.validation_is_read, test_is_shown=tested)
    sets = {"trainset": data.train} | ({"validset": data.validation} if plan.validation_is_read else {})
    sets |= {"testset": data.test} if plan.sigma_test is not None else {}
    refuse_repeated_records(sets, by_owner=plan.privacy.unit == "owner")


def _load_dataset(run: Run, world: World) -> Splits:
    """Load the configured data; of several processes each reads its share where it can."""
    return build_dataset(run.config, Streams(run.seed).numpy("data"), run.share(world))


def _completed(run: Run, plan: PrivacyPlan | None, model: nn.Module, record: Tensor, data: Splits | None) -> Prepared:
    remarks = describe_padding(run.config) if data is not None and run.strategy.private else ()
    rate = run.learning_rate
    if rate is None:
        assert plan is not None
        rate = planned_learning_rate(run.config, plan, model)
    return Prepared(run.with_plan(plan, rate), plan, model, record, data, tuple(remarks))


# --- the model and what trains it ---------------------------------------------------------------------------------


def ready_model(
    run: Run, num_classes: int | None, shape: Sequence[int] | None, facts: Facts | None
) -> tuple[nn.Module, list[str]]:
    """Build the configured model, fit for per-example gradients where the strategy is private; say what changed."""
    model = build_model(
        run.config,
        seed=Streams(run.seed).public_seed,
        num_classes=num_classes,
        input_shape=shape,
        constants=None if facts is None else facts.constants,
        input_norm=None if facts is None else facts.norm,
    )
    return made_ready(run, model, run.config["model"]["architecture"])


def made_ready(run: Run, model: nn.Module, name: str | None = None) -> tuple[nn.Module, list[str]]:
    """Make a model fit for per-example gradients where the strategy is private; say what changed."""
    replaced: list[str] = []
    if run.strategy.private:
        model, replaced = make_private_ready(model)
    return model.to(run.device), [f"{name or type(model).__name__}: replaced {what}." for what in replaced]


def _fitting_model(run: Run, build: BuildModel, facts: Facts | None, data: Splits | None) -> tuple[nn.Module, Tensor]:
    """Build the model for records of which ``facts`` or the sets tell; refuse it where it cannot read them.

    Also return zeros in the shape and type of a record.
    """
    if facts is not None:
        record, outputs = torch.zeros(facts.shape, dtype=facts.dtype), facts.num_classes
    else:
        assert data is not None
        record, outputs = torch.zeros_like(data.train[0][0]), data.num_classes
    model = build(outputs, record.shape, facts)
    if run.strategy.private:
        check_input(model, record)
    if run.strategy.private and run.regression:
        check_outputs(model, record, outputs)
    return model, record


def loss_functions(run: Run) -> tuple[nn.Module, nn.Module]:
    """Return the mean loss and the losses of single records."""
    if run.regression:
        return nn.MSELoss(), RecordMSELoss()
    return nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="none")


def optimizer_and_scheduler(run: Run, plan: PrivacyPlan | None, model: nn.Module) -> tuple[Optimizer, Any]:
    optimizer, steps = build_optimizer(run.config, model), plan.shape.steps if plan else 0
    return optimizer, build_scheduler(run.config, optimizer, epochs=run.epochs, steps=steps)


# --- what a run says before it begins -----------------------------------------------------------------------------


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


# --- what is refused -----------------------------------------------------------------------------------------------


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
