"""What a source fits on D before training: released once a run, and kept.

Formal guarantee: the sum is released by the Gaussian mechanism of the plan's event, charged before its noise is drawn
(`mechanisms.releases`). The released values are on record, with a digest in the ledger, before they are used. So a run
that is resumed goes on with the same values and releases nothing again; one that was killed in between draws anew,
under the charge that it had made and that nobody has seen the outcome of (`accounting.ledger`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from cords_dp.accounting import TRAINING_DATA, Ledger
from cords_dp.datasets import Source, Splits
from cords_dp.datasets.shards import Part, Picks
from cords_dp.distributed import World
from cords_dp.errors import MechanismError
from cords_dp.mechanisms.releases import Releases
from cords_dp.planning import PrivacyPlan
from cords_dp.planning.preparation import PREPARATION
from cords_dp.selection.archive import SelectionArchive
from cords_dp.selection.session import charging


def released_fit(
    source: Source,
    data: Splits,
    plan: PrivacyPlan,
    ledger: Ledger,
    generator: np.random.Generator,
    world: World = World(),  # noqa: B008 - frozen
) -> dict[str, Any]:
    """What the source makes of the released sum: public values, fit for JSON. Several processes add up their parts."""
    preparation = plan.preparation
    if preparation is None:
        raise MechanismError("the plan pays for no release before training")
    archive = SelectionArchive(ledger, None if ledger.path is None else ledger.path.parent)
    found = world.share(archive.find(PREPARATION) if world.main else None)
    if found is None:
        releases = Releases(
            plan.preparation_releases(),
            charge=charging(ledger),
            generators={TRAINING_DATA: generator},
            noiseless=plan.noiseless,
            secure=plan.privacy.secure_noise,
            world=world,
        )
        released = releases.gaussian(preparation.name, source.sums(_innermost(data.train)))
        found = {"released": torch.from_numpy(released)}
        archive.keep(PREPARATION, found)
    deviation = (plan.preparation_noise or 0.0) * preparation.sensitivity
    return world.share(source.fitted(found["released"].numpy(), deviation))


def prepared_splits(source: Source, data: Splits, fit: Mapping[str, Any]) -> Splits:
    """All sets in the units of the released values; whatever guards their records stays around them."""

    def change(dataset: Dataset) -> Dataset:
        return source.prepared(dataset, fit)

    train, validation, test = (_inside(part, change) for part in data[:3])
    return Splits(train, validation, test, data.num_classes)


def _inside(dataset: Any, change: Callable[[Dataset], Dataset]) -> Any:
    if not hasattr(dataset, "source"):
        return change(dataset)
    outer = copy.copy(dataset)
    outer.source = _inside(dataset.source, change)
    return outer


def _innermost(dataset: Any) -> Any:
    """What the source has handed out, or this process's part of it: a sum over more would count records twice."""
    if isinstance(dataset, Part) and isinstance(dataset.source, Picks):
        raise MechanismError(
            "the source hands out sets that cannot be cut into parts, so its sums would be over all records in every "
            "process; let the sets be RowsOfStore, or train in one process"
        )
    return _innermost(dataset.source) if hasattr(dataset, "source") else dataset
