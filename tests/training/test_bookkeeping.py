"""The book-keeping mode: each kind of layer against a loop over single records, on both ways to norms and sums."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from opacus.layers import DPGRU, DPLSTM
from steps import CE, Recorder, batch_of, engine_for, flat, recorded_step, seeded_noise, small_net
from torch import nn
from torch.nn import functional as F

from cords_dp.errors import MechanismError, UnsupportedModelError
from cords_dp.training.gradients import contributions
from cords_dp.training.gradients.bookkeeping import (
    Bookkeeping,
    recorded,
    register_layer_rule,
    unregister_layer_rule,
)
from cords_dp.training.gradients.choose import choose_mode, try_modes
from cords_dp.training.gradients.mode import Clipping, Piece
from cords_dp.training.step import PrivateEngine, Views

CLASSES = 3
WAYS = ("rows", "pairs")
POINTWISE = contributions.Geometry((1, 1), (1, 1), (0, 0), (1, 1), 1)


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Both ways on every layer, whichever is the cheaper one."""
    take(request.param, monkeypatch)


def take(way, monkeypatch):
    monkeypatch.setattr(contributions, "_MOST_ROWS", math.inf if way == "rows" else 0.0)
    monkeypatch.setattr(contributions, "_PASS", 0.0)


# --- kinds of layers ------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Layers, then a mean over positions, then a head."""

    def __init__(self, *layers, width):
        super().__init__()
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(width, CLASSES)

    def forward(self, x):
        out = self.layers(x)
        return self.head(torch.tanh(out).flatten(1))


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.net = kind(4, 5, batch_first=True, **options)
        self.head = nn.Linear(5 * (2 if options.get("bidirectional") else 1), CLASSES)

    def forward(self, x):
        outputs, state = self.net(x)
        last = state[0] if isinstance(state, tuple) else state
        return self.head(outputs.mean(dim=1)) + last.sum(dim=(0, 2))[:, None] * torch.arange(CLASSES)


class LastCell(nn.Module):
    """Only the last cell state, of a first layer whose outputs feed the second."""

    def __init__(self):
        super().__init__()
        self.net, self.head = DPLSTM(4, 5, num_layers=2), nn.Linear(5, CLASSES)

    def forward(self, x):
        _, (_, cell) = self.net(x.transpose(0, 1))
        return self.head(cell[-1])


class Words(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4, **options), nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(self.embedding(x)).sum(dim=1))


class TiedWords(Words):
    """One weight as an embedding and as a linear layer's."""

    def forward(self, x):
        scores = F.linear(torch.tanh(self.embedding(x)).sum(dim=1), self.embedding.weight)
        return scores[:, :CLASSES] + self.head(self.embedding(x.flip(1)).square().mean(dim=1))


class CalledOften(nn.Module):
    def __init__(self, layer, width):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, CLASSES)

    def forward(self, x):
        out = x
        for _ in range(3):
            out = torch.tanh(self.layer(out))
        return self.head(out.flatten(1))


class FrozenPart(Net):
    def __init__(self):
        super().__init__(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), width=4 * 16)
        self.layers[0].weight.requires_grad_(False)
        self.layers[1].bias.requires_grad_(False)


