"""One DP-SGD step: clipping, noise, normaliser, empty batches, records that are not finite; every mode."""

from __future__ import annotations

import copy
import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from steps import (
    CE,
    InPlaceResidual,
    LinearNet,
    SequenceNet,
    batch_of,
    clipped_sum_by_loop,
    engine_for,
    flat,
    net_for,
    recorded_step,
    seeded_noise,
    small_net,
)
from torch import nn

from cords_dp.config.settings import GRADIENT_MODES as MODES
from cords_dp.errors import MechanismError, UnsupportedModelError
from cords_dp.noise.clipping import (
    SUM_BLOCK,
    clip_factors,
    finite_or_zero,
    float64_sum,
    rounded_down,
    rounding_slack,
    row_norms,
    sum_slack,
)
from cords_dp.training.step import PlainEngine, PrivateEngine, Views


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
    assert abs(float(noise.mean())) < 5 * 1.7 * 0.8 / 5 / noise.numel() ** 0.5


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


# --- where noise comes from and where it is added -------------------------------------------------------------------


NOBODY = (torch.zeros(0, 6), torch.zeros(0, dtype=torch.long))


@pytest.mark.parametrize("mode", MODES)
def test_noise_beyond_what_float32_normals_reach_is_added_as_it_is(mode):
    """torch.normal ends at 5.77 deviations on sixteen elements or more; a record beyond that would show itself."""
    draws = []

    def noise(shape):
        draws.append(np.full(shape, 9.0))
        return draws[-1]

    model = net_for(mode)
    seen = recorded_step(model, mode, *NOBODY, sigma=1.5, clip=0.5, batch=4, noise=noise)
    assert [d.shape for d in draws] == [tuple(p.shape) for p in model.parameters()]
    for gradient in seen:
        assert bool((gradient == 9.0 * 1.5 * 0.5 / 4).all())


@pytest.mark.parametrize("mode", MODES)
def test_the_sum_is_float64_until_the_noise_is_in(mode):
    """Rounded before the noise is added, the sum would show in the last digits; rounded after, it does not."""
    x, y, _ = batch_of(3)
    source, again = seeded_noise(5), seeded_noise(5)
    exact = recorded_step(net_for(mode).double(), mode, x.double(), y)  # the sum, in float64
    noisy = recorded_step(net_for(mode).double(), mode, x.double(), y, sigma=1e-9, noise=source)
    for total, released in zip(exact, noisy, strict=True):
        z = torch.from_numpy(again(tuple(total.shape)))
        torch.testing.assert_close(released - total, 0.5e-9 * z, rtol=1e-5, atol=1e-15)


