"""The paper's gains figure: true gains of the records against what the mechanism samples from.

It shows exact scores of single records, so it is made on public data or with an explicit flag, in a run whose
model is not meant for release.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from dotmap import DotMap

from cords_dp import PrivacyPlan, TrainClassifier
from cords_dp.config import PrivacySettings, thawed_copy
from cords_dp.data.published import DATASETS, dataset_name
from cords_dp.errors import ConfigError
from cords_dp.extend import (
    LastLayerGradients,
    Records,
    RecordSet,
    pick_probabilities,
)
from cords_dp.planning import build_plan
from cords_dp.selection import Exponential
from cords_dp.studies.figures import gains_figure

_UNIT_CLIPS = PrivacySettings(epsilon=1.0, selection_clip=1.0, validation_clip=1.0)  # gains are in units of their bound


def gains_experiment(cfg: DotMap, out: Path, *, not_private: bool, epochs: int = 2) -> pd.DataFrame:
    """Train a few epochs, score every record exactly, and compare mechanisms. Writes gains.csv and gains.png."""
    if dataset_name(cfg) not in DATASETS and not not_private:
        raise ConfigError(
            "--not-private",
            False,
            "the figure shows exact scores of single records; it is made for the public benchmark sets, or pass "
            "--not-private to say that these records may be shown",
        )
    frame, plan = gains_table(cfg, out, epochs=epochs)
    out.mkdir(parents=True, exist_ok=True)
    frame.to_csv(out / "gains.csv", index=False)
    title = f"{cfg.dataset.name}, ε = {plan.privacy.epsilon:g}, k = {plan.shape.k}"
    gains_figure(frame, out / "gains.png", title=title)
    return frame


def gains_table(cfg: DotMap, out: Path, *, epochs: int) -> tuple[pd.DataFrame, PrivacyPlan]:
    total = cfg.train_args.num_epochs
    trainer = TrainClassifier(_short_run(cfg, out, epochs))
    trainer.train()
    assert trainer.plan is not None
    assert trainer.model is not None
    shape = trainer.plan.shape
    gains = _exact_gains(trainer)
    frame = pd.DataFrame({"gain": gains})
    frame["top_k"] = gains >= np.sort(gains)[-shape.k]
    base = trainer.plan
    for name, composition, picks, greedy in (
        ("paper's exponential mechanism", "basic", "paper", "RGreedy"),
        ("frozen scores, joint accounting", "joint", "freeze", "Frozen"),
    ):
        privacy = PrivacySettings(
            epsilon=cfg.privacy.epsilon,
            delta=base.delta,
            composition=composition,
            selection_composition=picks,
            split=base.split,
            accountant=base.privacy.accountant,
        )
        mechanism = Exponential(greedy=greedy)
        plan = build_plan(
            base.shape.strategy,
            privacy,
            base.subset,
            mechanism,
            epochs=total,
            batch_size=shape.batch_size,
            n=shape.n,
            n_validation=shape.n_validation,
        )
        assert plan.selection_noise is not None
        frame[f"{name} (ε₀ = {plan.selection_noise:.2g})"] = pick_probabilities(
            gains, epsilon0=plan.selection_noise, sensitivity=mechanism.score_sensitivity(_UNIT_CLIPS)
        )
    return frame, base


def _short_run(cfg: DotMap, out: Path, epochs: int) -> DotMap:
    short = DotMap(thawed_copy(cfg))
    short.train_args.update(num_epochs=epochs, print_every=epochs, results_dir=str(out), device="cpu")
    short.ckpt.update(is_save=False, dir=str(out))
    return short


def _exact_gains(trainer: TrainClassifier) -> np.ndarray:
    """Compute ⟨clip₁(g_j), v/‖v‖⟩ for every record at the trained model."""
    data, model = trainer.data, trainer.model
    assert data is not None
    assert model is not None
    _, criterion = trainer.loss_function()

    def gradients(dataset: RecordSet) -> LastLayerGradients:
        return Records(dataset, model, criterion, "cpu").at(model.state_dict()).gradients

    v = gradients(data.validation).clipped_sum(1.0).float()
    return gradients(data.train).scores(v / v.norm(), 1.0).double().numpy()
