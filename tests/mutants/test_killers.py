"""Tests for mutants that nothing else noticed, or noticed only by a long run. Each states what a bug would break."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from builders import Selecting, make_plan
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_gaussian_mechanism
from prv_accountant.privacy_random_variables import GaussianMechanism
from scipy import integrate
from steps import batch_of, clipped_sum_by_loop, net_for, recorded_step
from torch import nn

from cords_dp.accounting import (
    TRAINING_DATA,
    BranchMaximum,
    Entry,
    GumbelFreeze,
    Ledger,
    PoissonGaussian,
    epsilon_bound,
    gaussian,
)
from cords_dp.accounting.account import Account
from cords_dp.accounting.composition import Bound
from cords_dp.accounting.events import PLD_STEP, Event
from cords_dp.accounting.renyi_filter import RenyiFilter
from cords_dp.data.build import data_binding
from cords_dp.data.record_set import Splits, array_set
from cords_dp.errors import AccountingError, BudgetExceededError, MechanismError, UnsupportedModelError
from cords_dp.models.private import make_private_ready
from cords_dp.noise.generators import secure_generator, standard_normal
from cords_dp.planning import Cost, Release
from cords_dp.selection import Pool
from cords_dp.selection.releases import Releases
from cords_dp.selection.session import SelectionArchive, Selections
from cords_dp.training.checkpoint import load_checkpoint
from cords_dp.training.log import allowed_metrics
from cords_dp.training.opening import open_ledger, refuse_foreign
from cords_dp.training.private_session import PrivateSession
from cords_dp.training.private_strategies import RandomDPPools
from cords_dp.training.session import Session
from cords_dp.training.step import ChargedSteps
from cords_dp.training.trainer import TrainClassifier

# --- noise -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secure", [False, True])
def test_standard_normals_have_all_digits_of_float64(secure):
    """Normals made of float32 numbers take few values: which one was added tells what it was added to."""
    values = standard_normal(secure_generator(bytes(16)), (10_000,), secure)
    assert values.dtype == np.float64
    assert np.mean(values == values.astype(np.float32)) < 1e-3


def test_generators_are_keyed_ciphers():
    """AES-128 of the zero block under the zero key, as published (NIST's AESAVS, appendix); then the next block."""
    words = secure_generator(bytes(16)).bit_generator.random_raw(4)
    known = "66e94bd4ef8a2c3b884cfa59ca342b2e58e2fccefa7e3061367f1d57a4e7455a"
    counters = {words.astype("<u8").tobytes().hex(), words.astype(">u8").tobytes().hex()}
    assert any(known[:32] in text or known[32:] in text for text in counters)


@pytest.mark.parametrize("mode", ["linear", "hooks"])
def test_the_sum_of_a_step_is_exact_to_float64(mode):
    """Against a loop over records: a sum that passes through float32 is off by 1e-8."""
    x, y, _ = batch_of(20)
    model = net_for(mode).double()
    clip = 1e6  # nothing is clipped, so no room is left for rounding
    exact = clipped_sum_by_loop(model, x, y, torch.ones(20), clip=clip)
    step = recorded_step(model, mode, x.double(), y, max_physical_batch_size=3, clip=clip)
    seen = torch.cat([g.reshape(-1) for g in step])
    assert float((seen - exact).norm()) <= 1e-12 * float(exact.norm())


class Crash(Exception):
    pass


def first_draws(monkeypatch, trainer):
    """The first mask and the first noise of a run, which then crashes in its first step."""
    from cords_dp.training import engine as stepping
    from cords_dp.training import private_session as module

    seen = {}
    real = module.poisson_batches

    def batches(*args, rng, **rest):
        state = rng.bit_generator.state
        seen["mask"] = rng.random(8).tolist()
        rng.bit_generator.state = state
        return real(*args, rng=rng, **rest)

    class Crashing(stepping.PrivateEngine):
        def __init__(self, *args, noise, **rest):
            super().__init__(*args, noise=noise, **rest)
            self.source = noise

        def step(self, *batch):
            seen["noise"] = self.source((8,)).tolist()
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(module, "poisson_batches", batches)
        patch.setattr(stepping, "PrivateEngine", Crashing)
        with pytest.raises(Crash):
            trainer.train()
    return seen


def test_a_resumed_run_draws_other_masks_and_noise(make_config, monkeypatch):
    """Even where noise is reproducible: the same step twice under one noise shows the difference of two batches."""
    first = first_draws(monkeypatch, TrainClassifier(make_config("RandomDP")))
    again = first_draws(monkeypatch, TrainClassifier(make_config("RandomDP")))
    assert first == again  # it is the resuming that makes the difference
    resumed = first_draws(monkeypatch, TrainClassifier(make_config("RandomDP", ckpt={"is_load": True})))
    assert resumed["mask"] != again["mask"]
    assert resumed["noise"] != again["noise"]


# --- models ----------------------------------------------------------------------------------------------------------


def test_batch_norm_does_not_stay():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(2))
    model(torch.zeros(2, 3, 8, 8))
    ready, replaced = make_private_ready(model)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in ready.modules())
    assert len(replaced) == 1
    ready.train()
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ready(x)[:1], ready(x[:1]))  # a record's output does not see the others


