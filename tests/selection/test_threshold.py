"""Selection that costs almost nothing: `threshold`, `top_k`, scores, and broken copies of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from builders import Selecting, data_of, make_plan, spy_on_noise
from hypothesis import given, settings
from hypothesis import strategies as st

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, gaussian
from cords_dp.accounting.events import merge
from cords_dp.errors import ConfigError, MechanismError
from cords_dp.selection.last_layer import LastLayerGradients
from cords_dp.selection.scores import ScoredRecords, get_score, register_score, score_records

# --- a strategy on small data ----------------------------------------------------------------------------------


def plan_for(mechanism="threshold", *, n=200, k=60, **changes):
    return make_plan(mechanism=mechanism, n=n, k=k, n_validation=50, epochs=2, batch_size=10, select_every=1, **changes)


def scored(selecting, weights=None):
    plan = selecting.plan
    return ScoredRecords(plan.mechanism, selecting.selector.context, weights or selecting.weights)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    record=st.integers(0, 39),
    selection_type=st.sampled_from(["Supervised", "PerClass"]),
    rounds=st.integers(1, 4),
    score=st.sampled_from(["glister", "el2n", "grad_norm"]),
)
def test_replay_with_released_values_frozen_changes_one_record_only(seed, record, selection_type, rounds, score):
    """Change one record: with (θ, v, τ) as released, every other record's membership is bit-identical."""
    plan = plan_for(n=40, k=20, greedy_rounds=rounds, score=score, selection_type=selection_type)
    one = data_of(40, seed)
    changed = data_of(40, seed)
    changed.store.x[record] = 100 * torch.randn(6, generator=torch.Generator().manual_seed(seed))
    changed.store.all_labels[record] = (changed.store.all_labels[record] + 1) % 3
    selecting = Selecting(plan, seed, train=one)
    selecting.select()
    first, second = selecting.selector, Selecting(plan, seed, train=changed).selector
    second.describe(selecting.weights)
    coins = np.zeros(40, dtype=bool)
    here, there = first.membership(first.released, coins), second.membership(first.released, coins)
    others = np.arange(40) != record
    assert np.array_equal(here[others], there[others])
    v = first.released[0][0]
    assert np.array_equal(first.scored.scores(v)[others], second.scored.scores(v)[others])


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), record=st.integers(0, 39))
def test_top_k_scores_change_in_one_coordinate_by_at_most_one(seed, record):
    plan = plan_for("top_k", n=40, k=20)
    selecting = Selecting(plan, seed)
    full, nulled = scored(selecting), scored(selecting)
    nulled.training.gradients.r[record] = 0.0  # the null record: no gradient, score 0
    v = full.direction(selecting.releases(), "validation gradient")
    moved = np.abs(full.scores(v) - nulled.scores(v))
    assert np.count_nonzero(moved) <= 1
    assert moved.max() <= 1.0


def test_mutants_exact_quantile_and_ranking_are_caught_by_the_replay():
    """A threshold from the exact scores, or top-k ranks, moves when one record does, and others change sides."""
    plan = plan_for(n=40, k=20)
    selecting = Selecting(plan, 3)
    records = scored(selecting)
    v = records.direction(selecting.releases(), "validation gradient")
    here, there = records.scores(v), records.scores(v)
    there[np.argmin(there)] = 1.0  # one record becomes the best
    others = np.arange(40) != int(np.argmin(here))
    exact = [s >= np.sort(s)[-20] for s in (here, there)]
    ranked = [np.isin(np.arange(40), np.argsort(-s)[:20]) for s in (here, there)]
    assert not np.array_equal(exact[0][others], exact[1][others])
    assert not np.array_equal(ranked[0][others], ranked[1][others])


@pytest.mark.parametrize("exploration", [0.0, 0.4])
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("mechanism", ["threshold", "top_k"])
def test_every_release_is_charged_once_and_before_it_is_drawn(monkeypatch, exploration, rounds, mechanism):
    """Mutants 'histogram uncharged', 'v by exact sums' and 'V uncharged' end here: releases = charges, all noisy."""
    keys = {"exploration": exploration, "greedy_rounds": rounds} if mechanism == "threshold" else {}
    plan = plan_for(mechanism, **keys)
    selecting = Selecting(plan)
    drawn = spy_on_noise(monkeypatch, selecting)
    selecting.select()
    (on_d,) = merge(selecting.ledger.events(TRAINING_DATA))
    (on_v,) = merge(selecting.ledger.events(VALIDATION_DATA))
    assert on_d == gaussian(plan.selection_noise, len(drawn["D"]))
    assert on_v == gaussian(plan.sigma_validation, len(drawn["V"]))
    assert {noise for noise, _ in drawn["D"]} == {plan.selection_noise}
    assert {noise for noise, _ in drawn["V"]} == {plan.sigma_validation}


