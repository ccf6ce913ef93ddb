"""GLISTER-DP: scores, their sensitivity, exact privacy ratios of the real strategy, and its charges."""

from __future__ import annotations

import itertools
import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from builders import CE, Selecting, make_plan, spy_on_noise
from builders import Net as WiderNet
from builders import data_of as wider_data
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import max_log_ratio
from torch.utils.data import DataLoader

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, ExponentialPicks, GumbelFreeze
from cords_dp.errors import MechanismError
from cords_dp.noise.primitives import pick_probabilities
from cords_dp.selection.exponential import class_quotas
from cords_dp.selection.last_layer import LastLayer, LastLayerGradients, last_layer, to_norm

GREEDY = ("Frozen", "RGreedy", "Stochastic", "Naive")


def Net():
    return WiderNet(dim=5, hidden=4)


def data_of(n, seed):
    return wider_data(n, seed, dim=5)


def plan_for(n, k, *, greedy="Frozen", validation="public", r=2, epsilon=3.0, **changes):
    return make_plan(
        mechanism="exponential", n=n, k=k, n_validation=20, epochs=2, batch_size=1, select_every=1, greedy=greedy, r=r,
        epsilon=epsilon, validation=validation, **changes,
    )  # fmt: skip


def selecting_for(plan, seed=0, learning_rate=0.1):
    torch.manual_seed(seed)
    train, validation = data_of(plan.shape.n, seed), data_of(20, seed + 1)
    return Selecting(plan, seed, train=train, validation=validation, model=Net(), learning_rate=learning_rate)


# --- last-layer gradients ---------------------------------------------------------------------------


@pytest.mark.parametrize("linear_layer", [True, False])
def test_scores_and_sums_equal_those_of_explicit_gradients(linear_layer):
    """The factored form against torch's own gradients of the last layer, record by record."""
    torch.manual_seed(0)
    model, data = Net(), data_of(12, 0)
    gradients = last_layer(model, CE, data, linear_layer=linear_layer, device="cpu").gradients
    explicit = []
    for i in range(12):
        x, y = data.batch([i])
        weight, bias = torch.autograd.grad(CE(model(x), y).sum(), [model.head.weight, model.head.bias])
        explicit.append(torch.cat([bias[:, None], weight], dim=1) if linear_layer else bias[:, None])
    matrix = torch.stack(explicit)
    clipped = matrix * (0.3 / matrix.flatten(1).norm(dim=1)).clamp(max=1.0)[:, None, None]
    v = torch.randn(matrix.shape[1:])
    torch.testing.assert_close(gradients.scores(v, 0.3), (clipped * v).sum(dim=(1, 2)), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(gradients.clipped_sum(0.3).float(), clipped.sum(dim=0), rtol=1e-4, atol=1e-6)


def test_the_scores_agree_with_cords_when_nothing_is_clipped():
    """Same records, same model: our scores are CORDS' gains up to the public scale of v."""
    from cords_dp.cords import GLISTERStrategy

    plan = plan_for(12, 4, selection_clip=1e6, validation_clip=1e6)
    selecting = selecting_for(plan)
    selector, context = selecting.selector, selecting.selector.context
    train, validation = (DataLoader(r.dataset, batch_size=8) for r in (context.training, context.validation))
    theirs = GLISTERStrategy(
        train, validation, context.training.model, CE, 0.1, "cpu", 3, True, "Supervised", "RGreedy",
        logging.getLogger("test"), r=2,
    )  # fmt: skip
    selector.describe(selecting.weights)
    (v,) = selector.directions(selecting.releases())
    theirs.compute_gradients()
    theirs._update_grads_val(first_init=True)
    gains = theirs.eval_taylor_modular(theirs.grads_per_elem).view(-1).double().numpy()
    scores = selector.scores(v, np.arange(12))
    np.testing.assert_allclose(scores / np.abs(scores).max(), gains / np.abs(gains).max(), rtol=1e-3, atol=1e-5)


numbers = st.one_of(st.floats(-5, 5, width=32), st.sampled_from([float("nan"), float("inf"), -1e30, 1e30, 0.0]))


@settings(max_examples=200)
@given(data=st.data(), n=st.integers(1, 6), clip=st.floats(0.1, 10))
def test_scores_never_exceed_their_bound(data, n, clip):
    """|u_j| ≤ C_e·C_v for any gradients, NaN and huge norms included."""
    rows = st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=n, max_size=n)
    r = torch.tensor(data.draw(rows), dtype=torch.float32)
    a = torch.tensor(data.draw(rows), dtype=torch.float32)
    v = to_norm(torch.tensor(data.draw(rows)[0] * 3, dtype=torch.float32).reshape(3, 3), 2.0)
    scores = LastLayerGradients(r, a).scores(v, clip)
    assert torch.isfinite(scores).all()
    assert float(scores.abs().max()) <= clip * 2.0 * (1 + 1e-5)