def test_a_model_with_buffers_is_refused():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.register_buffer("mean", torch.zeros(2))

        def forward(self, x):
            self.mean += x.mean(dim=0)
            return self.layer(x)

    with pytest.raises(UnsupportedModelError, match="mean"):
        make_private_ready(Counting())


# --- pools and subsets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indices", [[3, 3], [0, 1, 2, 0], [-1, 4]])
def test_a_pool_holds_each_record_once(indices):
    with pytest.raises(MechanismError, match="distinct"):
        Pool(np.array(indices))


def random_dp(plan, seed=0):
    loader = object.__new__(RandomDPPools)
    loader.context = SimpleNamespace(plan=plan, coins=np.random.default_rng(seed))
    loader._init_subset_loader()
    return loader


def secret_plan():
    return make_plan("RandomDP", n=400, k=100, batch_size=10, secret_subset=True)


def test_a_secret_subset_is_drawn_by_coins():
    """Of fixed size, two records would not be in it independently, as the amplification asks."""
    sizes = np.array([len(random_dp(secret_plan(), seed).current) for seed in range(200)])
    assert sizes.mean() == pytest.approx(100, abs=3)
    assert 0.7 < sizes.var() / (400 * 0.25 * 0.75) < 1.4


def test_a_secret_subset_is_not_stored():
    assert random_dp(secret_plan()).state() is None
    open_ = random_dp(make_plan("RandomDP", n=400, k=100, batch_size=10))
    assert len(open_.state()["subset"]) == 100


# --- charges ---------------------------------------------------------------------------------------------------------


def releases_of(*declared, ledger=None):
    ledger = ledger or Ledger()
    generators = {"D": np.random.default_rng(0), "V": np.random.default_rng(1)}
    return Releases(declared, charge=ledger.charge, generators=generators)


def test_a_release_is_drawn_as_often_as_it_was_charged():
    ledger = Ledger()
    sums = Release("sums", "D", gaussian(5.0, 2), 1.0, "two sums")
    releases = releases_of(sums, ledger=ledger)
    for _ in range(2):
        releases.gaussian("sums", np.zeros(3))
    with pytest.raises(MechanismError, match="declared 2 times"):
        releases.gaussian("sums", np.zeros(3))
    assert ledger.events("D") == [gaussian(5.0, 2)]


def charged_steps(ledger):
    """Steps, with a plan and an epoch of three of them."""
    plan = make_plan("RandomDP", n=400, k=30, batch_size=10)
    assert plan.shape.epochs[0].steps == 3
    return ChargedSteps(ledger, lambda shape: np.zeros(shape)), plan, plan.shape.epochs[0]