class Residual(nn.Module):
    """CORDS' ResNets: the outputs of layers are written over."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.short, self.head = nn.GroupNorm(2, 4), nn.Conv2d(2, 4, 1), nn.Linear(4, CLASSES)

    def forward(self, x):
        out = self.norm(self.two(F.relu(self.one(x), inplace=True)))
        out += self.short(x)
        out.mul_(2.0)
        return self.head(F.relu(out, inplace=True).mean(dim=(2, 3)))


IMAGES, LINES, SEQUENCE, VECTOR = (2, 6, 6), (2, 9), (5, 4), (6,)
KINDS = {
    "linear": (lambda: small_net(), VECTOR),
    "linear without bias": (lambda: nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 3)), VECTOR),
    "linear on a sequence": (lambda: Net(nn.Linear(4, 6), width=30), SEQUENCE),
    "linear on images": (lambda: Net(nn.Linear(6, 3), width=2 * 6 * 3), IMAGES),
    "conv2d": (lambda: Net(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 3, 2), width=12), IMAGES),
    "conv2d grouped": (lambda: Net(nn.Conv2d(2, 4, 3, padding=(0, 2), groups=2), width=4 * 4 * 8), IMAGES),
    "conv2d depthwise": (lambda: Net(nn.Conv2d(2, 2, 3, groups=2), nn.Conv2d(2, 4, 1), width=4 * 16), IMAGES),
    "conv2d dilated": (lambda: Net(nn.Conv2d(2, 4, (2, 3), (2, 1), (1, 2), (3, 2)), width=4 * 3 * 6), IMAGES),
    "conv2d padded same": (lambda: Net(nn.Conv2d(2, 4, (2, 5), padding="same"), width=4 * 36), IMAGES),
    "conv2d padded by reflection": (
        lambda: Net(nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), width=144), IMAGES,
    ),
    "conv2d 1x1 with stride": (lambda: Net(nn.Conv2d(2, 4, 1, stride=2), width=4 * 9), IMAGES),
    "conv1d": (lambda: Net(nn.Conv1d(2, 4, 3, stride=2, padding=1), nn.Conv1d(4, 3, 3), width=9), LINES),
    "group norm": (lambda: Net(nn.Conv2d(2, 6, 3), nn.GroupNorm(3, 6), width=6 * 16), IMAGES),
    "group norm of the input": (lambda: Net(nn.GroupNorm(1, 2), width=72), IMAGES),
    "layer norm": (lambda: Net(nn.Linear(4, 6), nn.LayerNorm((5, 6)), nn.LayerNorm(6), width=30), SEQUENCE),
    "layer norm without bias": (lambda: Net(nn.Linear(4, 6), nn.LayerNorm(6, bias=False), width=30), SEQUENCE),
    "instance norm": (lambda: Net(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True), width=4 * 16), IMAGES),
    "embedding": (lambda: Words(), "words"),
    "embedding with padding": (lambda: Words(padding_idx=-7), "words"),
    "embedding tied to a linear layer": (lambda: TiedWords(), "words"),
    "lstm": (lambda: Recurrent(DPLSTM), SEQUENCE),
    "lstm in two layers and directions": (lambda: Recurrent(DPLSTM, num_layers=2, bidirectional=True), SEQUENCE),
    "lstm without bias": (lambda: Recurrent(DPLSTM, bias=False), SEQUENCE),
    "lstm's cell state": (lambda: LastCell(), SEQUENCE),
    "gru, step by step": (lambda: Recurrent(DPGRU), SEQUENCE),
    "linear called often": (lambda: CalledOften(nn.Linear(6, 6), 6), VECTOR),
    "conv2d called often": (lambda: CalledOften(nn.Conv2d(2, 2, 3, padding=1), 72), IMAGES),
    "group norm called often": (lambda: CalledOften(nn.GroupNorm(2, 2), 72), IMAGES),
    "frozen weights": (lambda: FrozenPart(), IMAGES),
    "residuals in place": (lambda: Residual(), IMAGES),
}  # fmt: skip


def case_of(kind, size=6, seed=0):
    build, shape = KINDS[kind]
    torch.manual_seed(seed)
    model = build().train()
    generator = torch.Generator().manual_seed(seed + 1)
    if shape == "words":
        x = torch.randint(0, 7, (size, 5), generator=generator)
    else:
        x = 2 * torch.randn(size, *shape, generator=generator)
    return model, x, torch.arange(size) % CLASSES


def single_gradients(model, x, y, views=1):
    """A row for each record: the mean over its views, one record at a time, in float64."""
    model = copy.deepcopy(model).double()
    parameters = [p for p in model.parameters() if p.requires_grad]
    x = x.double() if x.is_floating_point() else x
    rows = []
    for start in range(0, len(y), views):
        losses = CE(model(x[start : start + views]), y[start : start + views])
        rows.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(losses.mean(), parameters)]))
    return torch.stack(rows)


def clipped(rows, clip, normalise=False):
    norms = rows.norm(dim=1, keepdim=True)
    return rows * (clip / (norms + 0.01) if normalise else (clip / norms).clamp(max=1.0))


def step_of(model, x, y, weights=None, **options):
    """The sum that a step releases without noise, as one vector in float64."""
    model = copy.deepcopy(model)
    engine, recorder = recording_engine_of_trainable(model, **options)
    engine.step(x, y, torch.ones(len(y)) if weights is None else weights)
    return torch.cat([g.reshape(-1) for g in recorder.seen]).double()


def recording_engine_of_trainable(model, **options):
    recorder = Recorder([p for p in model.parameters() if p.requires_grad], lr=0.0)
    options = {"sigma": 0.0, "max_grad_norm": 0.5, "batch_size": 1, "mode": "bookkeeping", **options}
    return PrivateEngine(model, recorder, CE, **options), recorder


def assert_equal(got, expected, relative=1e-5):
    assert float((got - expected).norm()) <= relative * float(expected.norm())


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_layer_is_exact(kind, way):
    """Clipped by a norm far below every gradient's, where wrong norms show; by one among them; by none."""
    model, x, y = case_of(kind)
    rows = single_gradients(model, x, y)
    norms = rows.norm(dim=1)
    weights = torch.linspace(0.1, 1.0, len(y))
    for clip in (1e-3 * float(norms.min()), float(norms.median()), 2 * float(norms.max())):
        expected = (clipped(rows, clip) * weights[:, None].double()).sum(dim=0)
        assert_equal(step_of(model, x, y, weights, max_grad_norm=clip), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_no_part_of_a_gradient_is_forgotten(kind, way):
    """Lengths are measured weight by weight: each against the loop, each an upper bound of what is summed."""
    model, x, y = case_of(kind)
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = single_gradients(model, x, y)
    parts = recorded(model, parameters, lambda m: CE(m(x), y), records=len(y), views=1)
    for part, row, p in zip(parts, rows.split([p.numel() for p in parameters], dim=1), parameters, strict=True):
        lengths = part.lengths()
        assert lengths.dtype == torch.float64
        torch.testing.assert_close(lengths, row.norm(dim=1), rtol=5e-5, atol=1e-7)  # up to its room for rounding
        for i in range(len(y)):
            alone = torch.zeros(len(y)).index_fill_(0, torch.tensor(i), 1.0)
            summed = part.clipped_sum(alone, None).double()
            assert summed.numel() == p.numel()
            assert float(summed.norm()) <= float(lengths[i]) * (1 + 4 * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_alone_stays_within_the_clip_norm(kind, way):
    model, x, y = case_of(kind, seed=3)
    shortest = float(single_gradients(model, x, y).norm(dim=1).min())
    for normalise in (False, True):
        for i in range(len(y)):
            one = slice(i, i + 1)
            released = step_of(model, x[one], y[one], max_grad_norm=0.01 * shortest, normalise=normalise)
            assert float(released.norm()) <= 0.01 * shortest


@pytest.mark.parametrize("kind", ["linear", "conv2d grouped", "group norm", "layer norm", "lstm", "embedding"])
def test_views_are_averaged_before_clipping(kind, way, monkeypatch):
    """Three views of each record, two records in a piece: the mean of their gradients is clipped as one."""
    from cords_dp.training import step as module

    def three(x, count, generator):
        others = (-x, 0.5 * x) if x.is_floating_point() else (x.flip(1), (x + 1) % 7)
        return torch.stack([x, *others], dim=1).flatten(0, 1)

    monkeypatch.setattr(module, "augmented_views", three)
    model, x, y = case_of(kind)
    rows = single_gradients(model, three(x, 3, None), y.repeat_interleave(3), views=3)
    clip = 0.5 * float(rows.norm(dim=1).median())
    views = Views(3, np.random.default_rng(0))
    got = step_of(model, x, y, max_grad_norm=clip, views=views, max_physical_batch_size=6)
    assert_equal(got, clipped(rows, clip).sum(dim=0), 1e-4)  # small pieces have more room for rounding


@pytest.mark.parametrize("kind", ["linear", "conv2d", "lstm"])
def test_automatic_clipping(kind, way):
    model, x, y = case_of(kind)
    expected = clipped(single_gradients(model, x, y), 0.5, normalise=True).sum(dim=0)
    assert_equal(step_of(model, x, y, normalise=True), expected)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_convolutions_of_any_shape(data):
    """Kernel, stride, padding, dilation, groups and size, on both ways."""
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    groups = draw(1, 3)
    kernel, stride, padding, dilation = ((draw(low, 3), draw(low, 3)) for low in (1, 1, 0, 1))
    size = (draw(1, 9), draw(1, 9))
    ends = [s + 2 * p - d * (k - 1) for s, p, d, k in zip(size, padding, dilation, kernel, strict=True)]
    assume(min(ends) >= 1)
    torch.manual_seed(draw(0, 1000))
    layer = nn.Conv2d(groups * draw(1, 2), groups * draw(1, 3), kernel, stride, padding, dilation, groups)
    x, n, v = torch.randn(4, layer.in_channels, *size), 2, 2
    g = torch.randn_like(layer(x))
    geometry = contributions.Geometry(kernel, stride, padding, dilation, groups)
    use = contributions.Images(x, g, n, geometry)
    exact = copy.deepcopy(layer).double()
    expected = []
    for i in range(n):
        views = slice(i * v, (i + 1) * v)
        expected.append(torch.autograd.grad((exact(x[views].double()) * g[views].double()).sum(), exact.weight)[0])
    expected = torch.stack(expected).flatten(1)
    scale = float(x.double().norm() * g.double().norm())
    factors = torch.tensor([0.25, 0.75])
    summed = (expected * factors[:, None].double()).sum(dim=0)
    for part in (contributions.GradientRows(use.rows()), use):
        torch.testing.assert_close(part.lengths(), expected.norm(dim=1), rtol=1e-5, atol=1e-5 * scale)
        assert bool((part.lengths() >= (1 - 1e-6) * expected.norm(dim=1) - 1e-7 * scale).all())
        torch.testing.assert_close(
            part.clipped_sum(factors, None).double().flatten(), summed, rtol=1e-5, atol=1e-6 * scale
        )


# --- records and models that try to get around it -------------------------------------------------------------------


@pytest.mark.parametrize("part", WAYS)
def test_gradients_that_cancel_do_not_grow_with_their_rounding(part, monkeypatch):
    """Terms that cancel but for the last digit of one of them: what is measured is rounding, scaled up it exceeds C."""
    take(part, monkeypatch)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        a, g = (torch.randn(1, 8, 6, generator=generator) * 1e3 for _ in range(2))
        other = -g
        other[0, 0, 0] = torch.nextafter(other[0, 0, 0], torch.tensor(0.0))
        use = contributions.Positions(torch.cat([a, a], dim=1), torch.cat([g, other], dim=1))
        use = contributions.GradientRows(use.rows()) if use.rows_are_cheaper() else use
        factors = (1.0 / use.lengths()).float()
        assert float(use.clipped_sum(factors, None).double().norm()) <= 1 + 1e-6


def test_images_whose_terms_cancel_do_not_grow_with_their_rounding():
    half = torch.randn(1, 3, 8, 4, generator=torch.Generator().manual_seed(0)) * 1e3
    a = torch.cat([half, half], dim=3)
    g = torch.cat([half, -half * (1 + 1e-7)], dim=3)
    use = contributions.Images(a, g, 1, POINTWISE)
    summed = use.clipped_sum((1.0 / use.lengths()).float(), None)
    assert float(summed.double().norm()) <= 1 + 1e-6


@pytest.mark.parametrize(
    "kind", ["linear", "linear on a sequence", "conv2d", "conv2d grouped", "conv1d", "group norm", "layer norm", "lstm"]
)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_a_record_that_is_not_finite_contributes_nothing_and_spoils_nothing(kind, value, way):
    model, x, y = case_of(kind)
    x[2, ..., 0] = value
    others = [i for i in range(len(y)) if i != 2]
    got = step_of(model, x, y, max_grad_norm=0.1)
    assert bool(torch.isfinite(got).all())
    if value != 3e38:
        assert_equal(got, step_of(model, x[others], y[others], max_grad_norm=0.1))


def test_inputs_near_the_end_of_float32_are_left_out():
    for use in (
        contributions.Positions(torch.full((1, 1, 3), 1e25), torch.ones(1, 1, 2)),
        contributions.Positions(torch.full((1, 2, 3), 1e25), torch.ones(1, 2, 2)),
        contributions.Images(torch.full((1, 1, 3, 3), 1e25), torch.ones(1, 1, 3, 3), 1, POINTWISE),
    ):
        assert use.lengths().tolist() == [math.inf]


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)


class ByHand(Body):
    def forward(self, x):
        return self.head(torch.tanh(self.a(x)) + x @ self.b.weight.T + self.b.bias)


class ByHandOnLongRecords(Body):
    def forward(self, x):
        out = torch.tanh(self.a(x)) + self.b(x)
        return self.head(out + x @ self.a.weight if float(x.abs().max()) > 100 else out)


class Expression(Body):
    def forward(self, x):
        return self.head(F.linear(x, 2 * self.a.weight, self.a.bias) + self.b(x))


class ExpressionAsBias(Body):
    def forward(self, x):
        return self.head(F.linear(x, self.a.weight, 2 * self.a.bias) + self.b(x))


class PositionsFirst(Body):
    """Rows that are no records."""

    def forward(self, x):
        return self.head(self.a(x[:, None].transpose(0, 1)).squeeze(0) + self.b(x))


class GradientsInside(Body):
    def forward(self, x):
        inner = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self.a(inner).sum(), inner)
        return self.head(gradient + self.a(x) + self.b(x))


