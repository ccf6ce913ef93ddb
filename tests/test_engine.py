"""One DP-SGD step: clipping, noise, normaliser, empty batches, records that are not finite; every mode."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cords_dp.mechanisms import clip_factors, finite_or_zero
from cords_dp.training.engine import MODES, PlainEngine, PrivateEngine
from cords_dp.training.modes import fastest_mode

CE = nn.CrossEntropyLoss(reduction="none")


def small_net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


class LinearNet(nn.Module):
    """One linear layer on a fixed embedding: what the closed form is for."""

    def __init__(self, inputs=6, classes=3):
        super().__init__()
        self.linear = nn.Linear(inputs, classes)

    def embed(self, x):
        return 2 * x

    def forward(self, x):
        return self.linear(self.embed(x))


def net_for(mode, seed=0):
    torch.manual_seed(seed)
    return LinearNet() if mode == "linear" else small_net(seed)


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def engine_for(model, mode="hooks", *, sigma=0.0, clip=0.5, batch=4, lr=1.0, piece=512, normalise=False, seed=0):
    return PrivateEngine(
        model,
        torch.optim.SGD(model.parameters(), lr=lr),
        CE,
        sigma=sigma,
        max_grad_norm=clip,
        batch_size=batch,
        mode=mode,
        generator=torch.Generator().manual_seed(seed),
        max_physical_batch_size=piece,
        normalise=normalise,
    )


def clipped_sum_by_loop(model, x, y, w, clip):
    """The reference: one example at a time, in float64."""
    model = copy.deepcopy(model).double()
    total = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for i in range(len(y)):
        loss = CE(model(x[i : i + 1].double()), y[i : i + 1]).sum()
        gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])
        total += gradient * min(1.0, clip / float(gradient.norm())) * min(1.0, float(w[i]))
    return total


def batch_of(size, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = 3 * torch.randn(size, 6, generator=generator)
    y = torch.randint(0, 3, (size,), generator=generator)
    w = 0.1 + 2 * torch.rand(size, generator=generator)
    return x, y, w


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("piece", [512, 3])
def test_a_noiseless_step_is_the_clipped_sum_over_the_public_batch_size(mode, piece):
    """Weights, at most 1, multiply clipped gradients; the divisor is the expected size 4, not the realised 10."""
    model = net_for(mode)
    x, y, w = batch_of(10)
    expected = clipped_sum_by_loop(model, x, y, w, clip=0.5) / 4
    before = flat(model)
    engine_for(model, mode, piece=piece).step(x, y, w)
    torch.testing.assert_close((before - flat(model)).double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_noise_scale_within_one_percent(mode):
    """std of the noise of a step is σ·C/b̄, measured over more than 100,000 coordinates."""
    model = LinearNet(400, 300)
    before = flat(model)
    engine_for(model, mode, sigma=1.7, clip=0.8, batch=5).step(
        torch.zeros(0, 400), torch.zeros(0, dtype=torch.long), torch.zeros(0)
    )
    noise = before - flat(model)
    assert noise.numel() > 100_000
    assert float(noise.std()) == pytest.approx(1.7 * 0.8 / 5, rel=0.01)
    assert abs(float(noise.mean())) < 0.001


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_batch_still_steps_with_noise(mode):
    model = net_for(mode)
    before = flat(model)
    engine_for(model, mode, sigma=1.0).step(torch.zeros(0, 6), torch.zeros(0, dtype=torch.long), torch.zeros(0))
    assert bool((flat(model) != before).all())


@pytest.mark.parametrize("mode", MODES)
def test_noise_is_added_once_however_many_pieces(mode):
    """Ten pieces, one noise: the step differs from the noiseless one by a draw of the same size."""
    x, y, w = batch_of(30)
    results = []
    for piece in (512, 3):
        model = net_for(mode)
        engine_for(model, mode, sigma=1.0, piece=piece).step(x, y, w)
        results.append(flat(model))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_a_record_that_is_not_finite_contributes_nothing(mode):
    x, y, w = batch_of(6)
    clean, spoilt = net_for(mode), net_for(mode)
    engine_for(clean, mode).step(x[1:], y[1:], w[1:])
    for value in (float("nan"), float("inf"), 1e38):
        spoilt = net_for(mode)
        bad = x.clone()
        bad[0] = value
        engine_for(spoilt, mode).step(bad, y, w)
        assert torch.isfinite(flat(spoilt)).all()
        if value != 1e38:
            torch.testing.assert_close(flat(spoilt), flat(clean), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("weight", [5.0, float("inf"), float("nan"), -3.0])
def test_a_weight_cannot_lift_a_record_above_the_clip_norm(mode, weight):
    model = net_for(mode)
    x, y, _ = batch_of(1)
    before = flat(model)
    engine_for(model, mode, batch=1).step(x, y, torch.tensor([weight]))
    assert float((before - flat(model)).norm()) <= 0.5 * (1 + 1e-5)


def test_the_closed_form_refuses_other_models():
    from cords_dp.errors import UnsupportedModelError

    for model in (small_net(), nn.Linear(6, 3)):
        with pytest.raises(UnsupportedModelError, match="closed-form"):
            engine_for(model, "linear")
    deeper = LinearNet()
    deeper.extra = nn.Linear(6, 6)
    with pytest.raises(UnsupportedModelError, match="only weights"):
        engine_for(deeper, "linear")


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew"])
@pytest.mark.parametrize("piece", [512, 6])
def test_views_are_averaged_before_clipping(mode, piece, monkeypatch):
    """Three views of each example: the mean of their gradients is clipped as one gradient."""
    from cords_dp.training import engine as module

    def three(x, count, generator):
        return torch.stack([x, -x, 0.5 * x], dim=1).flatten(0, 1)

    monkeypatch.setattr(module, "augmented_views", three)
    model = small_net()
    x, y, _ = batch_of(5)
    reference = copy.deepcopy(model).double()
    total = torch.zeros(flat(model).numel(), dtype=torch.float64)
    for i in range(5):
        views = three(x[i : i + 1].double(), 3, None)
        loss = CE(reference(views), y[i].repeat(3)).mean()
        gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(reference.parameters()))])
        total += gradient * min(1.0, 0.5 / float(gradient.norm()))
    before = flat(model)
    views = module.Views(3, torch.Generator())
    PrivateEngine(
        model, torch.optim.SGD(model.parameters(), lr=1.0), CE, sigma=0.0, max_grad_norm=0.5, batch_size=1, mode=mode,
        generator=torch.Generator(), max_physical_batch_size=piece, views=views,
    ).step(x, y, torch.ones(5))  # fmt: skip
    torch.testing.assert_close((before - flat(model)).double(), total, rtol=1e-4, atol=1e-5)


def test_ghost_clipping_cannot_average_views():
    from cords_dp.errors import UnsupportedModelError
    from cords_dp.training.engine import Views

    with pytest.raises(UnsupportedModelError, match="views"):
        PrivateEngine(
            small_net(), torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0), CE, sigma=0.0, max_grad_norm=1.0,
            batch_size=1, mode="ghost", generator=torch.Generator(), views=Views(2, torch.Generator()),
        )  # fmt: skip


def test_automatic_clipping_normalises_and_stays_within_the_bound():
    norms = torch.tensor([0.0, 1e-4, 0.5, 100.0, float("inf"), float("nan")])
    factors = clip_factors(norms, 0.3, normalise=True)
    lengths = factors[:4] * norms[:4]
    assert bool((lengths <= 0.3).all())
    assert float(lengths[3]) == pytest.approx(0.3, rel=1e-3)
    assert factors[4:].tolist() == [0.0, 0.0]


@given(norm=st.floats(0, 1e30), clip=st.floats(1e-3, 1e3), normalise=st.booleans())
def test_clipped_norms_never_exceed_the_bound(norm, clip, normalise):
    norms = torch.tensor([norm], dtype=torch.float32)
    product = clip_factors(norms, clip, normalise=normalise).double() * norms.double()
    assert float(product) <= clip


def test_finite_or_zero_looks_at_one_row_at_a_time():
    rows = torch.tensor([[1.0, 2.0], [float("nan"), 1.0], [3.0, float("inf")]])
    assert finite_or_zero(rows).tolist() == [[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]


def test_mutant_normaliser_by_realised_size_is_caught():
    """Dividing by the realised size would make the step of a doubled batch no longer twice as long."""
    x, y, w = batch_of(8)
    lengths = []
    for repeat in (1, 2):
        model = small_net()
        before = flat(model)
        engine_for(model).step(x.repeat(repeat, 1), y.repeat(repeat), w.repeat(repeat))
        lengths.append(float((before - flat(model)).norm()))
    assert lengths[1] == pytest.approx(2 * lengths[0], rel=1e-4)


def test_plain_engine_uses_the_same_normaliser():
    x, y, w = batch_of(8)
    model = small_net()
    gradient = torch.autograd.grad((CE(model(x), y) * w).sum(), list(model.parameters()))
    before = flat(model)
    PlainEngine(model, torch.optim.SGD(model.parameters(), lr=1.0), CE, batch_size=4).step(x, y, w)
    expected = torch.cat([g.reshape(-1) for g in gradient]) / 4
    torch.testing.assert_close(before - flat(model), expected, rtol=1e-4, atol=1e-6)


class InPlaceResidual(nn.Module):
    """What makes CORDS' ResNet18 fail under Opacus' backward hooks."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        out = self.one(x)
        out += self.two(x)
        return self.head(torch.tanh(out))