@pytest.mark.parametrize(("n", "k", "share"), [(200, 60, 0.9), (20_000, 6_000, 0.3)])
def test_coins_draw_most_of_the_pool_where_scores_would_be_noise(n, k, share):
    for exploration, expected in ((0.3, share), (0.0, 0.0)):
        selecting = Selecting(plan_for(n=n, k=k, exploration=exploration))
        selecting.selector.describe(selecting.weights)
        assert selecting.selector.exploration(selecting.plan.selection_noise) == expected


@pytest.mark.parametrize(("exploration", "rounds", "count"), [(0.0, 1, 1), (0.5, 1, 2), (0.0, 3, 5), (0.5, 3, 6)])
def test_number_of_releases(exploration, rounds, count):
    plan = plan_for(exploration=exploration, greedy_rounds=rounds)
    assert sum(r.event.count for r in plan.releases() if r.dataset == TRAINING_DATA) == count


def test_sums_of_unit_gradients_have_sensitivity_one():
    records = scored(Selecting(plan_for()))
    records.training.gradients.r.mul_(1e6)
    for record in range(20):
        member = np.zeros(200, dtype=bool)
        member[record] = True
        assert float(records.unit_sum(member).norm()) <= 1 + 1e-6


def test_top_k_is_exactly_k_and_its_price_does_not_depend_on_k():
    small, large = plan_for("top_k", k=20), plan_for("top_k", k=120)
    assert small.selection_noise == large.selection_noise
    pool = Selecting(large).select()
    assert len(set(pool.indices.tolist())) == 120
    assert pool.weights is None


def test_without_noise_top_k_ranks_exactly():
    selecting = Selecting(plan_for("top_k", epsilon=float("inf")))
    pool, records = selecting.select(), scored(selecting)
    v = records.direction(selecting.releases(), "validation gradient")
    assert set(pool.indices) == set(np.argsort(-records.scores(v), kind="stable")[:60])


def test_noise_free_threshold_pool_is_near_k():
    plan = plan_for(epsilon=float("inf"), n=2000, k=600, exploration=0.0)
    assert len(Selecting(plan).select()) == pytest.approx(600, rel=0.15)


def test_selection_is_nearly_free():
    """The training noise rises by less than 5 % against RandomDP, at k = 0.1 of MNIST's size."""

    def plan(strategy):
        sizes = {"n": 54_000, "n_validation": 6_000, "epochs": 20, "batch_size": 1024}
        return make_plan(strategy, "threshold", fraction=0.1, select_every=5, **sizes)

    assert plan("RandomDP").sigma < plan("GLISTERDP").sigma < 1.05 * plan("RandomDP").sigma


# --- whole runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["threshold", "top_k"])
@pytest.mark.parametrize("score", ["glister", "el2n", "grad_norm"])
def test_runs_with_every_score(train, mechanism, score):
    trainer = train("GLISTERDP", dss_args={"mechanism": mechanism, "score": score})
    cost = trainer.spent()
    assert cost.epsilon <= 3.0
    assert (cost.validation_data is None) == (score != "glister")


def test_exponential_takes_other_scores_too(train):
    trainer = train("GLISTERDP", dss_args={"mechanism": "exponential", "score": "el2n"})
    assert trainer.spent().validation_data is None
    assert trainer.spent().epsilon <= 3.0


@pytest.mark.parametrize("size", [0, 5])
def test_steps_rate_and_normaliser_do_not_depend_on_the_pool_s_size(make_config, monkeypatch, size):
    """A pool forced to 0 or 5 members: the same steps, charges, loader length and normaliser as planned."""
    from cords_dp.selection.threshold import ThresholdSelector
    from cords_dp.training.trainer import TrainClassifier

    monkeypatch.setattr(ThresholdSelector, "membership", lambda self, released, coins: np.arange(len(coins)) < size)
    trainer = TrainClassifier(make_config("GLISTERDP", dss_args={"mechanism": "threshold"}))
    trainer.train()
    charged = [e for e in trainer.ledger.entries if e.phase == "training"]
    assert sum(e.event.count for e in charged) == trainer.plan.shape.steps
    assert {e.event.rate for e in charged} == {128 / trainer.plan.shape.k}
    assert len(trainer.session.source.current) == size