# --- sensitivity and exact privacy of the real strategy ------------------------------------------------


def zero_out(gradients, record):
    r = gradients.r.clone()
    r[record] = 0.0
    return LastLayerGradients(r, gradients.a)


def prepared(plan, seed, record=None, clip_scale=1.0):
    """A selector with its gradients computed, one record zeroed if asked for, and the noise it may draw."""
    selecting = selecting_for(plan, seed, learning_rate=0.5)
    selector = selecting.selector
    selector.describe(selecting.weights)
    seen = selector.training
    gradients = LastLayerGradients(seen.gradients.r * clip_scale, seen.gradients.a)
    selector.training = LastLayer(
        gradients if record is None else zero_out(gradients, record), seen.logits, seen.labels
    )
    return selector, selecting.releases()


def law_of(plan, seed, k, record=None):
    """Exact law of the k picks of the real selector, by forcing every history through its own code."""
    law = {}
    sensitivity = plan.mechanism.score_sensitivity(plan.privacy)
    for outcome in itertools.permutations(range(plan.shape.n), k):
        selector, releases = prepared(plan, seed, record, clip_scale=50.0)
        position, probability = 0, 1.0
        remaining = list(range(plan.shape.n))

        def forced(name, scores, size, outcome=outcome):
            nonlocal position, probability, remaining
            chosen, left = [], list(range(len(scores)))
            for index in outcome[position : position + size]:
                local = remaining.index(index)
                pmf = pick_probabilities(scores[left], epsilon0=plan.selection_noise, sensitivity=sensitivity)
                probability *= pmf[left.index(local)]
                left.remove(local)
                chosen.append(local)
            remaining = [r for r in remaining if r not in outcome[: position + size]]
            position += size
            return np.array(chosen)

        releases.picks = forced
        selector.pick(releases)
        law[outcome] = probability
    return law


@pytest.mark.parametrize("greedy", ["Frozen", "RGreedy", "Naive"])
@pytest.mark.parametrize("seed", [0, 1])
def test_exact_privacy_ratio_of_the_selector_over_zero_out_pairs(greedy, seed):
    """All records of a tiny dataset zeroed in turn: |log ratio| ≤ k·ε₀ (k·ε₀/2 when v is frozen)."""
    n, k = 4, 3
    plan = plan_for(n, k, greedy=greedy, r=3, epsilon=8.0)
    base = law_of(plan, seed, k)
    assert sum(base.values()) == pytest.approx(1.0)
    limit = k * plan.selection_noise / (2 if greedy == "Frozen" else 1)
    for record in range(n):
        assert max_log_ratio(base, law_of(plan, seed, k, record)) <= limit + 1e-9


def moved_scores(plan, seed, zeroed, picked, stretch):
    """Scores after one greedy step along some picked records; Frozen takes none."""
    selector, releases = prepared(plan, seed, zeroed, clip_scale=20.0)
    moves = None
    if plan.mechanism.greedy != "Frozen":
        moves = [selector.training.gradients.rows(picked).clipped_sum(1.0) * stretch]
    (v,) = selector.directions(releases, moves)
    return selector.scores(v, np.arange(plan.shape.n))


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), record=st.integers(0, 7), greedy=st.sampled_from(["Frozen", "RGreedy"]))
def test_score_sensitivity_over_zero_out_pairs(seed, record, greedy):
    """Frozen: one score moves, by ≤ Δ. Updated: all may move, by ≤ Δ, also when the record was picked."""
    plan = plan_for(8, 4, greedy=greedy)
    picked = torch.tensor([record, (record + 1) % 8])
    scores = [moved_scores(plan, seed, zeroed, picked, 20) for zeroed in (None, record)]
    moved = np.abs(scores[0] - scores[1])
    sensitivity = plan.mechanism.score_sensitivity(plan.privacy)
    assert moved.max() <= sensitivity + 1e-12
    if greedy == "Frozen":
        assert np.count_nonzero(moved) <= 1
        assert np.abs(scores[0]).max() <= sensitivity + 1e-12