class WritesOverItsInput(Body):
    def forward(self, x):
        h = torch.tanh(x)
        out = self.a(h)
        h.mul_(2.0)
        return self.head(out + self.b(h))


@pytest.mark.parametrize(
    ("adversary", "reason"),
    [
        (ByHand, "not written down"),
        (Expression, "not written down"),
        (ExpressionAsBias, "not written down"),
        (PositionsFirst, "rows"),
        (GradientsInside, "while it computes"),
    ],
)
def test_other_uses_of_weights_stop_the_step(adversary, reason):
    x, y, w = batch_of(4)
    with pytest.raises(UnsupportedModelError, match=reason):
        engine_for(adversary(), "bookkeeping").step(x, y, w)
    assert "bookkeeping" in try_modes(adversary(), x, y, CE, ["bookkeeping"])[1]


def test_an_input_that_changes_before_the_backward_pass_is_noticed():
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        engine_for(WritesOverItsInput(), "bookkeeping").step(*batch_of(4))


def test_a_use_that_only_some_records_make_stops_the_step():
    """No probe finds what a model does on other inputs; the step looks at its own graph."""
    x, y, w = batch_of(4)
    model = ByHandOnLongRecords()
    assert "bookkeeping" in try_modes(model, x, y, CE, ["bookkeeping"])[0]
    with pytest.raises(UnsupportedModelError, match="not written down"):
        engine_for(model, "bookkeeping").step(1000 * x, y, w)


