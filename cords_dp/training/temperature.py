"""Divides the logits of the model that a run ends with by a temperature fitted on V, released once a run.

Clipped gradients and the noise of steps leave a model whose order of classes is right and whose probabilities are not:
too timid after few steps, too sure after many. Dividing weights and bias of its last linear layer by one number mends
most of that; which class is likeliest, and the format of the model's files, stay as they are.

Formal guarantee
----------------
Released, to everybody who gets the model: the sum of `evaluation.temperature.loss_steps` over V, at the model that the
steps have led to, by the Gaussian mechanism of the plan's event on V (L2 sensitivity 1 for one record or one owner).

- It is charged to V's own entries before noise is drawn, within V's ε, and drawn once a run (`released_once`): a run
  that is resumed has the temperature that it had, whatever has become of its weights since.
- It reads V and the released model, hence nothing of D that was not released. D and V have no record in common, so
  the run keeps the larger of both ε (`planning.plan`), and D's noise is what it is without a temperature.
- The temperature follows from the noisy sum, and the new weights from it and from released ones. The layer is found by
  released weights and made-up records (`models.last_linear`); where there is none nothing is charged or read.
- Checkpoints keep the weights that steps were taken on, beside the divided ones: both are released.

A V that was declared public is read without noise. Several processes add up their parts; rank 0 alone adds the noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from cords_dp.accounting import VALIDATION_DATA
from cords_dp.evaluation.temperature import chosen_temperature, loss_steps
from cords_dp.models.last_linear import divide, last_linear
from cords_dp.planning.plan import TEMPERATURE_RELEASE
from cords_dp.selection import Records
from cords_dp.training.engine import made_up_batch
from cords_dp.training.released_once import released_once

if TYPE_CHECKING:
    from cords_dp.training.private_session import PrivateSession


def divide_by_temperature(session: PrivateSession, twin: nn.Module) -> None:
    """Divide the logits of ``twin``, a copy of the model to release that nothing else uses."""
    plan = session.plan
    layer = last_linear(twin, made_up_batch(session)[0])
    if layer is None:
        session.logger.warning("No temperature: the model does not end with a linear layer.")
        return
    records = session.records(session.data.validation, twin)
    found = released_once(
        TEMPERATURE_RELEASE,
        plan.temperature_releases(),
        lambda releases: releases.gaussian(TEMPERATURE_RELEASE, steps_on(records)),
        plan=plan,
        ledger=session.ledger,
        generators={VALIDATION_DATA: session.streams.numpy("temperature")},
        world=session.world,
    )
    temperature = chosen_temperature(found["released"].numpy(), plan.sigma_temperature or 0.0)
    session.logger.info("Temperature fitted on the validation set: %.3g.", temperature)
    divide(layer, temperature)


def steps_on(records: Records) -> np.ndarray:
    """Add up the vectors of this process's records, at the weights that their model has. A private value."""
    weights = {name: value.clone() for name, value in records.model.state_dict().items()}
    seen = records.at(weights, linear_layer=False)
    return loss_steps(seen.labels.cpu().numpy(), seen.logits.double().cpu().numpy(), records.masses)
