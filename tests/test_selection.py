"""GLISTER-DP: scores, their sensitivity, exact privacy ratios of the real strategy, and its charges."""

from __future__ import annotations

import itertools
import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import max_log_ratio
from torch import nn
from torch.utils.data import DataLoader

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, ExponentialPicks, GumbelFreeze, Ledger
from cords_dp.config import PrivacySettings, SelectionSettings
from cords_dp.datasets import ArrayDataset
from cords_dp.errors import MechanismError
from cords_dp.mechanisms import pick_probabilities
from cords_dp.planner import build_plan
from cords_dp.selection import GLISTERDPStrategy
from cords_dp.selection.glister import _quotas, _to_norm
from cords_dp.selection.last_layer import LastLayerGradients, last_layer_gradients

CE = nn.CrossEntropyLoss(reduction="none")
GREEDY = ("Frozen", "RGreedy", "Stochastic", "Naive")


class Net(nn.Module):
    """CORDS' contract in its smallest form."""

    def __init__(self, dim=5, classes=3):
        super().__init__()
        self.body, self.head, self.dim = nn.Linear(dim, 4), nn.Linear(4, classes), 4

    def forward(self, x, last=False, freeze=False):
        embedding = torch.tanh(self.body(x))
        out = self.head(embedding)
        return (out, embedding) if last else out

    def get_embedding_dim(self):
        return self.dim


def data_of(n, seed, classes=3, dim=5):
    rng = np.random.default_rng(seed)
    return ArrayDataset(rng.normal(size=(n, dim)).astype(np.float32), rng.integers(0, classes, n))


def plan_for(n, k, *, greedy="Frozen", validation="public", r=2, epsilon=3.0, linear_layer=True, **privacy):
    return build_plan(
        "GLISTERDP",
        PrivacySettings(epsilon=epsilon, delta=1e-5, validation=validation, accountant="rdp", **privacy),
        SelectionSettings(
            fraction=k / n + 1e-9,
            select_every=1,
            mechanism="exponential",
            greedy=greedy,
            r=r,
            linear_layer=linear_layer,
        ),
        epochs=2,
        batch_size=1,
        n=n,
        n_validation=20,
        whole=False,
        selects=True,
    )


def strategy_for(plan, *, seed=0, model=None, train=None, validation=None, selection_type="Supervised", eta=0.1):
    torch.manual_seed(seed)
    train = train or data_of(plan.shape.n, seed)
    validation = validation or data_of(20, seed + 1)
    return GLISTERDPStrategy(
        DataLoader(train, batch_size=8),
        DataLoader(validation, batch_size=8),
        model or Net(),
        CE,
        eta,
        "cpu",
        3,
        plan.selection.linear_layer,
        selection_type,
        plan.selection.greedy,
        logging.getLogger("test"),
        r=plan.selection.r,
        plan=plan,
        ledger=Ledger(allowance=plan.entries()),
        rng=np.random.default_rng(seed),
        validation_rng=np.random.default_rng(seed + 1),
    )


# --- last-layer gradients ---------------------------------------------------------------------------


@pytest.mark.parametrize("linear_layer", [True, False])
def test_scores_and_sums_equal_those_of_explicit_gradients(linear_layer):
    """The factored form against torch's own gradients of the last layer, record by record."""
    torch.manual_seed(0)
    model, data = Net(), data_of(12, 0)
    gradients, _, _ = last_layer_gradients(model, CE, data, linear_layer=linear_layer, device="cpu")
    explicit = []
    for i in range(12):
        x, y = data.batch([i])
        weight, bias = torch.autograd.grad(CE(model(x), y).sum(), [model.head.weight, model.head.bias])
        explicit.append(torch.cat([bias[:, None], weight], dim=1) if linear_layer else bias[:, None])
    matrix = torch.stack(explicit)
    clipped = matrix * (0.3 / matrix.flatten(1).norm(dim=1)).clamp(max=1.0)[:, None, None]
    v = torch.randn(matrix.shape[1:])
    torch.testing.assert_close(gradients.scores(v, 0.3), (clipped * v).sum(dim=(1, 2)), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(gradients.clipped_sum(0.3), clipped.sum(dim=0), rtol=1e-4, atol=1e-6)


def test_the_scores_agree_with_cords_when_nothing_is_clipped():
    """Same records, same model: our scores are CORDS' gains up to the public scale of v."""
    from cords_dp.toolkit import GLISTERStrategy

    plan = plan_for(12, 4, selection_clip=1e6, validation_clip=1e6)
    ours = strategy_for(plan)
    theirs = GLISTERStrategy(
        ours.trainloader, ours.valloader, ours.model, CE, 0.1, "cpu", 3, True, "Supervised", "RGreedy",
        logging.getLogger("test"), r=2,
    )  # fmt: skip
    ours.model.eval()
    ours.compute_gradients()
    ours._update_grads_val(first_init=True)
    theirs.compute_gradients()
    theirs._update_grads_val(first_init=True)
    gains = theirs.eval_taylor_modular(theirs.grads_per_elem).view(-1).double().numpy()
    scores = ours.eval_taylor_modular(ours._gradients)
    np.testing.assert_allclose(scores / np.abs(scores).max(), gains / np.abs(gains).max(), rtol=1e-3, atol=1e-5)


numbers = st.one_of(st.floats(-5, 5, width=32), st.sampled_from([float("nan"), float("inf"), -1e30, 1e30, 0.0]))


@settings(max_examples=200)
@given(data=st.data(), n=st.integers(1, 6), clip=st.floats(0.1, 10))
def test_scores_never_exceed_their_bound(data, n, clip):
    """|u_j| ≤ C_e·C_v for any gradients, NaN and huge norms included."""
    rows = st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=n, max_size=n)
    r = torch.tensor(data.draw(rows), dtype=torch.float32)
    a = torch.tensor(data.draw(rows), dtype=torch.float32)
    v = _to_norm(torch.tensor(data.draw(rows)[0] * 3, dtype=torch.float32).reshape(3, 3), 2.0)
    scores = LastLayerGradients(r, a).scores(v, clip)
    assert torch.isfinite(scores).all()
    assert float(scores.abs().max()) <= clip * 2.0 * (1 + 1e-5)