@pytest.mark.parametrize("mode", MODES)
def test_torch_draws_no_noise(mode, monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("noise from torch")

    for name in ("normal", "randn", "randn_like", "rand"):
        monkeypatch.setattr(torch, name, forbidden)
    engine_for(net_for(mode), mode, sigma=1.0).step(*batch_of_constants(4))


def batch_of_constants(size):
    return torch.full((size, 6), 0.3), torch.arange(size) % 3, torch.ones(size)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sigma", [None, float("nan"), float("inf"), -1.0, "1.0"])
def test_a_noise_multiplier_that_is_no_number_is_refused(mode, sigma):
    with pytest.raises(MechanismError, match="noise multiplier"):
        engine_for(net_for(mode), mode, sigma=sigma, noise=seeded_noise())


def test_noise_multiplier_and_source_come_together():
    options = dict(max_grad_norm=1.0, batch_size=1, mode="hooks")
    for sigma, noise, reason in ((1.0, None, "needs a noise source"), (0.0, seeded_noise(), "beside a noise source")):
        model = small_net()
        with pytest.raises(MechanismError, match=reason):
            PrivateEngine(model, torch.optim.SGD(model.parameters(), lr=1.0), CE, sigma=sigma, noise=noise, **options)


@pytest.mark.parametrize("clip", [0.0, -1.0, float("nan"), float("inf")])
def test_a_clip_norm_that_bounds_nothing_is_refused(clip):
    with pytest.raises(MechanismError, match="clip norm"):
        engine_for(small_net(), clip=clip)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("broken", [lambda shape: np.zeros(shape, np.float32), lambda shape: np.zeros(())])
def test_a_noise_source_that_gives_something_else_is_refused(mode, broken):
    with pytest.raises(MechanismError, match="noise source gave"):
        engine_for(small_net(), mode, sigma=1.0, noise=broken).step(*batch_of(2))


@pytest.mark.parametrize("mode", MODES)
def test_secure_noise_has_the_same_scale(mode):
    model = LinearNet(100, 300)
    nobody = torch.zeros(0, 100), torch.zeros(0, dtype=torch.long)
    seen = recorded_step(model, mode, *nobody, sigma=1.7, clip=0.8, batch=5, noise=seeded_noise(secure=True))
    noise = torch.cat([g.reshape(-1) for g in seen])
    assert float(noise.std()) == pytest.approx(1.7 * 0.8 / 5, rel=0.02)


@pytest.mark.parametrize("mode", ["linear", "bookkeeping", "ghost", "hooks"])
@pytest.mark.parametrize("size", [7, 1, 0])
def test_rank_0_alone_adds_noise_before_the_sums_are_added_up(mode, size, monkeypatch):
    """The ranks one after the other; their sums meet in float64, rank 0's with noise in it already."""
    from cords_dp import processes as distributed
    from cords_dp.processes import World

    x, y, _ = batch_of(7)
    x, y = x[:size], y[:size]
    alone = recorded_step(net_for(mode), mode, x, y, sigma=1.0, noise=seeded_noise(3))
    sent, draws, source = [], [], seeded_noise(3)

    def noise(shape):
        draws.append(shape)
        return source(shape)

    for rank in (1, 0):
        received = iter(list(sent))
        monkeypatch.setattr(
            distributed.dist, "all_reduce", lambda total, rank=rank, received=received: total.add_(next(received))
            if rank == 0
            else sent.append(total.clone()),
        )  # fmt: skip
        seen = recorded_step(
            net_for(mode), mode, x[rank::2], y[rank::2], sigma=1.0, noise=noise, world=World(rank, 2),
            max_physical_batch_size=2,
        )  # fmt: skip
        assert len(draws) == (0 if rank else len(alone))
    assert all(total.dtype == torch.float64 for total in sent)
    for together, one in zip(seen, alone, strict=True):
        torch.testing.assert_close(together, one, rtol=1e-4, atol=1e-4)  # small pieces have more room for rounding


RANK = """
import json, os, sys
import torch
sys.path.insert(0, sys.argv[1])
from steps import CE, batch_of, flat, net_for, seeded_noise
from cords_dp.processes import joined_world
from cords_dp.training.step import PrivateEngine

result = {}
with joined_world() as world:
    for mode in ("linear", "bookkeeping", "ghost", "hooks"):
        for size in (7, 1, 0):
            model, source, draws = net_for(mode), seeded_noise(3), []
            noise = lambda shape: draws.append(shape) or source(shape)
            engine = PrivateEngine(
                model, torch.optim.SGD(model.parameters(), lr=1.0), CE, sigma=1.0, max_grad_norm=0.5, batch_size=4,
                mode=mode, noise=noise, world=World(rank, 2), max_physical_batch_size=2,
            )
            x, y, _ = batch_of(7)
            x, y = x[:size][world.rank :: world.size], y[:size][world.rank :: world.size]
            engine.step(x, y, torch.ones(len(y)))
            result[f"{mode} {size}"] = [len(draws), flat(model).tolist()]
print("RESULT", json.dumps(result))
"""


@pytest.mark.slow
def test_two_processes_take_the_step_of_one():
    """In earnest: the same weights on both, those of one process; ranks with fewer pieces or none take part."""
    root = Path(__file__).resolve().parents[2]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(2):
        env = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, "-c", RANK, str(Path(__file__).parent)]
        ranks.append(subprocess.Popen(command, env=env, cwd=root, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate(timeout=120)[0] for process in ranks]
    first, second = (json.loads(output.split("RESULT ")[1]) for output in outputs)
    for case, (draws, weights) in first.items():
        mode, size = case.split()
        model = net_for(mode)
        x, y, _ = batch_of(7)
        x, y = x[: int(size)], y[: int(size)]
        engine_for(model, mode, sigma=1.0, noise=seeded_noise(3)).step(x, y, torch.ones(len(y)))
        assert draws == len(list(model.parameters()))
        assert second[case] == [0, weights]
        torch.testing.assert_close(torch.tensor(weights), flat(model), rtol=1e-5, atol=1e-6)


# --- norms ----------------------------------------------------------------------------------------------------------


class Wide(nn.Module):
    """2.4 million weights on inputs as they are."""

    def __init__(self, inputs=240_000, classes=10):
        super().__init__()
        self.linear = nn.Linear(inputs, classes)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def embed(self, x):
        return x

    def forward(self, x):
        return self.linear(x)


WIDE_INPUTS = {
    "alike": torch.full((1, 240_000), 0.1),
    "normal": torch.randn(1, 240_000, generator=torch.Generator().manual_seed(0)),
    "few large": torch.rand(1, 240_000, generator=torch.Generator().manual_seed(1)) ** 8,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", WIDE_INPUTS)
@pytest.mark.parametrize("normalise", [False, True])
def test_a_contribution_of_millions_of_elements_stays_within_the_clip_norm(mode, kind, normalise):
    """Norms in float32 understate: by 7e-4 here, so that one record contributed 1.0007·C."""
    seen = recorded_step(Wide(), mode, WIDE_INPUTS[kind], torch.zeros(1, dtype=torch.long), normalise=normalise)
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in seen))
    assert 0.5 * (0.999 if not normalise else 0.95) <= norm <= 0.5


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e10, 1e25, 1e38])
def test_a_contribution_stays_within_the_clip_norm_whatever_its_size(mode, scale):
    x, y, _ = batch_of(8)
    for i in range(8):
        seen = recorded_step(net_for(mode), mode, x[i : i + 1] / 10 * scale, y[i : i + 1])
        assert math.sqrt(sum(float(g.double().square().sum()) for g in seen)) <= 0.5