def test_convolutions_with_weights_of_their_own_making_are_refused():
    from cords_dp.models.convolutional import StandardisedConv2d

    model = Net(StandardisedConv2d(2, 4, 3), width=64)
    with pytest.raises(UnsupportedModelError, match="not written down"):
        engine_for(model, "bookkeeping").step(torch.randn(2, *IMAGES), torch.tensor([0, 1]), torch.ones(2))


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_embeddings_that_do_more_are_refused(options):
    model, words = Words(**options), torch.randint(0, 7, (2, 5))
    with pytest.raises((UnsupportedModelError, RuntimeError)):
        engine_for(model, "bookkeeping").step(words, torch.tensor([0, 1]), torch.ones(2))


def test_short_matrix_products_are_refused():
    x, y, w = batch_of(4)
    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(MechanismError, match="full precision"):
            engine_for(small_net(), "bookkeeping").step(x, y, w)
    finally:
        torch.set_float32_matmul_precision("highest")
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(MechanismError, match="full precision"):
        engine_for(small_net(), "bookkeeping").step(x, y, w)


def test_nothing_of_the_records_stays_on_the_model():
    model, x, y = case_of("lstm")
    names = {name: set(vars(m)) for name, m in model.named_modules()}
    engine_for(model, "bookkeeping").step(x, y, torch.ones(len(y)))
    assert {name: set(vars(m)) for name, m in model.named_modules()} == names
    assert all(p.grad is None and getattr(p, "summed_grad", None) is None for p in model.parameters())