# --- sensitivity and exact privacy of the real strategy ------------------------------------------------


def zero_out(gradients, record):
    r = gradients.r.clone()
    r[record] = 0.0
    return LastLayerGradients(r, gradients.a)


def prepared(plan, seed, record=None, clip_scale=1.0):
    """A strategy with its gradients computed, one record zeroed if asked for."""
    strategy = strategy_for(plan, seed=seed, eta=0.5)
    strategy.model.eval()
    strategy.compute_gradients()
    strategy._gradients = LastLayerGradients(strategy._gradients.r * clip_scale, strategy._gradients.a)
    if record is not None:
        strategy._gradients = zero_out(strategy._gradients, record)
    strategy._update_grads_val(first_init=True)
    return strategy


class FollowHistory(Exception):
    """Raised when a forced history cannot be followed."""


def law_of(plan, seed, k, record=None, sensitivity=None):
    """Exact law of the k picks of the real strategy, by forcing every history through its own code."""
    law = {}
    sensitivity = sensitivity or plan.score_sensitivity
    for outcome in itertools.permutations(range(plan.shape.n), k):
        strategy = prepared(plan, seed, record, clip_scale=50.0)
        position, probability = 0, 1.0
        remaining = list(range(plan.shape.n))

        def forced(scores, size, outcome=outcome):
            nonlocal position, probability, remaining
            chosen, left = [], list(range(len(scores)))
            for index in outcome[position : position + size]:
                local = remaining.index(index)
                pmf = pick_probabilities(scores[left], epsilon0=plan.epsilon0, sensitivity=sensitivity)
                probability *= pmf[left.index(local)]
                left.remove(local)
                chosen.append(local)
            remaining = [r for r in remaining if r not in outcome[: position + size]]
            position += size
            return np.array(chosen)

        strategy._draw = forced
        strategy._pick(np.arange(plan.shape.n), k)
        law[outcome] = probability
    return law


@pytest.mark.parametrize("greedy", ["Frozen", "RGreedy", "Naive"])
@pytest.mark.parametrize("seed", [0, 1])
def test_exact_privacy_ratio_of_the_strategy_over_zero_out_pairs(greedy, seed):
    """All records of a tiny dataset zeroed in turn: |log ratio| ≤ k·ε₀ (k·ε₀/2 when v is frozen)."""
    n, k = 4, 3
    plan = plan_for(n, k, greedy=greedy, r=3, epsilon=8.0)
    base = law_of(plan, seed, k)
    assert sum(base.values()) == pytest.approx(1.0)
    limit = k * plan.epsilon0 / (2 if greedy == "Frozen" else 1)
    for record in range(n):
        assert max_log_ratio(base, law_of(plan, seed, k, record)) <= limit + 1e-9


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), record=st.integers(0, 7), greedy=st.sampled_from(["Frozen", "RGreedy"]))
def test_score_sensitivity_over_zero_out_pairs(seed, record, greedy):
    """Frozen: one score moves, by ≤ Δ. Updated: all may move, by ≤ Δ, also when the record was picked."""
    plan = plan_for(8, 4, greedy=greedy)
    picked = torch.tensor([record, (record + 1) % 8])
    scores = []
    for zeroed in (None, record):
        strategy = prepared(plan, seed, zeroed, clip_scale=20.0)
        if greedy != "Frozen":
            strategy._update_grads_val(strategy._gradients.rows(picked).clipped_sum(1.0) * 20)
        scores.append(strategy.eval_taylor_modular(strategy._gradients))
    moved = np.abs(scores[0] - scores[1])
    assert moved.max() <= plan.score_sensitivity + 1e-12
    if greedy == "Frozen":
        assert np.count_nonzero(moved) <= 1
        assert np.abs(scores[0]).max() <= plan.score_sensitivity + 1e-12