def test_a_checkpoint_holds_released_values_and_no_members(train, tmp_path):
    from cords_dp.training.checkpoint import load_checkpoint

    trainer = train(
        "GLISTERDP",
        dss_args={"mechanism": "threshold"},
        ckpt={"is_save": True, "save_every": 4},
        train_args={"num_epochs": 4},
    )
    (path,) = tmp_path.rglob("model.pt")
    state = load_checkpoint(path, "cpu")
    assert "subset" not in state
    assert set(state["selection"]) == {"weights", "directions", "thresholds"}
    assert all(t.numel() == 1 for t in state["selection"]["thresholds"])
    with pytest.raises(MechanismError, match="secret"):
        trainer.session.published_subset()


def test_the_pool_is_recomputed_when_a_run_resumes(make_config):
    from cords_dp.training.trainer import TrainClassifier

    changes = {"dss_args": {"mechanism": "threshold", "exploration": 0.0}, "ckpt": {"is_save": True, "save_every": 1}}
    first = TrainClassifier(make_config("GLISTERDP", **changes))
    pools = {}
    original = TrainClassifier._save

    def stop(self, path, epoch):
        original(self, path, epoch)
        pools["first"] = np.sort(self.session.source.current.indices)
        if epoch == 3:
            raise KeyboardInterrupt

    first._save = stop.__get__(first)
    with pytest.raises(KeyboardInterrupt):
        first.train()
    changes["ckpt"]["is_load"] = True
    second = TrainClassifier(make_config("GLISTERDP", **changes))
    second.train()
    assert np.array_equal(np.sort(second.session.source.current.indices), pools["first"])
    assert second.spent().epsilon <= 3.0


def test_seconds_are_coarse_where_the_pool_is_secret(train):
    trainer = train("GLISTERDP")
    assert all(float(t).is_integer() for t in trainer.history.column("time"))


@pytest.mark.parametrize(
    ("mechanism", "allowed"), [("top_k", True), ("exponential", True), ("threshold", False), ("match", False)]
)
def test_a_subset_is_published_only_on_request_and_where_it_was_paid_for(make_config, tmp_path, mechanism, allowed):
    import json

    from cords_dp.runs.run import run_experiment

    quiet = make_config("GLISTERDP", dss_args={"mechanism": mechanism})
    run_experiment(quiet, tmp_path / "quiet", progress=False)
    assert not (tmp_path / "quiet" / "subset.json").exists()
    asked = make_config("GLISTERDP", dss_args={"mechanism": mechanism, "publish_subset": True})
    if not allowed:
        with pytest.raises(ConfigError, match="secret state"):
            run_experiment(asked, tmp_path / "asked", progress=False)
        return
    run_experiment(asked, tmp_path / "asked", progress=False)
    assert len(json.loads((tmp_path / "asked" / "subset.json").read_text())["rows"]) == int(1294 * 0.3)


# --- scores -----------------------------------------------------------------------------------------------------------


def test_a_score_sees_one_record_and_code_that_looks_at_others_fails():
    gradients = LastLayerGradients(torch.randn(5, 3), torch.randn(5, 2))

    def of_record(r, a, v):
        assert r.dim() == 1
        return r.sum()

    score_records(register_score("test-sum", of_record), gradients, torch.zeros(3, 2))
    # comparing with the best of the batch is not possible: there is no batch
    peeking = register_score("test-peek", lambda r, a, v: (r[0] == r[:, 0].max()).float())
    with pytest.raises((IndexError, RuntimeError)):
        score_records(peeking, gradients, torch.zeros(3, 2))
    # branching on a value cannot be done for all records at once
    branching = register_score("test-branch", lambda r, a, v: r[0] if r[0] > 0 else r[1])
    with pytest.raises(RuntimeError):
        score_records(branching, gradients, torch.zeros(3, 2))


def test_scores_are_finite_and_bounded_whatever_the_function_returns():
    wild = register_score("test-wild", lambda r, a, v: r[0] / 0.0)
    gradients = LastLayerGradients(torch.tensor([[1.0], [-1.0], [0.0]]), torch.ones(3, 1))
    assert score_records(wild, gradients, torch.zeros(1, 1)).tolist() == [0.0, 0.0, 0.0]
    large = register_score("test-large", lambda r, a, v: 100 * r[0])
    assert score_records(large, gradients, torch.zeros(1, 1)).tolist() == [1.0, -1.0, 0.0]


def test_el2n_is_the_length_of_the_error():
    r = torch.tensor([[0.3, -0.5, 0.2]])
    got = score_records(get_score("el2n"), LastLayerGradients(r, torch.ones(1, 1)), torch.zeros(3, 1))
    assert float(got) == pytest.approx(float(r.norm()) / 2**0.5)


def test_an_unknown_score_is_named(make_config):
    from cords_dp.training.resolve import resolve

    with pytest.raises(ConfigError, match="known are"):
        resolve(make_config("GLISTERDP", dss_args={"score": "magic"}))
