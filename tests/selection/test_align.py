"""`align`: what it asks for, what it releases, the branch that it may choose, and what other records cannot move."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import Selecting, make_plan, spy_on_noise
from hypothesis import given, settings
from hypothesis import strategies as st

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, BranchMaximum, epsilon_bound, gaussian
from cords_dp.accounting.events import merge
from cords_dp.data.record_set import array_set
from cords_dp.errors import BudgetExceededError, ConfigError, MechanismError
from cords_dp.planning import price_of_selection
from cords_dp.selection.tables import best_branch, table_ratios
from cords_dp.training.resolve import resolve
from cords_dp.training.trainer import TrainClassifier


def plan_for(n=6000, k=600, **changes):
    changes = {"select_every": 2, "batch_size": min(100, k), **changes}
    return make_plan(mechanism="align", n=n, k=k, epochs=8, **changes)


def labelled(n, shares, seed, wrong=0.0):
    """Records whose true class decides where they lie; a share of the labels is moved to the next class."""
    rng = np.random.default_rng(seed)
    y = rng.choice(3, n, p=shares)
    x = (0.3 * rng.normal(size=(n, 6)) + 3 * np.eye(3, 6)[y]).astype(np.float32)
    return array_set(x, np.where(rng.random(n) < wrong, (y + 1) % 3, y)), y


class Knows(torch.nn.Module):
    """A released model that predicts the true class."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(6, 3)
        with torch.no_grad():
            self.head.weight.copy_(torch.eye(3, 6) * 5)
            self.head.bias.zero_()

    def forward(self, x, last=False, freeze=False):
        out = self.head(x)
        return (out, x) if last else out


EVEN, SKEWED = (1 / 3, 1 / 3, 1 / 3), (0.05, 0.25, 0.7)


def two_selections(plan, seed=0, shares=EVEN, wrong=0.0):
    train, truth = labelled(plan.shape.n, shares, seed, wrong)
    validation, _ = labelled(plan.shape.n_validation, EVEN, seed + 1)
    selecting = Selecting(plan, seed, train=train, validation=validation, model=Knows())
    return selecting, [selecting.select(), selecting.select()], train.targets.numpy(), truth


# --- what it is for ------------------------------------------------------------------------------------------


def test_where_nothing_differs_every_record_stays_and_the_draw_is_uniform():
    for seed in range(6):
        _, (_, look), _, _ = two_selections(plan_for(), seed)
        assert look.branch == 0
        assert look.chances.min() > 0.9


def test_with_many_classes_predictions_are_told_right_from_wrong(monkeypatch):
    """Where a table of all predictions would be mostly noise it has two columns, and still shows wrong labels."""
    monkeypatch.setattr("cords_dp.selection.align._RECORDS_PER_CELL", 1e9)
    selecting, (_, look), given, truth = two_selections(plan_for(), wrong=0.4)
    assert selecting.selector.state()["chances"].shape == (3, 2)
    assert look.chances[given == truth].mean() > 0.8
    assert look.chances[given != truth].mean() < 0.3


def test_wrong_labels_are_left_out_and_right_ones_stay():
    _, (labels, look), given, truth = two_selections(plan_for(), wrong=0.4)
    assert labels.chances.min() > 0.9  # labels alone show nothing
    assert look.chances[given == truth].mean() > 0.8
    assert look.chances[given != truth].mean() < 0.1


def test_records_of_a_cut_class_come_more_often():
    plan = plan_for()
    _, (_, look), given, _ = two_selections(plan, shares=SKEWED)
    means = [look.chances[given == c].mean() for c in range(3)]
    assert means[0] > 3 * means[2]
    assert plan.branches[look.branch].concentration > 1.5
    kept = look.chances.mean() * plan.branches[look.branch].concentration
    assert kept < 1.05  # never more gradients than were planned


def test_both_at_once_are_told_apart():
    _, (_, look), given, truth = two_selections(plan_for(), shares=SKEWED, wrong=0.3)
    assert look.chances[(given == truth) & (given == 0)].mean() > 0.8
    assert look.chances[given != truth].mean() < 0.35 * look.chances[given == truth].mean()


# --- what is released ------------------------------------------------------------------------------------------


def test_every_release_is_charged_once_and_before_it_is_drawn(monkeypatch):
    plan = plan_for()
    train, _ = labelled(plan.shape.n, SKEWED, 0)
    selecting = Selecting(plan, train=train, model=Knows(), validation=labelled(500, EVEN, 1)[0])
    drawn = spy_on_noise(monkeypatch, selecting)
    selecting.select()
    selecting.select()
    assert merge(selecting.ledger.events(TRAINING_DATA)) == (gaussian(plan.selection_noise, 2),)
    assert merge(selecting.ledger.events(VALIDATION_DATA)) == (gaussian(plan.sigma_validation, 2),)
    assert drawn == {"D": [(plan.selection_noise, 1.0)] * 2, "V": [(plan.sigma_validation, 1.0)] * 2}


