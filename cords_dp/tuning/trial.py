"""Runs one trial of a tuning: a whole private run, and the noisy score of its model on the validation set.

Released by a trial to the tuning, and by the tuning of its best trial alone: everything that the run releases, charged
by its plan, and the score: how many records of V the model gets right, sensitivity 1 (a null record is no hit), by the
Gaussian mechanism; or, for another metric, the counts of `evaluation.released`, of sensitivity 1 too.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from dotmap import DotMap

from cords_dp.accounting import VALIDATION_DATA, Entry, Ledger
from cords_dp.config import to_plain
from cords_dp.data.build import evaluation_batches
from cords_dp.errors import MechanismError
from cords_dp.files import caches_in
from cords_dp.models.card import FILE as MODEL_CARD
from cords_dp.noise.generators import secure_generator
from cords_dp.planning import Release
from cords_dp.runs.jobs import RESULT, Job
from cords_dp.runs.run import run_and_hand_over
from cords_dp.selection.releases import Releases
from cords_dp.training.metrics import evaluate
from cords_dp.training.private_test import as_released, counts_of
from cords_dp.training.trainer import TrainClassifier
from cords_dp.tuning.plan import ACCURACY


@dataclass(frozen=True)
class Trial(Job):
    """One trial. Its random name says nothing about its place, and equal settings are still two trials."""

    token: str = ""

    @property
    def id(self) -> str:
        return self.token


CACHE = "cache"
SCORE = "score.json"
MODEL_FILES = (MODEL_CARD, "model.pt")
_KEPT = (*MODEL_FILES, RESULT)  # what else a run leaves speaks of its own budget, not of the tuning's


def run_trial(
    config: Mapping[str, Any], *, score: Release, plan: str, private: str, metric: str = ACCURACY
) -> dict[str, bytes]:
    """Train and score in a folder of its own. ``plan``: the fingerprint of the plan that the tuning pays for.

    Logs, and the noise that is calibrated, tell that there was a trial and what it did, also after an interruption, so
    they lie below ``private``, the tuning's folder for the owner's eyes. A machine of a Ray cluster that does not see
    that folder has a temporary one.
    """
    home = Path(private) if Path(private).is_dir() else None
    with tempfile.TemporaryDirectory(prefix="cords_dp-", dir=home) as folder, caches_in((home or Path(folder)) / CACHE):
        trainer, _ = run_and_hand_over(DotMap(to_plain(config)), Path(folder), progress=False)
        if trainer.plan is None or trainer.plan.fingerprint != plan:
            raise MechanismError("a trial ran by another plan than the one that the tuning pays for")
        files = {name: (Path(folder) / name).read_bytes() for name in _KEPT}
        return {**files, SCORE: json.dumps({"score": noisy_score(trainer, score, metric)}).encode()}


def noisy_score(trainer: TrainClassifier, release: Release, metric: str = ACCURACY) -> float:
    """Return a metric of the released model on V, with noise; without where V is declared public (no event).

    NaN where the noise leaves nothing of it.
    """
    assert trainer.data is not None
    assert trainer.model is not None
    allowance = () if release.event is None else (Entry(VALIDATION_DATA, release.phase, release.event),)
    releases = Releases(
        (release,),
        charge=Ledger(allowance=allowance).charge,
        generators={VALIDATION_DATA: secure_generator()},
        secure=trainer.plan is not None and trainer.plan.privacy.secure_noise,
    )
    if metric != ACCURACY:
        total = counts_of(trainer.session, trainer.data.validation)
        vector = releases.gaussian(release.name, total)
        found = as_released(trainer.session, vector, releases.noise_multiplier(release.name))
        value = found.metrics()[metric]["value"]
        return math.nan if value is None else float(value)
    validation, (_, criterion) = trainer.data.validation, trainer.loss_function()
    batches, size = evaluation_batches(validation, trainer.run.config, private=True), len(validation)
    _, accuracy = evaluate(trainer.model, batches, criterion, trainer.run.device)
    return float(releases.gaussian(release.name, np.array(accuracy * size))) / size
