"""Releases a sum of records once a run: what a source fits on D before training, the counts of a private test set.

Formal guarantee: a sum is released by the Gaussian mechanism of the plan's event, charged before its noise is drawn
(`selection.releases`). The released values are on record, with a digest in the ledger, before they are used. So a run
that is resumed has the same values and releases nothing again; one that was killed in between draws anew, under the
charge that it had made and whose outcome nobody has seen (`accounting.ledger`). Several processes add up their parts;
rank 0 alone adds the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from cords_dp.accounting import TRAINING_DATA, Ledger
from cords_dp.data.record_set import Splits
from cords_dp.errors import MechanismError
from cords_dp.planning import PrivacyPlan, Release
from cords_dp.planning.schedule import PREPARATION
from cords_dp.processes import World
from cords_dp.selection.releases import Releases
from cords_dp.selection.session import SelectionArchive, charging


def released_once(
    name: str,
    declared: Sequence[Release],
    draw: Callable[[Releases], np.ndarray],
    *,
    plan: PrivacyPlan,
    ledger: Ledger,
    generators: Mapping[str, np.random.Generator],
    world: World,
    **remembered: Any,
) -> dict[str, Any]:
    """Return what was drawn, as ``released``, and what is ``remembered`` with it; kept under ``name``."""
    archive = SelectionArchive(ledger, None if ledger.path is None else ledger.path.parent)
    found = world.share(archive.find(name) if world.main else None)
    if found is None:
        releases = Releases(
            declared,
            charge=charging(ledger),
            generators=generators,
            noiseless=plan.noiseless,
            secure=plan.privacy.secure_noise,
            world=world,
        )
        found = {"released": torch.from_numpy(draw(releases)), **remembered}
        archive.keep(name, found)
    return found


def released_fit(
    source: Any,
    data: Splits,
    plan: PrivacyPlan,
    ledger: Ledger,
    generator: np.random.Generator,
    world: World = World(),  # noqa: B008 - frozen
) -> dict[str, Any]:
    """Release what a source fits on D; return what it makes of it: public values, fit for JSON."""
    preparation = plan.preparation
    if preparation is None:
        raise MechanismError("the plan pays for no release before training")
    found = released_once(
        PREPARATION,
        plan.preparation_releases(),
        lambda releases: releases.gaussian(preparation.name, source.sums(data.train.handed_out())),
        plan=plan,
        ledger=ledger,
        generators={TRAINING_DATA: generator},
        world=world,
    )
    deviation = (plan.preparation_noise or 0.0) * preparation.sensitivity
    return world.share(source.fitted(found["released"].numpy(), deviation))