def test_steps_are_charged_before_the_first_and_no_more_are_taken():
    ledger = Ledger()
    steps, plan, epoch = charged_steps(ledger)
    steps.begin(plan, epoch)
    assert ledger.events(TRAINING_DATA) == [plan.step_event(epoch)]
    for _ in range(3):
        with steps.one():
            assert steps((2,)).shape == (2,)
    with pytest.raises(MechanismError, match="not charged"), steps.one():
        pass
    assert ledger.events(TRAINING_DATA) == [plan.step_event(epoch)]


def test_noise_is_had_inside_a_charged_step_only():
    steps, *charge = charged_steps(Ledger())
    steps.begin(*charge)
    with pytest.raises(MechanismError, match="inside a step"):
        steps((2,))
    with steps.one():
        steps((2,))
    with pytest.raises(MechanismError, match="inside a step"):
        steps((2,))


def test_a_charge_that_is_refused_pays_for_no_steps():
    steps, *charge = charged_steps(Ledger(allowance=()))
    with pytest.raises(BudgetExceededError):
        steps.begin(*charge)
    with pytest.raises(MechanismError, match="not charged"), steps.one():
        pass


def branched_plan():
    return make_plan(mechanism="align", n=400, k=100, n_validation=50, batch_size=20, epochs=3, select_every=1)


def test_every_branch_is_paid_for():
    """What a release chooses may be any of them."""
    plan = branched_plan()
    event, _ = (e.event for e in plan.entries() if isinstance(e.event, BranchMaximum))  # of D and of V
    steps = plan.shape.branched_steps
    assert len(plan.branches) > 1
    assert {(PoissonGaussian(b.sigma, b.rate, steps),) for b in plan.branches} <= set(event.branches)


def test_a_branch_has_its_own_rate_and_noise():
    plan, run = branched_plan(), SimpleNamespace(planned_learning_rate=False)
    session = SimpleNamespace(plan=plan, run=run, branch=None, _first_levels=None)
    for _ in range(2):  # two epochs
        _, rate, sigma = PrivateSession._branch(session, Pool(np.arange(3), branch=1))
        assert rate == plan.branches[1].rate
        assert sigma == plan.branches[1].sigma != plan.sigma
    with pytest.raises(MechanismError, match="chosen first"):
        PrivateSession._branch(session, Pool(np.arange(3)))


def test_what_an_interrupted_selection_paid_counts_once(tmp_path):
    """`match` releases a sum and counts on D; one of them was paid for when the process was killed."""
    plan = make_plan(n=400, k=100, n_validation=50, batch_size=10)
    ledger = Ledger(allowance=plan.entries(), path=tmp_path / "ledger.jsonl")
    ledger.begin_selection()
    ledger.charge(TRAINING_DATA, "selection", gaussian(plan.selection_noise))
    ledger.close()
    again = Ledger.load(tmp_path / "ledger.jsonl", plan.entries())
    selecting = Selecting(plan)
    Selections(selecting.selector.context, ledger=again, generators=selecting.generators).select(selecting.weights)
    assert sum(event.count for event in again.events(TRAINING_DATA)) == 2


def test_released_values_that_were_changed_are_refused(tmp_path):
    ledger = Ledger()
    archive = SelectionArchive(ledger, tmp_path)
    archive.keep("1", {"branch": 0})
    assert archive.find("1") == {"branch": 0}
    (path,) = tmp_path.glob("selection-*")
    torch.save({"branch": 1}, path)
    with pytest.raises(AccountingError, match="changed on disk"):
        archive.find("1")