def test_a_step_that_fails_leaves_the_model_as_it_was():
    model, x, y = case_of("lstm")
    names = {name: set(vars(m)) for name, m in model.named_modules()}
    with pytest.raises(IndexError):
        engine_for(model, "bookkeeping").step(x, y + 99, torch.ones(len(y)))
    assert {name: set(vars(m)) for name, m in model.named_modules()} == names


def test_autograd_computes_no_gradient_of_a_weight():
    """Mutant: a weight in the graph would be summed and not measured."""
    model, x, y = case_of("conv2d")
    seen = recorded_step(model, "bookkeeping", x, y)
    assert len(seen) == len(list(model.parameters()))
    parameters = list(model.parameters())
    recorded(model, parameters, lambda m: CE(m(x), y), records=len(y), views=1)
    assert all(p.grad is None for p in parameters)


def test_models_in_float64_are_exact():
    model, x, y = case_of("conv2d")
    rows = single_gradients(model, x, y)
    got = step_of(model.double(), x.double(), y, max_grad_norm=0.1)
    assert_equal(got, clipped(rows, 0.1).sum(dim=0))
    unclipped = step_of(model, x.double(), y, max_grad_norm=1e6)
    assert_equal(unclipped, rows.sum(dim=0), 1e-12)


def test_noise_is_that_of_the_one_source():
    """σ·C·z in the order of the weights, on top of the sum without noise."""
    model, x, y = case_of("conv2d")
    quiet = step_of(model, x, y)
    noisy = step_of(model, x, y, sigma=2.0, noise=seeded_noise(4))
    again = seeded_noise(4)
    z = np.concatenate([again(tuple(p.shape)).ravel() for p in model.parameters()])
    torch.testing.assert_close(noisy - quiet, torch.from_numpy(z) * 2.0 * 0.5, rtol=1e-5, atol=1e-5)