@settings(max_examples=25)
@given(record=st.integers(0, 59), value=st.sampled_from([0.0, 50.0, math.nan, math.inf]), label=st.integers(0, 2))
def test_one_record_moves_one_cell_and_no_other_record(record, value, label):
    plan = plan_for(n=60, k=30, epsilon=float("inf"))
    one, _ = labelled(60, SKEWED, 3)
    changed, _ = labelled(60, SKEWED, 3)
    changed.store.x[record], changed.store.all_labels[record] = value, label
    selectors = [Selecting(plan, train=data, model=Knows()).selector for data in (one, changed)]
    weights = Knows().state_dict()
    for groups in (1, 2, 3):
        kinds = [s._cells(*s.context.training.kinds(weights, 3), groups) for s in selectors]
        others = np.arange(60) != record
        assert np.array_equal(kinds[0][others], kinds[1][others])
        tables = [s.context.training.count(k, 3, groups) for s, k in zip(selectors, kinds, strict=True)]
        rest = selectors[0].context.training.among(np.flatnonzero(others))
        without = rest.count(kinds[0][others], 3, groups)  # the null record has no cell
        for table in tables:
            assert np.linalg.norm(table - without) <= 1.0
        if not math.isfinite(value):
            assert kinds[1][record] == -1


def test_mutant_exact_scale_is_caught():
    """A κ from exact counts would move every chance when one record moves; from equal tables nothing moves."""
    table, other = np.array([[50.0, 10.0], [5.0, 35.0]]), np.array([[50.0, 11.0], [5.0, 35.0]])
    ratio = np.array([0.5, 2.0, 1.0, 1.0])
    released = [best_branch((t / t.sum()).ravel(), ratio, [(1.5, 1.2)])[1] for t in (table, other)]
    assert not np.array_equal(*released)


# --- branches ----------------------------------------------------------------------------------------------------


def test_the_plan_pays_for_the_worst_branch_at_every_epsilon():
    plan = plan_for(accountant="pld")
    total = plan.cost().training_data.epsilon
    assert 0.99 * 3.0 <= total <= 3.0
    event, on_v = (e.event for e in plan.entries() if isinstance(e.event, BranchMaximum))
    assert [b[0].sigma for b in on_v.branches] == [b[0].sigma for b in event.branches]
    rest = [e.event for e in plan.entries() if e.dataset == TRAINING_DATA and e.event != event]
    for branch in event.branches:
        assert epsilon_bound([*rest, *branch], plan.delta, "pld").epsilon <= total + 1e-6
    rates = [b.rate for b in plan.branches]
    assert rates == sorted(rates)
    assert rates[0] == 100 / 6000
    assert plan.branches[0].sigma == pytest.approx(plan.sigma)


def test_the_price_where_nothing_differs_is_small():
    plan = make_plan(mechanism="align", n=54_000, n_validation=6_000, fraction=0.1, batch_size=2700, epochs=20,
                     select_every=3, accountant="pld")  # fmt: skip
    assert 0 < price_of_selection(plan) < 0.03


def test_looks_follow_cords_schedule():
    epochs = plan_for().shape.epochs
    assert [e.selects for e in epochs] == [True, False, True, False, True, False, True, False]
    assert [e.branched for e in epochs] == [False, False] + [True] * 6
    assert sum(e.selects for e in plan_for(looks=1).shape.epochs) == 2
    assert not any(e.branched for e in plan_for(select_every=20).shape.epochs)


def test_the_branch_is_chosen_once():
    plan = plan_for()
    selecting, (_, look), _, _ = two_selections(plan, shares=SKEWED)
    assert selecting.select().branch == look.branch > 0


def small(make_config, **changes):
    return make_config(
        "GLISTERDP", dss_args={"mechanism": "align", "select_every": 1}, train_args={"num_epochs": 4}, **changes
    )


def test_all_branched_steps_are_charged_when_the_first_begins(make_config):
    trainer = TrainClassifier(small(make_config))
    trainer.train()
    charged = trainer.ledger.events(TRAINING_DATA, "training")
    assert charged.count(trainer.plan.branch_event()) == 1
    assert trainer.ledger.begun == trainer.plan.shape.branched_steps
    assert trainer.spent().epsilon <= 3.0


def test_another_branch_in_mid_run_is_refused(make_config, monkeypatch):
    from cords_dp.selection.align import AlignSelector

    real, calls = AlignSelector._pool, []

    def wavering(self, *seen):
        calls.append(1)
        return replace(real(self, *seen), branch=len(calls) % 2)

    monkeypatch.setattr(AlignSelector, "_pool", wavering)
    with pytest.raises(MechanismError, match="stay in the branch"):
        TrainClassifier(small(make_config)).train()


