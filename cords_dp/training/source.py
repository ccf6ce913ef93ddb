"""What a run draws its batches from: the strategy, built with everything it may use."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from dotmap import DotMap
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, Ledger
from cords_dp.config import thawed_copy
from cords_dp.datasets import Splits
from cords_dp.distributed import current_world
from cords_dp.planning import PrivacyPlan
from cords_dp.registry import StrategyContext
from cords_dp.seeding import Streams
from cords_dp.selection import Pool, Records, SelectionContext, checked_pool
from cords_dp.selection.session import Selections
from cords_dp.training.averaging import WeightAverage
from cords_dp.training.run import Run


class ConstantPool:
    """A strategy that hands over the same pool in every epoch."""

    def __init__(self, pool: Pool):
        self.current = pool

    def pool(self, epoch: int) -> Pool:
        return self.current


def build_source(
    run: Run,
    plan: PrivacyPlan | None,
    ledger: Ledger,
    streams: Streams,
    data: Splits,
    model: nn.Module,
    criterion: nn.Module,
    optimizer: Optimizer,
    average: WeightAverage | None,
    logger: logging.Logger,
) -> Any:
    """CORDS' loader of batches for a strategy that is not private, an object with ``pool(epoch)`` for one that is."""
    dss_args = DotMap(thawed_copy(run.config["dss_args"]))
    dss_args.update(
        model=model,
        loss=criterion,
        eta=run.learning_rate,
        num_classes=data.num_classes,
        num_epochs=run.epochs,
        device=run.device,
    )
    if plan is None and run.config["dataset"].get("type"):
        dss_args.data_type = run.config["dataset"]["type"]

    def sequential(dataset: Dataset) -> DataLoader:
        collate = run.config["dataloader"].get("collate_fn") or None
        return DataLoader(dataset, batch_size=run.batch_size, shuffle=False, collate_fn=collate)

    coins = streams.numpy("coins", rank=current_world().rank)  # each process tosses for its own records
    context = StrategyContext(
        config=run.config,
        dss_args=dss_args,
        trainset=data.train,
        validset=data.validation,
        train_loader=sequential(data.train),
        val_loader=sequential(data.validation),
        model=model,
        criterion=criterion,
        optimizer=optimizer,
        logger=logger,
        coins=coins,
        released_weights=_released_weights(plan, model, average),
        plan=plan,
        selections=_selections(run, plan, ledger, streams, coins, data, model, criterion),
    )
    built = run.strategy.build(context)
    return built if plan is None else _pool_source(built, plan)


def _released_weights(
    plan: PrivacyPlan | None, model: nn.Module, average: WeightAverage | None
) -> Callable[[], dict[str, Tensor]]:
    averaged = average is not None and plan is not None and plan.mechanism is not None and plan.mechanism.uses_average
    released = average.model if average is not None and averaged else model
    return lambda: {name: value.detach().clone() for name, value in released.state_dict().items()}


def _pool_source(built: Any, plan: PrivacyPlan) -> Any:
    if hasattr(built, "pool"):
        return built
    return ConstantPool(checked_pool(built, plan.shape.n, plan.branch_count))


def _selections(
    run: Run,
    plan: PrivacyPlan | None,
    ledger: Ledger,
    streams: Streams,
    coins: np.random.Generator,
    data: Splits,
    model: nn.Module,
    criterion: nn.Module,
) -> Selections | None:
    if plan is None or plan.mechanism is None:
        return None
    scoring = copy.deepcopy(model)  # weights are loaded into it; training goes on with the model itself
    assert run.learning_rate is not None

    def records(dataset: Dataset) -> Records:
        return Records(dataset, scoring, criterion, run.device)

    context = SelectionContext(
        plan=plan,
        training=records(data.train),
        validation=records(data.validation) if plan.validation_is_read else None,
        num_classes=data.num_classes,
        learning_rate=run.learning_rate,
        coins=coins,
    )
    generators = {TRAINING_DATA: streams.numpy("selection"), VALIDATION_DATA: streams.numpy("validation")}
    folder = None if ledger.path is None else ledger.path.parent
    return Selections(context, ledger=ledger, generators=generators, folder=folder, world=current_world())
