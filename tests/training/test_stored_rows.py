"""A linear head on stored half-precision features takes the step that it takes on the same numbers in float32."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from cords_dp.data.half_rows import HalfRows, sum_error
from cords_dp.models.heads import LinearHead
from cords_dp.noise.clipping import rounding_slack, sum_slack
from cords_dp.training.step import PrivateEngine

CLASSES, LENGTH, CLIP = 3, 700, 0.5


class Ready:
    name, settings, input_shape, feature_shape = "ready", (), (1, 4, 4), (LENGTH,)

    def __call__(self, records):
        raise AssertionError("features were ready")


def clipped_sum(x, y, weights=None, normalise=False):
    model = LinearHead(CLASSES, Ready.input_shape, Ready())
    with torch.no_grad():
        model.linear.weight.copy_(torch.randn(CLASSES, LENGTH, generator=torch.Generator().manual_seed(1)) / 30)
    before = copy.deepcopy(model.state_dict())
    engine = PrivateEngine(
        model, torch.optim.SGD(model.parameters(), lr=1.0), nn.CrossEntropyLoss(reduction="none"), sigma=0.0,
        max_grad_norm=CLIP, batch_size=1, mode="linear", normalise=normalise,
    )  # fmt: skip
    engine.step(x, y, torch.ones(len(y)) if weights is None else weights)
    return torch.cat([(before[name] - value).reshape(-1) for name, value in model.state_dict().items()])


def records(count, scale=1.0, seed=0):
    x = torch.randn(count, LENGTH, generator=torch.Generator().manual_seed(seed)) * scale
    return x.half(), torch.arange(count) % CLASSES


@pytest.mark.parametrize("normalise", [False, True])
def test_the_step_is_that_of_single_precision(normalise):
    x, y = records(9)
    weights = torch.linspace(0, 1, 9)
    torch.testing.assert_close(
        clipped_sum(x, y, weights, normalise), clipped_sum(x.float(), y, weights, normalise), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("scale", [1e-3, 1.0, 60.0])
def test_no_record_contributes_more_than_the_clip_norm(scale):
    x, y = records(6, scale)
    for i in range(6):
        assert float(clipped_sum(x[i : i + 1], y[i : i + 1]).double().norm()) <= CLIP


class Short(Ready):
    feature_shape = (1,)  # errors of many numbers would average out


def sum_before_noise(x, y):
    """The clipped sum as it is in memory, in float64."""
    model = LinearHead(2, Short.input_shape, Short())
    engine = PrivateEngine(
        model, torch.optim.SGD(model.parameters(), lr=1.0), nn.CrossEntropyLoss(reduction="none"), sigma=0.0,
        max_grad_norm=CLIP, batch_size=1, mode="linear",
    )  # fmt: skip
    sums = engine._clipped_sums(x, y, torch.ones(len(y)))
    assert all(total.dtype == torch.float64 for total in sums)
    return torch.cat([total.reshape(-1) for total in sums])


@pytest.mark.parametrize("scale", [1000.0, 0.01])  # all in the weights, or all in the bias
def test_without_a_record_the_sum_of_many_aligned_ones_is_at_most_the_clip_norm_away(scale):
    """Without the first record all others fall into other places of other blocks, and round differently there."""
    for seed in range(8):
        numbers = torch.rand(16_384, 1, generator=torch.Generator().manual_seed(seed))
        x, y = (scale * (1 + numbers)).half(), torch.zeros(16_384, dtype=torch.int64)
        assert float((sum_before_noise(x, y) - sum_before_noise(x[1:], y[1:])).norm()) <= CLIP


@pytest.mark.parametrize("dropped", [1, 2, 3, 70])
def test_a_record_s_part_is_the_same_number_whoever_else_is_in_the_batch(monkeypatch, dropped):
    """Kernels that take several records at once could round a record by its place, and thousands would add up."""
    parts = []
    real = HalfRows.weighted_sum
    monkeypatch.setattr(HalfRows, "weighted_sum", lambda rows, weights: parts.append(weights) or real(rows, weights))
    x, y = records(1003)
    clipped_sum(x, y)
    clipped_sum(x[dropped:], y[dropped:])
    assert torch.equal(parts[0][dropped:], parts[1])


def test_the_slack_has_room_for_the_rounding_of_the_largest_batch():
    """The inequality of the proof, with nothing for the errors of norms, which have an allowance of their own."""
    for batch in (1, 16_384, 2**19, 2**22):
        part = (1 + 2.0**-24) / (1 + rounding_slack(0, torch.float32) + sum_slack(batch // 2, 512))
        assert part + 2 * batch * sum_error(batch) <= 1


def test_a_record_that_is_not_finite_contributes_nothing():
    x, y = records(5)
    x[2, 650] = torch.nan
    others = torch.tensor([0, 1, 3, 4])
    torch.testing.assert_close(clipped_sum(x, y), clipped_sum(x[others], y[others]), rtol=1e-5, atol=1e-6)


def test_logits_without_gradients_are_those_of_single_precision():
    x, _ = records(7)
    x[3, 0] = torch.inf
    model = LinearHead(CLASSES, Ready.input_shape, Ready())
    with torch.no_grad():
        nn.init.normal_(model.linear.weight)
        stored = model(x)
    dense = model(x.float()).detach()
    kept = torch.tensor([i for i in range(7) if i != 3])
    torch.testing.assert_close(stored[kept], dense[kept], rtol=1e-4, atol=1e-3)
    assert bool(torch.isnan(stored[3]).all()), "not finite, so no prediction"
