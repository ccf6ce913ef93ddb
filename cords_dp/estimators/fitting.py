"""Fits a model on the records of an estimator: they are split, planned for and trained on by one private session."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from cords_dp.data.owners import Numbered, named_owners, owner_rows, refuse_no_owners
from cords_dp.data.record_set import RecordSet, Splits
from cords_dp.data.sources.base import VALIDATION_FRACTION, Facts
from cords_dp.errors import ConfigError, DataError
from cords_dp.estimators.records import Given
from cords_dp.estimators.repeats import Repeated, digests_of, tally
from cords_dp.models.card import ModelCard
from cords_dp.models.predict import LoadedModel
from cords_dp.noise.generators import Streams
from cords_dp.processes import threads_for_steps
from cords_dp.training.handover import described_model
from cords_dp.training.log import quiet_libraries
from cords_dp.training.preparing import loss_functions, optimizer_and_scheduler, prepare_records, ready_model
from cords_dp.training.private_session import PrivateSession
from cords_dp.training.run import Run


def trained(run: Run, given: Given, owners: Any = None) -> tuple[PrivateSession, ModelCard, Repeated | None]:
    """Plan and train, by the session that every face drives; where an account keeps the total, it decides first."""
    if not run.strategy.private:
        fix = "is not private: use FullDP, RandomDP or GLISTERDP, and epsilon=None for a comparison without privacy"
        raise ConfigError("strategy", run.strategy.name, fix)
    run, facts = run.for_owners(owned=owners is not None), given.facts

    def build(outputs: int, shape: Sequence[int], facts: Facts | None) -> nn.Module:
        model, replaced = ready_model(run, outputs, shape, facts)
        for what in replaced:
            warnings.warn(what, UserWarning, stacklevel=2)
        return model

    with _global_generators_kept(), quiet_libraries():
        splits = _split(run, given, owners)
        prepared = prepare_records(run, build, splits, facts=facts, validation=run.reads_validation)
        plan, model, data = prepared.plan, prepared.model, prepared.data
        assert plan is not None
        assert data is not None
        session = PrivateSession(prepared.run, plan)
        repeated, delta = None, 0.0 if plan.noiseless else plan.delta
        if plan.privacy.account is None:
            repeated = tally(digests_of(given.records, owners), plan.privacy.epsilon, delta, plan.privacy.unit)
        try:
            session.open(data, model, built=False)
            with threads_for_steps(model, prepared.record, plan.shape.batch_size), session.threads():
                _take_all_steps(session)
        finally:
            session.close()
    card = described_model(run, model, prepared.record, facts.num_classes, facts=facts, source=dict(given.card))
    return session, card, repeated


def _take_all_steps(session: PrivateSession) -> None:
    _, losses = loss_functions(session.run)
    session.equip(losses, *optimizer_and_scheduler(session.run, session.plan, session.model))
    for epoch in range(1, session.run.epochs + 1):
        session.train_epoch(epoch)
    session.calibrate()


def _split(run: Run, given: Given, owners: Any) -> Splits:
    """Split V off where the strategy reads it: by the number of rows, or of owners, and the seed alone.

    Others train on all rows, and nobody reads what stands in V's place. There is no test set.
    """
    records, wanted, rng = given.records, run.reads_validation, Streams(run.seed).numpy("data")
    share = run.config["dataset"].get("validation_fraction") or VALIDATION_FRACTION
    train = validation = records
    if owners is not None:
        train, validation = _split_owners(records, owners, share if wanted else 0.0, rng)
    elif wanted:
        held_out, order = int(len(records) * share), rng.permutation(len(records))
        train, validation = records.at(order[held_out:]), records.at(order[:held_out])
        if not held_out:
            raise DataError(f"{len(records)} records are too few to keep some for validation; use FullDP")
    return Splits(train, validation if wanted else train, None, given.facts.num_classes)


def _split_owners(
    records: RecordSet, owners: Any, share: float, rng: np.random.Generator
) -> tuple[RecordSet, RecordSet]:
    split = owner_rows(named_owners(owners, len(records), Numbered()), share, 0.0, rng)
    refuse_no_owners(split, (True, share > 0, False))
    train, validation = (
        RecordSet(records.store, rows, records.target, owners=whose) for rows, whose in (split.train, split.validation)
    )
    return train, validation


def released_model(card: ModelCard, trained: nn.Module) -> LoadedModel:
    """Return a model of its own with the released weights: nothing that a session knows hangs on it."""
    model = card.build()
    model.load_state_dict({name: value.detach().cpu().clone() for name, value in trained.state_dict().items()})
    return LoadedModel(card, model.eval())


@contextlib.contextmanager
def _global_generators_kept() -> Iterator[None]:
    """Leave the global generators as they were: a session seeds them for dropout, and a user may rely on them."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002 - it is the global one
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])
