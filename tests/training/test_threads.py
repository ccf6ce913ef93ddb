"""Small steps take one thread, whatever the machine has; others take what they are given."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cords_dp.processes import steps_are_small, threads_for_steps


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("model", "shape", "batch_size", "small"),
    [
        (nn.Linear(64, 10), (64,), 64, True),
        (nn.Linear(64, 10), (64,), 1_000_000, False),  # a large batch
        (nn.Linear(5000, 100), (5000,), 64, False),  # a large model
        (nn.Conv2d(1, 4, 3), (1, 28, 28), 64, False),  # images: weights do not tell the work
    ],
)
def test_which_steps_are_small(two_threads, model, shape, batch_size, small):
    record = torch.zeros(shape)
    assert steps_are_small(model, record, batch_size) is small
    with threads_for_steps(model, record, batch_size):
        assert torch.get_num_threads() == (1 if small else 2)
    assert torch.get_num_threads() == 2


def test_features_are_computed_by_all_threads():
    model = nn.Linear(64, 10)
    model.input_transform = nn.Identity()
    assert not steps_are_small(model, torch.zeros(64), 64)


def test_a_run_takes_one_and_gives_the_others_back(two_threads, train, monkeypatch):
    from cords_dp.training.private_session import PrivateSession

    seen, original = [], PrivateSession.train_epoch
    monkeypatch.setattr(
        PrivateSession, "train_epoch", lambda self, *args: seen.append(torch.get_num_threads()) or original(self, *args)
    )
    train("RandomDP")
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2