def test_a_run_is_not_resumed_under_another_plan_or_on_other_data(tmp_path):
    one, other = (make_plan("RandomDP", n=400, k=100, batch_size=10, epsilon=e) for e in (8.0, 1.0))

    def opened(plan, binding, resume=True):
        return open_ledger(plan, tmp_path / "model.pt", resume=resume, binding=binding, name="run")

    opened(one, "data", resume=False).close()
    opened(one, "data").close()
    with pytest.raises(AccountingError, match="another budget"):
        opened(other, "data")
    with pytest.raises(AccountingError, match="other data"):
        opened(one, "another split")


def test_the_binding_tells_splits_apart():
    """Equal sizes, other rows: what was charged for these records does not cover those."""
    config = {"dataset": {"name": "digits"}}
    splits = [split_by(seed) for seed in (0, 0, 1)]
    one, same, other = (data_binding(config, None, split) for split in splits)
    assert one == same != other


def split_by(seed):
    x, y, order = np.zeros((60, 2), np.float32), np.zeros(60), np.random.default_rng(seed).permutation(60)
    return Splits(*(array_set(x, y, rows=rows) for rows in (order[:40], order[40:50], order[50:])), 3)


def test_a_run_beyond_its_account_is_refused_before_data_is_read(make_config, monkeypatch, tmp_path):
    Account.open(tmp_path / "account", 0.1, 1e-5)
    monkeypatch.setattr("cords_dp.training.preparing.build_dataset", lambda *_: pytest.fail("data was read"))
    trainer = TrainClassifier(make_config("RandomDP", privacy={"account": str(tmp_path / "account")}))
    with pytest.raises(BudgetExceededError, match="account"):
        trainer.train()


def test_a_checkpoint_of_another_ledger_is_refused(tmp_path):
    mine, other = Ledger(), Ledger()
    refuse_foreign({"ledger": mine.id}, mine)
    for state in ({"ledger": other.id}, {"ledger": None}, {}):
        with pytest.raises(AccountingError, match="not written under the ledger"):
            refuse_foreign(state, mine)


# --- totals ----------------------------------------------------------------------------------------------------------


def test_the_total_is_the_larger_of_d_and_v():
    small, large = Bound(1.0, 1e-6, "rdp"), Bound(2.0, 1e-5, "rdp")
    for cost in (Cost({}, small, large), Cost({}, large, small), Cost({}, large, None)):
        assert (cost.epsilon, cost.delta) == (2.0, 1e-5)


@dataclass(frozen=True)
class WorseWhenAdded(Event):
    """Noise 4 where the record is present in the numerator, 2 in the other direction."""

    kind: ClassVar[str] = "worse_when_added"
    count: int = 1

    def rdp(self, order):
        return order / (2 * 2.0**2)

    def prv(self):
        return GaussianMechanism(4.0)

    def pld(self):
        removed, added = (from_gaussian_mechanism(s, value_discretization_interval=PLD_STEP) for s in (4.0, 2.0))
        return PrivacyLossDistribution(removed._pmf_remove, added._pmf_add)


def test_prv_covers_both_directions():
    """prv-accountant knows the direction in which the record is present. Gaussian noise is worse there; others not."""
    bounds = {name: epsilon_bound([WorseWhenAdded(5)], 1e-5, name).epsilon for name in ("prv", "pld")}
    assert bounds["prv"] >= bounds["pld"] > 1.5 * epsilon_bound([gaussian(4.0, 5)], 1e-5, "prv").epsilon


@pytest.mark.parametrize("order", [1.5, 2.0, 4.0])
@pytest.mark.parametrize("epsilon0", [0.1, 0.3])
def test_a_freeze_pays_for_both_directions(order, epsilon0):
    """Rényi divergences of Gumbel noise that is moved up and down by ε₀/2, by integration."""

    def log_density(x):
        return -x - math.exp(-x)

    worst = 0.0
    for shift in (epsilon0 / 2, -epsilon0 / 2):
        value, _ = integrate.quad(
            lambda x, shift=shift: math.exp(order * log_density(x - shift) + (1 - order) * log_density(x)), -6, 60
        )
        worst = max(worst, math.log(value) / (order - 1))
    assert GumbelFreeze(epsilon0).rdp(order) >= worst * (1 - 1e-7)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_the_orders_of_the_filter_share_delta(epsilon):
    """Whoever stops by looking may be covered by any of the orders: what they fail with adds up to δ at most."""
    total = RenyiFilter(epsilon, 1e-5)
    failing = [
        math.exp((order - 1) * (budget - epsilon + math.log1p(-1 / order))) / order
        for order, budget in total.budgets.items()
    ]
    assert sum(failing) <= 1e-5 * (1 + 1e-9)