def test_a_gain_that_is_not_finite_is_that_of_a_null_record():
    plan = plan_for(8, 4)
    selector = selecting_for(plan).selector
    gains = torch.tensor([np.inf, -np.inf, np.nan, 1e9, -1e9, 0.0])
    scores = selector._scores(torch.zeros(3, 5), SimpleNamespace(scores=lambda v, clip: gains))
    bound = plan.privacy.selection_clip * plan.privacy.validation_clip
    assert scores.tolist() == [0.0, 0.0, 0.0, bound, -bound, 0.0]


def test_mutant_frozen_sensitivity_used_with_an_updated_gradient_is_caught():
    """With v moving, some pair moves a score by more than C_e·C_v, so Δ = C_e·C_v would be wrong."""
    plan = plan_for(8, 4, greedy="RGreedy")
    worst = 0.0
    for seed in range(200):
        scores = [moved_scores(plan, seed, zeroed, torch.tensor([0]), 1000) for zeroed in (None, 0)]
        worst = max(worst, float(np.abs(scores[0] - scores[1]).max()))
    assert worst > plan.mechanism.score_sensitivity(plan.privacy) / 2


# --- what is picked, and what it costs ------------------------------------------------------------------


@pytest.mark.parametrize("greedy", GREEDY)
@pytest.mark.parametrize("linear_layer", [True, False])
@pytest.mark.parametrize("validation", ["public", "private"])
def test_exactly_k_distinct_indices_with_weight_one(greedy, linear_layer, validation):
    plan = plan_for(30, 10, greedy=greedy, r=3, linear_layer=linear_layer, validation=validation)
    pool = selecting_for(plan).select()
    assert len(pool) == len(set(pool.indices.tolist())) == 10
    assert set(pool.indices) <= set(range(30))
    assert pool.weights is None


def test_rgreedy_works_with_fewer_picks_than_rounds():
    """CORDS' RGreedy never ends there."""
    assert len(selecting_for(plan_for(30, 3, greedy="RGreedy", r=15)).select()) == 3


def test_without_noise_frozen_selection_is_the_exact_top_k():
    selecting = selecting_for(plan_for(30, 10, epsilon=float("inf")))
    pool = selecting.select()
    (v,) = selecting.selector.directions(selecting.releases())
    scores = selecting.selector.scores(v, np.arange(30))
    assert set(pool.indices) == set(np.argsort(-scores, kind="stable")[:10])


def test_selection_is_charged_to_d_and_v_before_anything_is_drawn(monkeypatch):
    plan = plan_for(30, 10, greedy="RGreedy", r=3, validation="private")
    selecting = selecting_for(plan)
    drawn = spy_on_noise(monkeypatch, selecting)
    monkeypatch.setattr(
        "cords_dp.selection.releases.ScoreFreeze",
        lambda *_, **__: pytest.fail("drawn before charged") if not selecting.ledger.events("D") else 1 / 0,
    )
    with pytest.raises(ZeroDivisionError):
        selecting.select()
    assert selecting.ledger.events(TRAINING_DATA) == [ExponentialPicks(plan.selection_noise, 10)]
    (release,) = selecting.ledger.events(VALIDATION_DATA)
    assert (release.rate, release.count) == (1.0, 3)
    assert len(drawn["V"]) == 1


def test_a_frozen_selection_is_charged_as_one_freeze_whatever_k_is():
    for k in (2, 20):
        plan = plan_for(30, k)
        assert [e.event for e in plan.selection_entries()] == [GumbelFreeze(plan.selection_noise, 1)]


