"""The rivals that count labels: what they hand over, and that no record exceeds what is charged for it."""

from __future__ import annotations

import numpy as np
import pytest
from builders import make_plan

from cords_dp.accounting import TRAINING_DATA, BranchMaximum, PoissonGaussian
from cords_dp.errors import MechanismError
from cords_dp.selection import Pool, checked_pool
from cords_dp.selection.pool import drawn_by_level
from cords_dp.studies.labels import BalancedSoftmax, ClassWeights, GroupRates, group_concentrations

SHARES, RATIO = np.array([0.6, 0.3, 0.1]), np.array([0.5, 1.0, 4.0])


class Context:
    """Only what the pools of labels ask for."""

    def __init__(self, plan):
        self.plan = plan


def group_plan():
    return make_plan(mechanism="group_rates", n=400, k=100, n_validation=50, batch_size=20, epochs=2)


def test_a_rare_class_weighs_most():
    labels = np.array([0, 1, 2, -1])
    pool = ClassWeights(power=1.0)._pool(labels, SHARES, RATIO, Context(None))
    np.testing.assert_allclose(pool.weights, [0.125, 0.25, 1.0, 0.0])
    assert pool.chances is None


def test_class_shares_go_into_the_loss_of_every_record():
    labels = np.array([0, 1, 2, -1])
    pool = BalancedSoftmax()._pool(labels, SHARES, RATIO, Context(None))
    assert pool.weights is None
    assert pool.chances is None
    np.testing.assert_allclose(np.diag(pool.likelihood.given), 1 / RATIO)
    np.testing.assert_allclose(pool.likelihood.drawn, (1 / RATIO)[:, None].repeat(3, axis=1), rtol=1e-9)


@pytest.mark.parametrize("highest", [1.0, 1.5, 4.5])
def test_concentrations_fill_a_batch_and_stay_below_the_highest(highest):
    wanted = group_concentrations(SHARES, RATIO, highest)
    assert (wanted <= highest).all()
    assert float((SHARES * wanted).sum()) == pytest.approx(1.0, abs=1e-6)
    assert (np.diff(wanted) >= 0).all()


def test_every_record_is_drawn_and_weighted_as_its_branch_allows():
    """Exactly: probability at most q_c, and part over noise at most C/σ_c."""
    plan, labels = group_plan(), np.array([0, 1, 2, -1, 2])
    pool = checked_pool(GroupRates()._pool(labels, SHARES, RATIO, Context(plan)), 5, plan.branch_count)
    rates, sigmas = np.array([b.rate for b in plan.branches]), np.array([b.sigma for b in plan.branches])
    drawn = drawn_by_level(pool, rates, sigmas)
    assert (rates.max() * drawn.chances <= rates[pool.levels] * (1 + 1e-12)).all()
    assert (drawn.weights / sigmas.min() <= (1 + 1e-12) / sigmas[pool.levels]).all()
    assert drawn.chances[3] == 0
    assert pool.levels[2] > pool.levels[0]


def test_all_branches_are_charged_as_one_maximum():
    plan = group_plan()
    event, _ = (e.event for e in plan.entries() if isinstance(e.event, BranchMaximum))  # of D and of V
    assert plan.shape.branched_steps == plan.shape.steps
    assert {(PoissonGaussian(b.sigma, b.rate, plan.shape.steps),) for b in plan.branches} <= set(event.branches)
    assert plan.cost().training_data.epsilon <= plan.privacy.epsilon


def test_levels_that_the_plan_does_not_have_are_refused():
    plan = group_plan()
    for levels in ([0, plan.branch_count], [-1, 0]):
        with pytest.raises(MechanismError, match="levels"):
            checked_pool(Pool(np.arange(2), levels=np.array(levels)), 5, plan.branch_count)
    with pytest.raises(MechanismError, match="levels"):
        Pool(np.arange(2), levels=np.array([0.5, 1.0]))
    with pytest.raises(MechanismError, match="levels"):
        checked_pool(Pool(np.arange(2), levels=np.array([0, 0])), 5)  # a plan without branches


@pytest.mark.parametrize("strategy", ["ClassWeightsDP", "BalancedSoftmaxDP", "GroupRatesDP"])
def test_a_run_is_charged_as_planned_and_resumes(make_config, strategy):
    from cords_dp.training.trainer import TrainClassifier

    keys = {"train_args": {"num_epochs": 2}, "ckpt": {"is_save": True, "save_every": 1}}
    trainer = TrainClassifier(make_config(strategy, **keys))
    trainer.train()
    planned = [e.event for e in trainer.plan.entries() if e.dataset == TRAINING_DATA]
    assert sum(e.count for e in trainer.ledger.events(TRAINING_DATA)) == sum(e.count for e in planned)
    assert trainer.spent().epsilon <= trainer.plan.privacy.epsilon * (1 + 1e-6)
    keys["ckpt"]["is_load"] = True
    again = TrainClassifier(make_config(strategy, **keys))
    again.train()
    assert again.spent().epsilon == pytest.approx(trainer.spent().epsilon)


def test_a_record_does_not_change_its_branch(make_config, monkeypatch):
    """Levels that change between epochs would mix branches: no maximum over branches covers that."""
    from cords_dp.training.private_strategies import GLISTERDPPools
    from cords_dp.training.trainer import TrainClassifier

    real = GLISTERDPPools.pool

    def changing(self, epoch):
        pool = real(self, epoch)
        return Pool(pool.indices, chances=pool.chances, levels=(pool.levels + epoch - 1) % 2)

    monkeypatch.setattr(GLISTERDPPools, "pool", changing)
    with pytest.raises(MechanismError, match="first branch"):
        TrainClassifier(make_config("GroupRatesDP", train_args={"num_epochs": 2})).train()