def test_every_weight_moves():
    model, x, y = case_of("residuals in place")
    before = flat(model)
    engine_for(model, "bookkeeping", sigma=1.0).step(x, y, torch.ones(len(y)))
    assert bool((flat(model) != before).all())


# --- layers of users' own --------------------------------------------------------------------------------------------


class Bent(nn.Module):
    """x · scale + bias · x², with weights that none of torch's functions takes; positions are summed by the rule."""

    def __init__(self, width):
        super().__init__()
        self.scale, self.bend = nn.Parameter(torch.rand(width) + 0.5), nn.Parameter(torch.rand(width) - 0.5)

    def forward(self, x):
        return x * self.scale + self.bend * x.square()


def bent_rule(layer, x, g):
    return {"scale": (x * g).sum(0), "bend": (x.square() * g).sum(0)}


class BentNet(nn.Module):
    def __init__(self, shared=False):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.first, self.last = nn.Linear(4, 6), Bent(6), nn.Linear(6, 3)
        self.second = self.first if shared else Bent(6)

    def forward(self, x):
        h = torch.tanh(self.first(self.inner(x.unflatten(1, (2, 4)))))
        return self.last(self.second(h).mean(dim=1))


@pytest.fixture
def bent():
    register_layer_rule(Bent, bent_rule)
    yield
    unregister_layer_rule(Bent)