def test_cords_strategy_is_the_private_selector_and_its_exact_steps_are_closed(train):
    from cords_dp.cords import GLISTERDataLoader, GLISTERStrategy
    from cords_dp.training.private_strategies import GLISTERDPStrategy

    trainer = train("GLISTERDP", dss_args={"mechanism": "top_k"})
    loader = trainer.session.source
    assert isinstance(loader, GLISTERDataLoader)
    assert isinstance(loader.strategy, GLISTERDPStrategy)
    assert isinstance(loader.strategy, GLISTERStrategy)
    with pytest.raises(MechanismError, match="pays for"):
        loader.strategy.select(trainer.plan.shape.k + 1, trainer.model.state_dict())
    for closed in (loader.strategy.compute_gradients, loader.strategy.greedy_algo, loader.__iter__, loader.resample):
        with pytest.raises(MechanismError):
            closed()


@pytest.mark.parametrize("greedy", GREEDY)
def test_validation_noise_is_drawn_as_often_as_it_is_charged(greedy, monkeypatch):
    plan = plan_for(30, 6, greedy=greedy, r=3, validation="private")
    selecting = selecting_for(plan)
    drawn = spy_on_noise(monkeypatch, selecting)
    selecting.select()
    (event,) = selecting.ledger.events(VALIDATION_DATA)
    assert drawn["V"] == [(event.sigma, 1.0)] * event.count


@pytest.mark.parametrize("greedy", GREEDY)
@pytest.mark.parametrize("validation", ["public", "private"])
def test_per_class_picks_follow_public_class_sizes(greedy, validation):
    """One release on V per freeze for all classes, and no more picks than were charged."""
    plan = plan_for(30, 9, labels_public=True, selection_type="PerClass", greedy=greedy, r=3, validation=validation)
    selecting = selecting_for(plan)
    pool = selecting.select()
    labels = selecting.selector.context.training.dataset.targets.numpy()
    counts = np.bincount(labels, minlength=3)
    assert np.bincount(labels[pool.indices], minlength=3).tolist() == class_quotas(counts, 9)


@given(counts=st.lists(st.integers(1, 50), min_size=1, max_size=6), share=st.floats(0.05, 1))
def test_quotas_add_up_and_fit(counts, share):
    counts = np.array(counts)
    k = max(1, int(share * counts.sum()))
    quotas = np.array(class_quotas(counts, k))
    assert quotas.sum() == k
    assert (quotas <= counts).all()


def test_the_private_validation_gradient_has_the_stated_noise():
    """Σ clip(g) + N(0, (σ_v C_v)²), measured before v is brought to norm C_v."""
    plan = plan_for(30, 10, validation="private", validation_clip=2.0)
    noise = selecting_for(plan).releases().gaussian("validation gradient", np.zeros((200, 600)))
    assert float(noise.std()) == pytest.approx(plan.sigma_validation * 2.0, rel=0.01)


@pytest.mark.parametrize("greedy", ["Frozen", "RGreedy"])
def test_of_many_records_few_are_shown_to_the_model(greedy, monkeypatch):
    """The scores are those of a look at all of D, and most of it is never looked at."""
    from cords_dp.selection import releases as module

    monkeypatch.setattr(module, "_MANY", 1)
    plan = plan_for(400, 20, greedy=greedy, r=4)
    selecting = selecting_for(plan)
    selector, seen = selecting.selector, []
    some = type(selector.context.training).some

    def noting(self, indices, weights, **keys):
        seen.append(indices)
        return some(self, indices, weights, **keys)

    monkeypatch.setattr(type(selector.context.training), "some", noting)
    pool = selector.select(selecting.weights, selecting.releases())
    assert selector.training is None
    assert len(np.unique(pool.indices)) == 20
    assert 20 <= len(np.unique(np.concatenate(seen))) < 200
    few = selector._gradients(seen[0])
    selector.describe(selecting.weights)
    assert selector.training is not None
    everyone = selector.training.gradients.rows(torch.from_numpy(seen[0]))
    torch.testing.assert_close(few.r, everyone.r)
    torch.testing.assert_close(few.a, everyone.a)
