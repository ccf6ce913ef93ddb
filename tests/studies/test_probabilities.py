"""Scores of probabilities, against scikit-learn's and by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch import nn
from torch.utils.data import TensorDataset

from cords_dp.studies.probabilities import predicted_probabilities, probability_scores, probability_tables


def made_up(classes: int, n: int = 500) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(classes)
    given = rng.dirichlet(np.ones(classes), n).round(2) + 0.01  # with ties
    return given / given.sum(axis=1, keepdims=True), rng.integers(0, classes, n)


def test_two_classes_are_scored_as_scikit_learn_does():
    given, labels = made_up(2)
    scores = probability_scores(given, labels)
    assert scores["auc"] == pytest.approx(roc_auc_score(labels, given[:, 1]))
    assert scores["log_loss"] == pytest.approx(log_loss(labels, given))


def test_many_classes_have_no_auc():
    given, labels = made_up(5)
    scores = probability_scores(given, labels)
    assert "auc" not in scores
    chances = given[np.arange(len(labels)), labels]
    assert scores["log_loss"] == pytest.approx(-np.log(chances).mean())


def test_a_calibration_error_is_the_gap_between_said_and_seen():
    """Half of the records are given 0.1 where 0.3 are positive, half 0.9 where 0.9 are: 0.2 in half of the cases."""
    said = np.repeat([0.1, 0.9], 100)
    labels = np.concatenate([np.arange(100) < 30, np.arange(100) < 90]).astype(int)
    given = np.stack([1 - said, said], axis=1)
    assert probability_scores(given, labels)["calibration_error"] == pytest.approx(0.1)
    certain = np.eye(3)[[0, 1, 2, 2]]
    assert probability_scores(certain, np.array([0, 1, 2, 1]))["calibration_error"] == pytest.approx(0.25)


def test_one_class_alone_has_no_auc():
    assert np.isnan(probability_scores(np.full((4, 2), 0.5), np.ones(4, dtype=int))["auc"])


def test_records_without_a_class_are_left_out():
    x, y = torch.randn(6, 3), torch.tensor([0, 1, -100, 1, 0, -100])
    given, labels = predicted_probabilities(nn.Linear(3, 2), TensorDataset(x, y))
    assert labels.tolist() == [0, 1, 1, 0]
    assert given.sum(axis=1) == pytest.approx(np.ones(4))


def test_a_table_holds_means_over_seeds():
    runs = [{"dataset": "t", "budget": 1.0, "method": "A", "scenario": "s", "log_loss": loss} for loss in (0.2, 0.4)]
    ((title, table),) = probability_tables(pd.DataFrame(runs)).items()
    assert title == "t, ε = 1: probabilities"
    assert table.to_dict("records") == [{"method": "A", "s: log loss": "0.300"}]
    assert probability_tables(pd.DataFrame(runs).drop(columns="log_loss")) == {}
