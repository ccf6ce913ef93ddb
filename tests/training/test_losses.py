"""One loss for each record."""

from __future__ import annotations

import pytest
import torch

from cords_dp.errors import DataError
from cords_dp.models.losses import RecordMSELoss


@pytest.mark.parametrize(("outputs", "targets"), [((4, 1), (4,)), ((4,), (4, 1)), ((4, 3), (4, 3)), ((4,), (4,))])
def test_a_record_s_error_has_nothing_to_do_with_others(outputs, targets):
    """Mutant: torch's own loss broadcasts n×1 against n to n×n, and every record is in every loss."""
    o, t = torch.randn(outputs, requires_grad=True), torch.randn(targets)
    losses = RecordMSELoss()(o, t)
    assert losses.shape == (4,)
    (gradient,) = torch.autograd.grad(losses[1], o)
    assert bool((gradient[[0, 2, 3]] == 0).all())
    expected = (o.reshape(4, -1) - t.reshape(4, -1)).square().mean(dim=1)
    assert torch.allclose(losses, expected)


def test_shapes_that_do_not_match_are_refused():
    for outputs, targets in (((4, 2), (4,)), ((4, 4), (8, 2)), ((8,), (4, 2))):
        with pytest.raises(DataError):
            RecordMSELoss()(torch.zeros(outputs), torch.zeros(targets))


def test_one_record_and_none():
    assert RecordMSELoss()(torch.ones(1, 1), torch.zeros(1)).tolist() == [1.0]
    assert RecordMSELoss()(torch.ones(0, 2), torch.zeros(0, 2)).shape == (0,)