def test_mutant_frozen_sensitivity_used_with_an_updated_gradient_is_caught():
    """With v moving, some pair moves a score by more than C_e·C_v, so Δ = C_e·C_v would be wrong."""
    plan = plan_for(8, 4, greedy="RGreedy")
    worst = 0.0
    for seed in range(200):
        direction = []
        for zeroed in (None, 0):
            strategy = prepared(plan, seed, zeroed, clip_scale=20.0)
            strategy._update_grads_val(strategy._gradients.rows(torch.tensor([0])).clipped_sum(1.0) * 1000)
            direction.append(strategy.eval_taylor_modular(strategy._gradients))
        worst = max(worst, float(np.abs(direction[0] - direction[1]).max()))
    assert worst > plan.score_sensitivity / 2


# --- the strategy as CORDS sees it ---------------------------------------------------------------------


@pytest.mark.parametrize("greedy", GREEDY)
@pytest.mark.parametrize("linear_layer", [True, False])
@pytest.mark.parametrize("validation", ["public", "private"])
def test_exactly_k_distinct_indices_with_weight_one(greedy, linear_layer, validation):
    plan = plan_for(30, 10, greedy=greedy, r=3, linear_layer=linear_layer, validation=validation)
    strategy = strategy_for(plan)
    indices, weights = strategy.select(10, strategy.model.state_dict())
    assert len(indices) == len(set(indices)) == 10
    assert set(indices) <= set(range(30))
    assert weights.tolist() == [1.0] * 10


def test_rgreedy_works_with_fewer_picks_than_rounds():
    """CORDS' RGreedy never ends there."""
    plan = plan_for(30, 3, greedy="RGreedy", r=15)
    strategy = strategy_for(plan)
    assert len(strategy.select(3, strategy.model.state_dict())[0]) == 3


def test_without_noise_frozen_selection_is_the_exact_top_k():
    plan = plan_for(30, 10, epsilon=float("inf"))
    strategy = strategy_for(plan)
    indices, _ = strategy.select(10, strategy.model.state_dict())
    scores = strategy.eval_taylor_modular(strategy._gradients)
    assert set(indices) == set(np.argsort(-scores, kind="stable")[:10])


def test_selection_is_charged_to_d_and_v_before_anything_is_drawn():
    plan = plan_for(30, 10, greedy="RGreedy", r=3, validation="private")
    strategy = strategy_for(plan)
    strategy.compute_gradients = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        strategy.select(10, strategy.model.state_dict())
    assert strategy.ledger.events(TRAINING_DATA) == [ExponentialPicks(plan.epsilon0, 10)]
    (release,) = strategy.ledger.events(VALIDATION_DATA)
    assert (release.rate, release.count) == (1.0, 3)


def test_a_frozen_round_is_charged_as_one_freeze_whatever_k_is():
    for k in (2, 20):
        plan = plan_for(30, k)
        assert plan.selection_event() == GumbelFreeze(plan.epsilon0, 1)


def test_a_budget_that_the_plan_does_not_pay_for_is_refused():
    strategy = strategy_for(plan_for(30, 10))
    with pytest.raises(MechanismError, match="pays for 10"):
        strategy.select(11, strategy.model.state_dict())


@pytest.mark.parametrize("greedy", GREEDY)
def test_validation_noise_is_drawn_as_often_as_it_is_charged(greedy, monkeypatch):
    plan = plan_for(30, 6, greedy=greedy, r=3, validation="private")
    strategy = strategy_for(plan)
    calls = []
    release = "cords_dp.selection.glister.gaussian_release"
    monkeypatch.setattr(release, lambda total, **kw: calls.append(kw) or total)
    strategy.select(6, strategy.model.state_dict())
    (event,) = strategy.ledger.events(VALIDATION_DATA)
    assert len(calls) == event.count
    assert all(c["noise_multiplier"] == event.sigma and c["sensitivity"] == 1.0 for c in calls)


def test_per_class_picks_follow_public_class_sizes():
    plan = plan_for(30, 9, labels_public=True)
    strategy = strategy_for(plan, selection_type="PerClass")
    indices, _ = strategy.select(9, strategy.model.state_dict())
    labels = strategy.trainloader.dataset.targets.numpy()
    counts = np.bincount(labels, minlength=3)
    assert np.bincount(labels[indices], minlength=3).tolist() == _quotas(counts, 9)


@given(counts=st.lists(st.integers(1, 50), min_size=1, max_size=6), share=st.floats(0.05, 1))
def test_quotas_add_up_and_fit(counts, share):
    counts = np.array(counts)
    budget = max(1, int(share * counts.sum()))
    quotas = np.array(_quotas(counts, budget))
    assert quotas.sum() == budget
    assert (quotas <= counts).all()


def test_the_private_validation_gradient_has_the_stated_noise():
    """Σ clip(g)/|V| + N(0, (σ_v C_v/|V|)²): measured before v is brought to norm C_v."""
    plan = plan_for(30, 10, validation="private", validation_clip=2.0)
    strategy = strategy_for(plan)
    total = torch.zeros(200, 600)
    noise = strategy._noisy_mean(total)
    assert float(noise.std()) == pytest.approx(plan.sigma_validation * 2.0 / 20, rel=0.01)