def test_an_account_counts_the_side_that_costs_more(tmp_path):
    """Of a run that reads D a little and V much a record may be in V."""
    account = Account.open(tmp_path / "account", 2.0, 1e-5)
    little, much = gaussian(200.0), gaussian(12.0, 3)
    account.reserve("a", [Entry("D", "training", little), Entry("V", "validation", much)], split="s")
    assert account.share() >= RenyiFilter(2.0, 1e-5).share([much])
    assert account.epsilon_so_far() >= 0.99 * epsilon_bound([much], 1e-5).epsilon  # of two accountants


# --- what is shown ---------------------------------------------------------------------------------------------------


def test_exact_metrics_of_private_records_are_not_logged():
    wanted = ["trn_loss", "trn_acc", "subtrn_acc", "val_loss", "val_acc", "tst_acc", "time"]
    for validation, kept in (("private", ["tst_acc", "time"]), ("public", ["val_loss", "val_acc", "tst_acc", "time"])):
        plan = make_plan(n=400, k=100, batch_size=10, validation=validation)
        assert allowed_metrics(wanted, plan, logging.getLogger("test")) == kept


def test_no_log_shows_who_was_selected(make_config, monkeypatch):
    """At every level, numbers that follow each other in a line are no indices of the subset."""
    from cords_dp.training import trainer as module

    lines = []

    class Keeping(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    def listened_to(shared, real=module.separate_logger):
        logger = real(shared)
        logger.setLevel(logging.DEBUG)
        logger.addHandler(Keeping())
        return logger

    monkeypatch.setattr(module, "separate_logger", listened_to)
    cfg = make_config("GLISTERDP", dss_args={"mechanism": "top_k"}, train_args={"num_epochs": 3})
    trainer = TrainClassifier(cfg)
    trainer.show_progress = False
    trainer.train()
    indices = trainer.session.published_subset()
    some = {str(indices[:3])[1:-1], " ".join(map(str, indices[:3])), str(sorted(indices)[:3])[1:-1]}
    assert lines
    assert not [line for line in lines if any(text in line for text in some)]


def tensors(value):
    """Every tensor in a checkpoint's part."""
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []
    return [tensor for part in parts for tensor in tensors(part)]


@pytest.mark.parametrize("mechanism", ["threshold", "match"])
def test_a_secret_pool_is_neither_published_nor_stored(train, tmp_path, mechanism):
    trainer = train(
        "GLISTERDP",
        dss_args={"mechanism": mechanism},
        ckpt={"is_save": True, "save_every": 1},
        train_args={"num_epochs": 3},
    )
    with pytest.raises(MechanismError, match="secret"):
        trainer.session.published_subset()
    (path,) = tmp_path.rglob("model.pt")
    state = load_checkpoint(path, "cpu")["selection"]
    weights = {name: value.shape for name, value in trainer.model.state_dict().items()}
    assert {name: value.shape for name, value in state.pop("weights").items()} == weights
    sizes = {trainer.plan.shape.n, len(trainer.session.source.current)}
    assert tensors(state)
    assert not [t.shape for t in tensors(state) if sizes & set(t.shape)]


def test_a_secret_pool_shows_whole_seconds_only():
    for secret, shown in ((True, 1.0), (False, 1.2345)):
        assert Session.shown_seconds(SimpleNamespace(secret_pool=secret), 1.2345) == shown