def test_steps_repeated_after_an_interruption_count_again(make_config):
    """A resumed run takes no more branched steps than were charged together; it ends with fewer epochs instead."""
    saving = {"is_save": True, "save_every": 1}
    first = TrainClassifier(small(make_config, ckpt=saving))
    step, count = TrainClassifier._after_step, []

    def stop(self, bar):
        count.append(1)
        step(self, bar)
        if len(count) == 3 * first.plan.shape.epochs[0].steps:
            raise KeyboardInterrupt

    first._after_step = stop.__get__(first)
    with pytest.raises(KeyboardInterrupt):
        first.train()
    second = TrainClassifier(small(make_config, ckpt={**saving, "is_load": True}))
    second.train()
    assert second.ledger.begun <= second.plan.shape.branched_steps
    assert second.spent().epsilon <= 3.0
    with pytest.raises(BudgetExceededError):
        second.ledger.begin_steps(1, second.ledger.begun)


@pytest.mark.parametrize("epsilon", [1.0, math.inf])
def test_it_trains_at_any_budget(train, epsilon):
    trainer = train("GLISTERDP", dss_args={"mechanism": "align", "select_every": 1}, privacy={"epsilon": epsilon},
                    optimizer={"lr": 0.2})  # fmt: skip
    assert trainer.history.last("tst_acc") > 0.1


def test_it_is_the_default_and_says_what_it_cannot_do(make_config):
    assert resolve(make_config("GLISTERDP"), plan=False).mechanism.name == "align"
    for changes in ({"score": "el2n"}, {"selection_type": "PerClass"}):
        with pytest.raises(ConfigError, match="threshold"):
            resolve(make_config("GLISTERDP", dss_args={"mechanism": "align", **changes}))
    with pytest.raises(ConfigError, match="joint"):
        resolve(make_config("GLISTERDP", dss_args={"mechanism": "align"}, privacy={"composition": "basic"}))


@pytest.mark.parametrize(
    ("classes_of", "spread", "concentration", "explains"),
    [
        (np.eye(4), False, 4.5, True),
        (0.6 * np.eye(4) + 0.4 * np.roll(np.eye(4), 1, axis=1), False, 4.5, True),
        (0.6 * np.eye(4) + 0.1 * np.ones((4, 4)), True, 1.25, False),  # spread over all classes
        (0.3 * np.eye(4) + 0.7 * np.roll(np.eye(4), 1, axis=1), False, 4.5, False),  # mostly wrong, and the draw tells
        (0.3 * np.eye(4) + 0.7 * np.roll(np.eye(4), 1, axis=1), False, 1.5, True),
    ],
)
def test_the_likelihood_is_used_where_it_teaches_more_than_the_draw(classes_of, spread, concentration, explains):
    from cords_dp.selection.align import _explains

    assert _explains(classes_of, spread, concentration) == explains


# --- post-processing ------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), classes=st.integers(2, 6), groups=st.integers(1, 6), scale=st.floats(0, 2000),
       sigma=st.floats(0, 50))  # fmt: skip
def test_ratios_and_chances_are_finite_whatever_the_tables_hold(seed, classes, groups, scale, sigma):
    rng = np.random.default_rng(seed)
    on_d, on_v = (scale * rng.random((classes, groups)) + sigma * rng.normal(size=(classes, groups)) for _ in range(2))
    shares, ratio = table_ratios(on_d, on_v, sigma, sigma)
    assert np.isfinite(ratio).all()
    assert (ratio >= 0).all()
    flat = (shares / max(shares.sum(), 1e-9)).ravel()
    branch, chances = best_branch(flat, ratio.ravel(), [(1.0, 1.0), (2.0, 1.4), (4.0, 2.1)])
    assert branch in (0, 1, 2)
    assert ((chances >= 0) & (chances <= 1)).all()


def test_equal_tables_have_ratio_one_and_choose_the_uniform_draw():
    table = np.full((3, 3), 400.0)
    _, ratio = table_ratios(table, table / 10, 20.0, 3.0)
    assert np.array_equal(ratio, np.ones((3, 3)))
    branch, chances = best_branch(np.full(9, 1 / 9), np.ones(9), [(1.0, 1.0), (1.5, 1.15), (3.0, 1.8)])
    assert branch == 0
    assert chances == pytest.approx(1.0)


def test_shares_that_differ_by_chance_alone_have_ratio_one_mostly():
    """In nine of ten worlds, by the deviation of the sum of ten squares; without it in two of three."""
    rng, ones = np.random.default_rng(0), 0
    for _ in range(400):
        on_d = rng.multinomial(45_000, np.full(10, 0.1)) + 20 * rng.normal(size=10)
        on_v = rng.multinomial(5_000, np.full(10, 0.1)) + 10 * rng.normal(size=10)
        ones += np.allclose(table_ratios(on_d[None], on_v[None], 20.0, 10.0)[1], 1.0, rtol=0, atol=1e-12)
    assert 0.85 < ones / 400 < 0.95
