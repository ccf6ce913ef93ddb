"""Takes a run's first steps on V, before it reads a gradient of D: V has a budget of its own, and right labels.

A few steps on all of V, a record of which is in every one of them, give a model that speaks for V's world. The first
look of a selection then sees D through a model that knows the classes which D lacks or mislabels, and D's steps, in
which V takes part as well (`privacy.train_on_validation`), continue from there.

Formal guarantee
----------------
Released: the weights after each of these steps. Each adds up the gradients of V's records, clipped to C, and releases
the sum by the Gaussian mechanism of the plan's event on V (L2 sensitivity C for zero-out of one record, or of one owner
where that is the unit). All of them are one entry, charged to V before the first noise is drawn, within V's ε.

- They read V and released weights, hence nothing of D. D and V have no record in common, so the run keeps the larger
  of both ε (`planning.plan`), and the noise on D is what it is without a head start.
- They are taken once a run (`released_once`): a run that was killed in between takes them anew under the charge that it
  had made, whose outcome nobody has seen; one that is resumed has the weights that it had.
- The learning rate is a function of public numbers.

Several processes add up the sums over their parts of V; rank 0 alone adds the noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from cords_dp.accounting import VALIDATION_DATA
from cords_dp.planning.plan import HEAD_START
from cords_dp.selection.pool import Pool
from cords_dp.selection.releases import Releases
from cords_dp.training.optim import head_start_rate
from cords_dp.training.poisson import poisson_batches
from cords_dp.training.released_once import released_once
from cords_dp.training.step import PrivateEngine

if TYPE_CHECKING:
    from cords_dp.training.private_session import PrivateSession


def take_head_start(session: PrivateSession) -> None:
    """Take the plan's steps on V, or continue from where they have led before."""
    plan = session.plan
    found = released_once(
        HEAD_START,
        plan.head_start_releases(),
        lambda releases: _steps_on_validation(session, releases),
        plan=plan,
        ledger=session.ledger,
        generators={VALIDATION_DATA: session.streams.numpy("head start")},
        world=session.world,
    )
    _move_to(session.model, found["released"])


def _steps_on_validation(session: PrivateSession, releases: Releases) -> np.ndarray:
    """Return the weights that the steps lead to, one after the other in one vector."""
    plan, model, data = session.plan, session.model, session.data.validation
    size = plan.shape.n_validation
    rate = head_start_rate(session.run, plan, model, size) / size
    assert isinstance(session.engine, PrivateEngine)
    batches = poisson_batches(
        data,
        Pool.everything(len(data)),
        rate=1.0,
        steps=plan.head_start,
        rng=session.streams.numpy("head start batches", rank=session.world.rank),
        records_per_owner=plan.privacy.records_per_owner,
    )
    model.train()
    for batch in batches:
        sums = session.engine.clipped_sums(*(part.to(session.run.device) for part in batch))
        noisy = releases.gaussian(HEAD_START, torch.cat([total.flatten() for total in sums]).cpu().numpy())
        _step(session.engine.optimizer.params, rate * torch.from_numpy(noisy))
    return _flat(model).numpy()


@torch.no_grad()
def _step(weights: list[nn.Parameter], change: Tensor) -> None:
    """Take the change off the weights, in the order in which the engine adds up their gradients."""
    for p, part in zip(weights, change.split([p.numel() for p in weights]), strict=True):
        p.copy_(p.double() - part.to(p.device).view_as(p))


def _flat(model: nn.Module) -> Tensor:
    """Return the weights that are trained, in float64."""
    return torch.cat([p.detach().flatten().double().cpu() for p in model.parameters() if p.requires_grad])


@torch.no_grad()
def _move_to(model: nn.Module, weights: Tensor) -> None:
    trained = [p for p in model.parameters() if p.requires_grad]
    for p, values in zip(trained, weights.split([p.numel() for p in trained]), strict=True):
        p.copy_(values.view_as(p))