def made_up_pairs():
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(1)), torch.arange(5) % 3


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("views", [1, 5])
def test_a_users_layer_is_recorded_by_its_rule(bent, shared, views):
    model, (x, y) = BentNet(shared).double(), made_up_pairs()
    x, parameters, records = x.double(), list(model.parameters()), 5 // views
    parts = recorded(model, parameters, lambda m: CE(m(x), y), records=records, views=views)
    for row in range(records):
        mine = slice(row * views, (row + 1) * views)
        exact = torch.autograd.grad(CE(model(x[mine]), y[mine]).mean(), parameters)
        only = torch.eye(records, dtype=torch.float64)[row]
        for part, expected in zip(parts, exact, strict=True):
            torch.testing.assert_close(part.clipped_sum(only, None).view_as(expected), expected)


def test_auto_takes_bookkeeping_for_a_users_layer_and_refuses_it_without_the_rule(bent):
    model, batch = BentNet(), made_up_pairs()
    assert choose_mode(model, *batch, CE, ["bookkeeping"]).name == "bookkeeping"
    unregister_layer_rule(Bent)
    with pytest.raises(UnsupportedModelError, match="not written down"):
        choose_mode(model, *batch, CE, ["bookkeeping"])


@pytest.mark.parametrize(
    ("rule", "match"),
    [
        (lambda layer, x, g: {"scale": (x * g).sum(0), "bend": (x * g).sum(0)}, "wrong gradients"),
        (lambda layer, x, g: {"scale": (x * g).sum(0)}, "leaves out weights"),
        (lambda layer, x, g: {"scale": x * g, "bend": x * g}, "another shape"),
    ],
)
def test_a_wrong_rule_is_refused(bent, rule, match):
    register_layer_rule(Bent, rule, force=True)
    with pytest.raises(UnsupportedModelError, match=match):
        choose_mode(BentNet(), *made_up_pairs(), CE, ["bookkeeping"])


def test_a_rule_cannot_lift_a_record_above_the_clip_norm_or_see_two_records(bent):
    register_layer_rule(Bent, lambda layer, x, g: {"scale": 1e6 + x.sum(0), "bend": -1e6 * x.sum(0)}, force=True)
    model, (x, y) = BentNet(), made_up_pairs()
    parameters = list(model.parameters())
    for row in range(5):
        piece = Piece(x[row : row + 1], y[row : row + 1], torch.ones(1))
        sums = Bookkeeping().clipped_sums(model, parameters, CE, piece, Clipping(0.5, slack=1e-6))
        assert torch.cat([s.flatten() for s in sums]).norm() <= 0.5
    shapes = []
    register_layer_rule(Bent, lambda layer, x, g: shapes.append(x.shape) or bent_rule(layer, x, g), force=True)
    recorded(model, parameters, lambda m: CE(m(x), y), records=5, views=1)
    assert set(shapes) == {(2, 6)}  # no dimension of the batch


def test_layer_rules_are_registered_once_and_for_layers(bent):
    with pytest.raises(MechanismError, match="already"):
        register_layer_rule(Bent, bent_rule)
    with pytest.raises(MechanismError, match="class of layers"):
        register_layer_rule(Bent(3), bent_rule)