def test_row_norms_are_float64():
    generator = torch.Generator().manual_seed(0)
    for shape in ((3, 5), (2, 300_001), (300, 1000), (4, 2, 3), (0, 5), (3,), (3, 0)):
        rows = torch.randn(shape, generator=generator)
        norms = row_norms(rows)
        assert norms.dtype == torch.float64
        assert norms.tolist() == pytest.approx(
            [math.sqrt(math.fsum(v * v for v in np.atleast_1d(row.double().numpy()).ravel())) for row in rows],
            rel=1e-13,
        )
    assert row_norms(torch.tensor([[3e38, 3e38]])).tolist() == pytest.approx([math.sqrt(2) * 3e38])
    assert not torch.isfinite(row_norms(torch.tensor([[1.0, math.inf], [math.nan, 1.0]]))).any()


@given(factor=st.floats(0, 1e4), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_factors_are_rounded_down(factor, dtype):
    exact = torch.tensor([factor], dtype=torch.float64)
    rounded = rounded_down(exact, dtype)
    assert rounded.dtype == dtype
    assert float(rounded) <= factor
    assert float(rounded) >= factor * (1 - torch.finfo(dtype).eps) - 1.5e-45


def test_slack_grows_with_the_number_of_elements():
    assert 2e-7 < rounding_slack(10, torch.float32) < 1e-6
    assert rounding_slack(10**10, torch.float32) > 1e-6
    assert rounding_slack(10, torch.bfloat16) > 1e-2


# --- what is refused ------------------------------------------------------------------------------------------------


def test_the_closed_form_refuses_other_models():
    for model in (small_net(), nn.Linear(6, 3)):
        with pytest.raises(UnsupportedModelError, match="closed-form"):
            engine_for(model, "linear")
    deeper = LinearNet()
    deeper.extra = nn.Linear(6, 6)
    with pytest.raises(UnsupportedModelError, match="only weights"):
        engine_for(deeper, "linear")


@pytest.mark.parametrize("mode", ["bookkeeping", "hooks", "functorch", "ew"])
@pytest.mark.parametrize("piece", [512, 6])
def test_views_are_averaged_before_clipping(mode, piece, monkeypatch):
    """Three views of each example: the mean of their gradients is clipped as one gradient."""

    from cords_dp.training import step as module

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
    views = module.Views(3, np.random.default_rng(0))
    PrivateEngine(
        model, torch.optim.SGD(model.parameters(), lr=1.0), CE, sigma=0.0, max_grad_norm=0.5, batch_size=1, mode=mode,
        max_physical_batch_size=piece, views=views,
    ).step(x, y, torch.ones(5))  # fmt: skip
    torch.testing.assert_close((before - flat(model)).double(), total, rtol=1e-4, atol=1e-5)


def test_ghost_clipping_cannot_average_views():
    with pytest.raises(UnsupportedModelError, match="views"):
        PrivateEngine(
            small_net(), torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0), CE, sigma=0.0, max_grad_norm=1.0,
            batch_size=1, mode="ghost", views=Views(2, np.random.default_rng(0)),
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


@pytest.mark.parametrize("spoilt", [[0], [0, 1, 2, 3, 4, 5]])
def test_a_record_without_a_finite_loss_contributes_nothing_to_a_plain_step(spoilt):
    x, y, w = batch_of(6)
    x[spoilt] = torch.nan
    kept = x.isfinite().all(dim=1)
    results = []
    for batch in ((x, y, w), (x[kept], y[kept], w[kept])):
        model = small_net()
        PlainEngine(model, torch.optim.SGD(model.parameters(), lr=1.0), CE, batch_size=4).step(*batch)
        results.append(flat(model))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", ["bookkeeping", "ghost", "ew", "hooks", "functorch"])
def test_every_mode_takes_in_place_residuals(mode):
    x, y, w = batch_of(4)
    model = InPlaceResidual()
    expected = clipped_sum_by_loop(model, x, y, w, clip=0.5) / 4
    before = flat(model)
    engine_for(model, mode).step(x, y, w)
    torch.testing.assert_close((before - flat(model)).double(), expected, rtol=1e-4, atol=1e-5)


def test_ghost_clipping_refuses_linear_layers_on_sequences():
    """Opacus' norm of such layers cancels in float32 and can understate it many times over."""
    x, y = torch.randn(2, 5, 4), torch.tensor([0, 1])
    model = SequenceNet()
    with pytest.raises(UnsupportedModelError, match="sequences"):
        engine_for(model, "ghost").step(x, y, torch.ones(2))


def test_no_norms_stay_on_the_model():
    model = small_net()
    engine_for(model, "ghost").step(*batch_of(5))
    assert not any(hasattr(p, "_norm_sample") for p in model.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here: a step on one is not tried")
@pytest.mark.parametrize("mode", MODES)
def test_a_step_on_a_cuda_device_is_that_on_the_processor(mode):
    x, y, w = batch_of(10)
    here, there = net_for(mode), net_for(mode).cuda()
    engine_for(here, mode, sigma=1.0).step(x, y, w)
    engine_for(there, mode, sigma=1.0).step(x.cuda(), y.cuda(), w.cuda())
    torch.testing.assert_close(flat(there).cpu(), flat(here), rtol=1e-4, atol=1e-5)


# --- rounding of sums -------------------------------------------------------------------------------------------------


class OneNumber(nn.Module):
    """All gradients of records like these point in one direction, so that the sum is as long as it can be."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 2)
        for p in self.parameters():
            nn.init.zeros_(p)

    def embed(self, x):
        return x

    def forward(self, x):
        return self.linear(x) if x.shape[1] == 1 else self.linear(x[:, :, None]).sum(dim=1)


def sum_before_noise(mode, x, kept):
    model = OneNumber()
    engine = engine_for(model, mode)
    engine.optimizer.zero_grad()
    for some, weights in zip(x.split(512), kept.split(512), strict=True):
        engine.optimizer.add(engine._clipped_sums(some, torch.zeros(len(some), dtype=torch.int64), weights))
    assert all(p.summed_grad.dtype == torch.float64 for p in model.parameters())
    return torch.cat([p.summed_grad.reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("scale", [1000.0, 0.01])  # all in the weight, or all in the bias
@pytest.mark.parametrize(
    ("mode", "positions"), [("linear", 1), ("bookkeeping", 1), ("bookkeeping", 3), ("hooks", 1), ("ew", 3)]
)
def test_without_a_record_the_sum_of_many_aligned_ones_is_at_most_the_clip_norm_away(mode, positions, scale):
    """In float32 the rounding of the others moved by more than clipping leaves room for."""
    for seed in range(3):
        numbers = torch.rand(16_384, positions, generator=torch.Generator().manual_seed(seed))
        x, kept = scale * (1 + numbers), torch.ones(len(numbers))
        without = kept.clone()
        without[7] = 0.0
        assert float((sum_before_noise(mode, x, kept) - sum_before_noise(mode, x, without)).norm()) <= 0.5


def test_slack_has_room_for_the_rounding_of_sums():
    """The inequality of the proof: a clipped part, and the rounding of the largest batch with it and without."""
    for batch, piece in ((1, 512), (4096, 512), (2**20, 512), (4096, 1)):
        most = max(2**19, 2 * batch)
        additions = SUM_BLOCK + most / min(piece, SUM_BLOCK) + 1024
        slack = rounding_slack(10, torch.float32) + sum_slack(batch, piece)
        assert (1 + 2.0**-24) / (1 + slack) + 2 * most * additions * 2.0**-53 <= 1


def test_sums_in_blocks_are_exact_to_float64():
    weights = torch.rand(1000, 2, generator=torch.Generator().manual_seed(0))
    rows = torch.randn(1000, 3, 4, generator=torch.Generator().manual_seed(1))
    expected = torch.einsum("nk,nij->kij", weights.double(), rows.double())
    torch.testing.assert_close(float64_sum(weights, rows), expected, rtol=1e-13, atol=1e-13)
