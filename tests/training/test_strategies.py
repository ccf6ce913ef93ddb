"""Strategies: names that are taken stay taken, names that promise privacy keep it, and nobody hands over batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cords_dp import Pool, register_model, register_score
from cords_dp.errors import ConfigError, MechanismError
from cords_dp.training.resolve import resolve
from cords_dp.training.strategies import get_strategy, register_strategy, unregister_strategy
from cords_dp.training.trainer import TrainClassifier


@pytest.fixture
def register():
    names = []

    def add(name, build, **options):
        names.append(name)
        return register_strategy(name, build, **options)

    yield add
    for name in names:
        unregister_strategy(name)


def everything(context):
    return Pool.everything(context.plan.shape.n)


@pytest.mark.parametrize("name", ["FullDP", "full-dp", "RANDOM_DP", "GLISTERDP", "Full", "GLISTER"])
def test_a_name_that_is_taken_is_refused(name):
    before = get_strategy(name)
    with pytest.raises(MechanismError, match="force=True"):
        register_strategy(name, everything, private=True)
    assert get_strategy(name) is before


@pytest.mark.parametrize("name", ["FullDP", "Full-DP", "MineDP", "Mine-dp"])
@pytest.mark.parametrize("force", [False, True])
def test_a_private_name_is_never_given_to_a_strategy_that_is_not(name, force):
    with pytest.raises(MechanismError):
        register_strategy(name, everything, force=force)


def test_a_private_strategy_stays_private(register):
    register("Discreet", everything, private=True, uses_all=True)
    with pytest.raises(MechanismError, match="promises privacy"):
        register_strategy("Discreet", everything, force=True)


def loader_of_batches(context):
    return torch.utils.data.DataLoader(context.trainset, batch_size=8)


def generator_of_batches(context):
    return (batch for batch in loader_of_batches(context))


@pytest.mark.parametrize("build", [loader_of_batches, generator_of_batches, lambda c: list(range(10)), lambda c: None])
def test_whoever_yields_batches_is_shown_the_new_form(register, make_config, build, tmp_path):
    """Found in review: a loader that yielded twice took 44 steps for 22 charged."""
    register("YieldsDP", build, private=True, uses_all=True)
    with pytest.raises(MechanismError, match=r"hands over a cords_dp.Pool.*register_strategy\(name, build"):
        TrainClassifier(make_config("YieldsDP", ckpt={"is_save": True, "save_every": 1})).train()
    assert not list(tmp_path.rglob("model.pt"))


class Busy:
    """Tries to take more: it is an iterator, has a length and a rate of its own, and changes its mind."""

    rate, steps = 1.0, 1000

    def __init__(self, context):
        self.n, self.asked = context.plan.shape.n, []

    def pool(self, epoch):
        self.asked.append(epoch)
        return Pool.everything(self.n)

    def __iter__(self):
        raise AssertionError("the trainer drew batches from the strategy")

    def __len__(self):
        raise AssertionError("the trainer asked the strategy for the number of steps")


def test_steps_and_rate_are_the_plan_s_whatever_the_strategy_has(register, make_config, monkeypatch):
    from cords_dp.training import engine as stepping

    steps = []

    class Counting(stepping.PrivateEngine):
        def step(self, x, y, weights):
            steps.append(len(y))
            super().step(x, y, weights)

    monkeypatch.setattr(stepping, "PrivateEngine", Counting)
    register("BusyDP", Busy, private=True, uses_all=True)
    trainer = TrainClassifier(make_config("BusyDP", dss_args={"fraction": 1.0}))
    trainer.train()
    shape = trainer.plan.shape
    assert len(steps) == shape.steps == sum(e.count for e in trainer.ledger.events("D"))
    assert np.mean(steps) == pytest.approx(shape.batch_size, rel=0.15)
    assert trainer.session.source.asked == [1, 2, 3, 4]  # one clock: the trainer's


def test_v_is_split_off_unless_everybody_promises_not_to_read_it(register, make_config):
    register("CuriousDP", everything, private=True, uses_all=True)
    register("BlindDP", everything, private=True, uses_all=True, reads_validation=False)

    def whole(strategy, **changes):
        return resolve(make_config(strategy, **changes), plan=False).whole

    assert {name: whole(name) for name in ("FullDP", "RandomDP", "BlindDP")} == dict.fromkeys(
        ("FullDP", "RandomDP", "BlindDP"), True
    )
    assert not whole("CuriousDP")  # it may read what it is handed
    assert not whole("GLISTERDP")
    assert not whole("ClassWeightsDP")  # a mechanism's: it reads V
    assert whole("GLISTERDP", dss_args={"mechanism": "top_k", "score": "el2n"})
    assert not whole("GLISTERDP", dss_args={"mechanism": "top_k", "score": "glister"})
    assert not whole("FullDP", dataset={"validation_fraction": 0.1})
    assert not whole("FullDP", data_name="synthetic")
    for name in ("GLISTERDP", "CuriousDP", "GLISTER"):
        with pytest.raises(ConfigError, match=r"dataset\.validation_fraction.*reads the validation set"):
            whole(name, dataset={"validation_fraction": 0})
    assert (
        resolve(make_config("FullDP", dataset={"validation_fraction": 0}), plan=False).config
        == resolve(make_config("FullDP"), plan=False).config
    )


def test_a_bad_pool_from_a_strategy_ends_the_run(register, make_config):
    class Greedy(Busy):
        def pool(self, epoch):
            return np.arange(self.n)

    register("GreedyDP", Greedy, private=True, uses_all=True)
    with pytest.raises(MechanismError, match="hands over"):
        TrainClassifier(make_config("GreedyDP")).train()


class Unchecked(Pool):
    """A pool that skips its own checks."""

    def __post_init__(self):
        pass


@pytest.mark.parametrize("how", ["subclass", "written to"])
def test_a_pool_that_has_passed_no_check_is_checked_at_the_door(register, make_config, how):
    """Record 7 was in every batch 5,001 times."""

    def build(context):
        indices = np.concatenate([np.arange(context.plan.shape.n), np.full(5000, 7)])
        chances = np.full(len(indices), 1 / context.plan.shape.rate)
        if how == "subclass":
            return Unchecked(indices, chances=chances)
        pool = Pool(np.arange(3))
        object.__setattr__(pool, "indices", indices)
        object.__setattr__(pool, "chances", chances)
        return pool

    register("UncheckedDP", build, private=True)
    with pytest.raises(MechanismError, match="no record may be drawn twice"):
        TrainClassifier(make_config("UncheckedDP")).train()


def test_selecting_more_often_than_planned_is_refused(register, make_config):
    class Eager:
        def __init__(self, context):
            self.context = context

        def pool(self, epoch):
            weights = {k: v.clone() for k, v in self.context.model.state_dict().items()}
            return self.context.selections.select(weights)

    register("EagerDP", Eager, private=True, selects=True)
    trainer = TrainClassifier(make_config("EagerDP", dss_args={"mechanism": "top_k"}))
    trainer.train()  # one selection was paid for: the run ends after the epochs that it served
    assert [row["epoch"] for row in trainer.history.rows] == [1]
    assert trainer.spent().epsilon <= 3.0


def test_scores_and_models_are_not_overwritten():
    for register, name in ((register_score, "glister"), (register_model, "ScatterLinear")):
        with pytest.raises(MechanismError, match="force=True"):
            register(name, lambda *_: None)


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ConfigError, match="FullDP"):
        get_strategy("NoSuchDP")
