"""The rivals of the likelihood: what they estimate, what is charged, and that predictions are adjusted."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA
from cords_dp.runs.jobs import RESULT
from cords_dp.studies.forward import label_given_class
from cords_dp.studies.works import AdjustedLogits, execute_adjusted

CLASSES = 5


def tables(moved, shares, accuracy=0.9, n=50_000):
    """Tables without noise: D's labels of class y by ``moved[y]``, V's right and even."""
    predicted = np.full((CLASSES, CLASSES), (1 - accuracy) / (CLASSES - 1))
    np.fill_diagonal(predicted, accuracy)
    return (n * shares[:, None] * moved).T @ predicted, n / CLASSES * predicted


def test_forward_correction_learns_how_labels_were_moved_and_no_class_shares():
    shares = np.array([0.4, 0.3, 0.1, 0.1, 0.1])
    moved = 0.7 * np.eye(CLASSES) + 0.3 * np.roll(np.eye(CLASSES), 1, axis=1)
    found = label_given_class(*tables(moved, shares), 5.0, 5.0)
    assert np.abs(found - moved).max() < 0.06
    assert np.allclose(found.sum(axis=1), 1)


def test_where_labels_are_right_it_is_the_plain_loss():
    found = label_given_class(*tables(np.eye(CLASSES), np.array([0.4, 0.3, 0.1, 0.1, 0.1])), 5.0, 5.0)
    assert np.array_equal(found, np.eye(CLASSES))


def test_it_is_charged_as_planned_and_resumes(make_config):
    from cords_dp.training.trainer import TrainClassifier

    keys = {"train_args": {"num_epochs": 3}, "ckpt": {"is_save": True, "save_every": 1}}
    trainer = TrainClassifier(make_config("ForwardCorrectionDP", **keys))
    trainer.train()
    assert trainer.plan.shape.rounds == 2
    for dataset in (TRAINING_DATA, VALIDATION_DATA):
        planned = sum(entry.event.count for entry in trainer.plan.entries() if entry.dataset == dataset)
        assert sum(event.count for event in trainer.ledger.events(dataset)) == planned
    assert trainer.spent().epsilon <= trainer.plan.privacy.epsilon * (1 + 1e-6)
    assert trainer.session.source.current.likelihood is not None
    keys["ckpt"]["is_load"] = True
    again = TrainClassifier(make_config("ForwardCorrectionDP", **keys))
    again.train()
    assert again.spent().epsilon == pytest.approx(trainer.spent().epsilon)
    kept, made = (t.session.source.current.likelihood.given for t in (again, trainer))
    assert np.array_equal(kept, made)


def test_logits_are_moved_by_class():
    model = AdjustedLogits(nn.Linear(3, 2), torch.tensor([1.0, -1.0]))
    x = torch.randn(4, 3)
    assert torch.allclose(model(x), model.model(x) + torch.tensor([1.0, -1.0]))


def test_predictions_are_measured_with_the_ratio_that_the_run_released(make_config, monkeypatch):
    """A ratio that leaves one class alone: everything is then predicted as that class."""
    from cords_dp.studies import works

    ratio = torch.full((10,), 1e-9)
    ratio[1] = 1e9
    monkeypatch.setattr(works, "_released_ratio", lambda folder: ratio)
    config = make_config("ClassWeightsDP", dss_args={"power": 0}, train_args={"num_epochs": 1})
    files = execute_adjusted(config)
    result = json.loads(files[RESULT])
    told = np.array(result["metrics"]["confusion_matrix"])
    assert told[:, 1].sum() > 0.9 * told.sum()
    assert result["accuracy"] == pytest.approx(np.trace(told) / told.sum())


def test_the_released_ratio_is_found(make_config):
    config = make_config("ClassWeightsDP", dss_args={"power": 0}, train_args={"num_epochs": 1})
    result = json.loads(execute_adjusted(config)[RESULT])
    assert 0 <= result["accuracy"] <= 1
    assert result["epsilon"] <= 3.0
