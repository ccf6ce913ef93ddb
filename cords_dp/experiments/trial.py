"""One trial of a tuning: a whole private run and the noisy score of its model on the validation set.

Released by a trial to the tuning, and by the tuning of its best trial alone: everything that the run releases, charged
by its plan, and the score: how many records of V the model gets right, sensitivity 1 (a null record is no hit), by the
Gaussian mechanism. `planning.tuning` has the guarantee and says where it is charged.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from dotmap import DotMap

from cords_dp.accounting import VALIDATION_DATA, Entry, Ledger
from cords_dp.config import to_plain
from cords_dp.errors import MechanismError
from cords_dp.experiments.jobs import RESULT
from cords_dp.experiments.run import run_and_hand_over
from cords_dp.mechanisms.noise import secure_generator
from cords_dp.mechanisms.releases import Releases
from cords_dp.models.card import FILE as MODEL_CARD
from cords_dp.planning import Release
from cords_dp.training import TrainClassifier
from cords_dp.training.evaluation import evaluate
from cords_dp.training.records import evaluation_batches

SCORE = "score.json"
MODEL = "model.pt"
_KEPT = (MODEL, MODEL_CARD, RESULT)  # what else a run leaves speaks of its own budget, not of the tuning's


def run_trial(config: Mapping[str, Any], *, score: Release, plan: str) -> dict[str, bytes]:
    """Train and score in a folder of its own. ``plan``: the fingerprint of the plan that the tuning pays for."""
    with tempfile.TemporaryDirectory(prefix="cords_dp-") as folder:
        trainer, _ = run_and_hand_over(DotMap(to_plain(config)), Path(folder), progress=False)
        if trainer.plan is None or trainer.plan.fingerprint != plan:
            raise MechanismError("a trial ran by another plan than the one that the tuning pays for")
        files = {name: (Path(folder) / name).read_bytes() for name in _KEPT}
        return {**files, SCORE: json.dumps({"score": noisy_score(trainer, score)}).encode()}


def noisy_score(trainer: TrainClassifier, release: Release) -> float:
    """The accuracy of the released model on V, with noise; exact where V is declared public (no event)."""
    assert trainer.data is not None
    assert trainer.model is not None
    validation, (_, criterion) = trainer.data.validation, trainer.loss_function()
    batches, size = evaluation_batches(validation, trainer.run), len(validation)  # type: ignore[arg-type]
    _, accuracy = evaluate(trainer.model, batches, criterion, trainer.run.device)
    allowance = () if release.event is None else (Entry(VALIDATION_DATA, release.phase, release.event),)
    releases = Releases(
        (release,),
        charge=Ledger(allowance=allowance).charge,
        generators={VALIDATION_DATA: secure_generator()},
        secure=trainer.plan is not None and trainer.plan.privacy.secure_noise,
    )
    return float(releases.gaussian(release.name, np.array(accuracy * size))) / size