@pytest.mark.parametrize("mode", ["ghost", "ew", "hooks", "functorch"])
def test_every_mode_takes_in_place_residuals(mode):
    x, y, w = batch_of(4)
    model = InPlaceResidual()
    expected = clipped_sum_by_loop(model, x, y, w, clip=0.5) / 4
    before = flat(model)
    engine_for(model, mode).step(x, y, w)
    torch.testing.assert_close((before - flat(model)).double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("statement", ["out.add_(self.two(x))", "out.mul_(self.two(x))"])
def test_a_model_whose_in_place_statements_cannot_be_undone_is_refused(statement):
    """Mutant of the rule: ``out.add_(b)`` as a statement does not rebind ``out``."""
    from cords_dp.errors import UnsupportedModelError

    class Statement(InPlaceResidual):
        def forward(self, x):
            out = self.one(x)
            exec(statement, {"out": out, "self": self, "x": x})
            return self.head(torch.tanh(out))

    x, y, _ = batch_of(4)
    with pytest.raises(UnsupportedModelError, match="no way to get per-example gradients"):
        fastest_mode(Statement(), x, y, CE, ("hooks", "ghost"))


@pytest.mark.parametrize(("unfit", "reason"), [("unused", "take no part"), ("shape", "one logit")])
def test_models_that_are_no_classifiers_are_refused_with_the_reason(unfit, reason):
    from cords_dp.errors import UnsupportedModelError

    class Unfit(InPlaceResidual):
        def forward(self, x):
            out = self.head(torch.tanh(self.one(x) if unfit == "unused" else self.one(x) + self.two(x)))
            return out if unfit == "unused" else out[:, 0]

    x, y, _ = batch_of(4)
    with pytest.raises(UnsupportedModelError, match=reason):
        fastest_mode(Unfit(), x, y, CE)


@pytest.mark.parametrize("mode", ["hooks", "ghost", "functorch"])
def test_dropout_does_not_make_a_mode_look_wrong(mode):
    class Dropping(InPlaceResidual):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return self.head(nn.functional.dropout(self.drop(self.one(x)) + self.two(x), 0.5, self.training))

    x, y, _ = batch_of(4)
    assert fastest_mode(Dropping(), x, y, CE, (mode,)) == mode


def test_records_that_mix_while_training_only_are_found():
    """Found in a last reading: a check in evaluation mode would let such a model through."""
    from cords_dp.errors import UnsupportedModelError

    class MixesInTraining(InPlaceResidual):
        def forward(self, x):
            out = self.one(x) + self.two(x)
            return self.head(out - out.mean(dim=0) if self.training else out)

    x, y, _ = batch_of(4)
    with pytest.raises(UnsupportedModelError, match="wrong gradients"):
        fastest_mode(MixesInTraining(), x, y, CE, ("hooks", "ghost"))


def test_ghost_clipping_refuses_linear_layers_on_sequences():
    """Opacus' norm of such layers cancels in float32 and can understate it many times over."""
    from cords_dp.errors import UnsupportedModelError

    class Sequence(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x).sum(dim=1)

    x, y = torch.randn(2, 5, 4), torch.tensor([0, 1])
    model = Sequence()
    with pytest.raises(UnsupportedModelError, match="sequences"):
        engine_for(model, "ghost").step(x, y, torch.ones(2))
    assert fastest_mode(Sequence(), x, y, CE) != "ghost"


def test_no_norms_stay_on_the_model():
    model = small_net()
    engine_for(model, "ghost").step(*batch_of(5))
    assert not any(hasattr(p, "_norm_sample") for p in model.parameters())


def test_a_mode_that_gives_wrong_gradients_is_refused():
    from cords_dp.errors import UnsupportedModelError

    class Coupled(nn.Module):
        """Mixes the records of a batch without a BatchNorm layer that a validator could see."""

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            return self.layer(x - x.mean(dim=0))

    x, y, _ = batch_of(4)
    with pytest.raises(UnsupportedModelError, match="wrong gradients"):
        fastest_mode(Coupled(), x, y, CE, ("hooks",))
