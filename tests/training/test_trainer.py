"""Whole small training runs, one for each path, on real data through real CORDS and Opacus."""

from __future__ import annotations

import json
import logging
import math
import re

import numpy as np
import pytest
import torch
from dotmap import DotMap
from torch.utils.data import TensorDataset

from cords_dp import cords as toolkit
from cords_dp import load_model
from cords_dp.accounting import TRAINING_DATA, Ledger
from cords_dp.config.keys import OPTIMIZERS
from cords_dp.errors import ConfigError, ModelUnavailableError
from cords_dp.models.heads import LinearHead
from cords_dp.training.checkpoint import load_checkpoint
from cords_dp.training.gradients.choose import Probe
from cords_dp.training.optim import SCHEDULERS, planned_learning_rate
from cords_dp.training.resolve import resolve
from cords_dp.training.strategies import register_strategy, strategy_names
from cords_dp.training.trainer import TrainClassifier

PRIVATE = ("FullDP", "RandomDP", "GLISTERDP")


# --- private strategies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", PRIVATE)
def test_private_training_learns_and_stays_within_budget(train, strategy):
    trainer = train(strategy, train_args={"num_epochs": 8})
    assert trainer.history.last("tst_acc") > 0.4  # chance is 0.1
    cost = trainer.spent()
    assert 0.98 * 3.0 <= cost.epsilon <= 3.0
    assert isinstance(trainer, toolkit.TrainClassifier)


@pytest.mark.parametrize("mode", ["ghost", "ew", "functorch", "auto"])
def test_every_gradient_mode_trains(train, mode):
    trainer = train("RandomDP", privacy={"grad_sample_mode": mode}, train_args={"num_epochs": 2})
    assert trainer.spent().epsilon <= 3.0


@pytest.mark.parametrize("greedy", ["RGreedy", "Stochastic", "Naive"])
@pytest.mark.parametrize("composition", ["basic", "joint"])
def test_glister_dp_greedy_variants(train, greedy, composition):
    trainer = train(
        "GLISTERDP",
        dss_args={"mechanism": "exponential", "greedy": greedy, "r": 4, "linear_layer": False},
        privacy={"composition": composition, "split": 0.5, "validation": "public"},
    )
    assert trainer.plan.shape.rounds == 1
    assert trainer.spent().epsilon <= 3.0


def test_warm_start_runs_and_is_charged(train):
    trainer = train("GLISTERDP", dss_args={"kappa": 0.5, "select_every": 1}, train_args={"num_epochs": 6})
    assert "warm start" in trainer.ledger.phases(TRAINING_DATA)
    assert trainer.spent().epsilon <= 3.0


def test_epsilon_infinity_trains_without_noise(train):
    trainer = train("FullDP", privacy={"epsilon": math.inf}, optimizer={"lr": 0.3}, train_args={"num_epochs": 10})
    assert trainer.history.last("tst_acc") > 0.85
    assert trainer.ledger.entries == []


def test_sampler_optimizer_and_accountant_agree(make_config, monkeypatch):
    """The numbers that the sampler draws with, the optimizer adds and the ledger charges are the plan's."""
    from cords_dp.training import engine as stepping
    from cords_dp.training import private_session as module

    seen = {"rates": [], "steps": 0, "engines": []}
    real_batches, real_engine = module.poisson_batches, stepping.PrivateEngine

    def spy_batches(dataset, pool, *, rate, steps, rng, **rest):
        seen["rates"].append((rate, steps, len(pool)))
        return real_batches(dataset, pool, rate=rate, steps=steps, rng=rng, **rest)

    class SpyEngine(real_engine):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            seen["engines"].append(self.optimizer)

        def step(self, *batch):
            seen["steps"] += 1
            super().step(*batch)

    monkeypatch.setattr(module, "poisson_batches", spy_batches)
    monkeypatch.setattr(stepping, "PrivateEngine", SpyEngine)
    trainer = TrainClassifier(make_config("RandomDP"))
    trainer.train()
    (optimizer,) = seen["engines"]  # the model was wrapped once
    charged = trainer.ledger.events(TRAINING_DATA)
    k = int(1437 * 0.3)  # RandomDP reads no V, so D has all records
    assert {rate for rate, _, _ in seen["rates"]} == {128 / k} == {e.rate for e in charged}
    assert {members for _, _, members in seen["rates"]} == {k}
    assert seen["steps"] == sum(e.count for e in charged) == sum(s for _, s, _ in seen["rates"])
    assert {e.sigma for e in charged} == {optimizer.noise_multiplier} == {trainer.plan.sigma}
    assert (optimizer.expected_batch_size, optimizer.max_grad_norm) == (128, 1.0)


def test_the_same_seed_gives_the_same_model_and_another_a_different_one(train):
    weights = [
        torch.cat([p.flatten() for p in train("GLISTERDP", train_args={"seed": s}).model.parameters()])
        for s in (3, 3, 4)
    ]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_without_a_seed_runs_differ(train):
    one, two = (train("RandomDP", train_args={"seed": None}).model.state_dict() for _ in range(2))
    assert any(not torch.equal(one[k], two[k]) for k in one)


def test_batch_norm_becomes_group_norm_and_the_user_is_told(make_config, capsys):
    data = synthetic_images(8)
    cfg = make_config(
        "RandomDP",
        model={"architecture": "MobileNet", "numclasses": 10},
        dataloader={"batch_size": 2},
        train_args={"num_epochs": 1},
        privacy={"grad_sample_mode": "hooks"},
    )
    trainer = TrainClassifier(cfg)
    trainer.train(**data)
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in trainer.model.modules())
    assert "BatchNorm layers by GroupNorm" in capsys.readouterr().out


def test_a_script_may_build_its_own_model_as_in_cords(make_config, tmp_path, capsys):
    class Mine(TrainClassifier):
        def create_model(self):
            return torch.nn.Sequential(
                torch.nn.Conv2d(3, 8, 5, stride=4),
                torch.nn.BatchNorm2d(8),
                torch.nn.Flatten(),
                torch.nn.Linear(392, 10),
            )

    trainer = Mine(make_config("RandomDP", dataloader={"batch_size": 4}, train_args={"num_epochs": 1}))
    trainer.train(**synthetic_images())
    assert [type(layer).__name__ for layer in trainer.model] == ["Conv2d", "GroupNorm", "Flatten", "Linear"]
    assert "Sequential: replaced 1 BatchNorm layer" in capsys.readouterr().out
    assert list(tmp_path.rglob("privacy.json"))
    assert not list(tmp_path.rglob("model.json"))  # nothing could build it again


def synthetic_images(n=16):
    generator = torch.Generator().manual_seed(0)

    def dataset():
        return TensorDataset(torch.randn(n, 3, 32, 32, generator=generator), torch.arange(n) % 10)

    return {"trainset": dataset(), "validset": dataset(), "testset": dataset(), "num_cls": 10}


@pytest.mark.slow
def test_cords_resnet18_with_its_in_place_residual_trains(make_config):
    cfg = make_config(
        "RandomDP", model={"architecture": "ResNet18"}, dataloader={"batch_size": 4}, train_args={"num_epochs": 1},
        privacy={"grad_sample_mode": "auto"},
    )  # fmt: skip
    trainer = TrainClassifier(cfg)
    trainer.train(**synthetic_images())
    assert trainer.spent().epsilon <= 3.0


# --- nothing about single records leaves ---------------------------------------------------------------------


@pytest.mark.parametrize("strategy", PRIVATE)
def test_no_indices_scores_or_batch_sizes_in_logs_and_files(make_config, strategy, tmp_path, caplog, capsys):
    """Every output is searched, at every log level, for the selected indices and for sizes other than public ones."""
    from cords_dp.runs.run import run_experiment

    logging.getLogger().setLevel(logging.DEBUG)
    run_experiment(make_config(strategy), tmp_path / "out", progress=False)
    printed = capsys.readouterr()
    text = printed.out + printed.err + caplog.text
    for path in (tmp_path / "out").rglob("*"):
        if path.suffix in (".log", ".json", ".md", ".csv", ".yaml"):
            text += path.read_text()
    for phrase in ("Selected Indices", "Subset indices length", "Subset size", "batch_sampler"):
        assert phrase not in text
    # no list of more than eight integers anywhere
    assert not re.search(r"(\b\d+\b[, ]+){8}", re.sub(r"[\d.]+e?-?\d* , ", "", text))


def test_exact_metrics_of_private_records_are_dropped_unless_asked_for(train):
    wanted = ["trn_loss", "trn_acc", "val_loss", "val_acc", "tst_loss", "tst_acc", "time"]
    apart = {"validation_fraction": 0.1}
    dropped = train("RandomDP", train_args={"print_args": wanted}, dataset=apart)
    assert {k for k in dropped.history.rows[-1] if k.endswith("_acc")} == {"tst_acc"}
    public_v = train("RandomDP", train_args={"print_args": wanted}, privacy={"validation": "public"}, dataset=apart)
    assert {k for k in public_v.history.rows[-1] if k.endswith("_acc")} == {"val_acc", "tst_acc"}
    exact = train("RandomDP", train_args={"print_args": wanted}, privacy={"exact_metrics": True}, dataset=apart)
    assert {k for k in exact.history.rows[-1] if k.endswith("_acc")} == {"trn_acc", "val_acc", "tst_acc"}


def test_metrics_of_a_validation_set_that_is_not_there_are_left_out_or_refused(train, tmp_path):
    wanted = ["val_loss", "val_acc", "tst_acc"]
    trainer = train("FullDP", train_args={"print_args": wanted, "num_epochs": 1})
    said = "".join(path.read_text() for path in tmp_path.rglob("*.log"))
    assert "FullDP reads no validation set: none is split off, its records are in D." in said
    assert "there being no validation set (dataset.validation_fraction): val_loss, val_acc." in said
    assert not [name for row in trainer.history.rows for name in row if name.startswith("val_")]
    for insists in ({"exact_metrics": True}, {"validation": "public"}):
        with pytest.raises(ConfigError, match=r"train_args\.print_args.*keep a share .*validation_fraction"):
            train("FullDP", train_args={"print_args": wanted}, privacy=insists)
        train("FullDP", train_args={"num_epochs": 1}, privacy=insists)  # nobody asked


def test_a_strategy_that_does_not_read_v_trains_on_its_records(train):
    whole, apart = (
        train("FullDP", train_args={"num_epochs": 1}, dataset=share) for share in ({}, {"validation_fraction": 0.1})
    )
    assert (whole.plan.shape.n, whole.plan.shape.n_validation) == (1437, 0)
    assert (apart.plan.shape.n, apart.plan.shape.n_validation) == (1294, 143)
    assert (len(whole.data.train), len(whole.data.validation)) == (1437, 0)
    assert whole.run.config["dataset"]["validation_fraction"] == 0  # config.yaml says it, and repeats it
    assert "validation_fraction" not in whole.cfg.dataset
    assert whole.spent().epsilon <= 3.0
    assert whole.plan.sigma < apart.plan.sigma  # the same batch of more records


# --- drop-in for CORDS -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "dss_args"),
    [
        ("Full", {}),
        ("Random", {}),
        ("OLRandom", {}),
        ("GLISTER", {"greedy": "RGreedy", "r": 15, "linear_layer": False}),
        ("GLISTER-Warm", {"greedy": "RGreedy", "r": 5, "linear_layer": True, "kappa": 0.5}),
        ("GradMatch", {"selection_type": "PerClass", "valid": False, "lam": 0.5, "v1": True, "eps": 1e-100,
                       "linear_layer": False}),
        ("GradMatchPB", {"selection_type": "PerBatch", "valid": False, "lam": 0.5, "v1": True, "eps": 1e-100,
                         "linear_layer": False}),
        # half a minute, in which apricot compiles itself; .ci/run has it
        pytest.param("CRAIG", {"selection_type": "PerClass", "if_convex": False, "linear_layer": False,
                               "optimizer": "lazy"}, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_cords_own_strategies_run_through_the_same_trainer(make_config, strategy, dss_args):
    cfg = make_config(strategy, dss_args=dss_args, optimizer={"lr": 0.1}, model={"architecture": "ThreeLayerNet"})
    del cfg["privacy"]
    trainer = TrainClassifier(cfg)
    _, _, accuracy, best, seconds = trainer.train()
    assert len(accuracy) == len(best) == len(seconds) == 2
    assert trainer.plan is None
    assert "model" not in cfg.dss_args  # no live objects in the config


def test_cords_names_are_registered_and_aliases_work():
    names = strategy_names()
    assert {"Full", "Random", "GLISTER", "CRAIG", "GradMatch", "FullDP", "RandomDP", "GLISTERDP"} <= set(names)
    from cords_dp.training.strategies import get_strategy

    assert get_strategy("GLISTER-DP") is get_strategy("glister_dp") is get_strategy("GLISTERDP")


def test_own_datasets_can_be_handed_to_train(make_config):
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(300, 10)).astype(np.float32))
    y = (x[:, 0] > 0).long()
    parts = [TensorDataset(x[a:b], y[a:b]) for a, b in ((0, 200), (200, 250), (250, 300))]
    cfg = make_config("GLISTERDP", model={"architecture": "LogisticRegNet", "numclasses": 2, "input_dim": 10})
    cfg.dataset = DotMap(name="my-own", datadir="data", feature="dss")
    cfg.dataloader.batch_size = 32
    trainer = TrainClassifier(cfg)
    trainer.train(trainset=parts[0], validset=parts[1], testset=parts[2], num_cls=2)
    assert trainer.plan.shape.n == 200


def test_log_paths_and_lines_are_those_of_cords(make_config, tmp_path):
    trainer = TrainClassifier(make_config("RandomDP"))
    trainer.train()
    (log,) = tmp_path.rglob("digits_RandomDP.log")
    text = log.read_text()
    assert re.search(r"Epoch: 4 , Test Loss: [\d.]+ , Test Accuracy: [\d.]+ , Timing: [\d.]+", text)
    assert "RandomDP Selection Run-----" in text
    assert "Total time taken by RandomDP = " in text
    if not toolkit.IS_CHECKOUT:
        assert log.parent == tmp_path / "SL" / "RandomDP" / "digits" / "0.3" / "2"


def test_the_log_names_this_package(make_config, tmp_path):
    trainer = TrainClassifier(make_config("FullDP"))
    trainer.train()
    (log,) = tmp_path.rglob("*.log")
    assert trainer.logger.name == "cords_dp"
    assert "] cords_dp INFO: " in log.read_text()


def test_two_trainers_do_not_write_into_each_other_s_logs(make_config, tmp_path):
    one = TrainClassifier(make_config("RandomDP"))
    two = TrainClassifier(make_config("FullDP"))
    one.train()
    two.train()
    one.logger.info("only in the first")
    (second_log,) = tmp_path.rglob("digits_FullDP.log")
    assert "only in the first" not in second_log.read_text()
    assert two.logger is not one.logger


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_optimizer_and_scheduler(train, optimizer, scheduler):
    trainer = train(
        "RandomDP",
        optimizer={"type": optimizer, "lr": 0.05},
        scheduler={
            "type": scheduler,
            "T_max": 4,
            "T_0": 2,
            "T_mult": 1,
            "stepsize": 2,
            "gamma": 0.5,
            "milestones": [2],
        },
        train_args={"num_epochs": 2},
    )
    assert trainer.history.last("tst_acc") is not None


def test_three_learning_rates_of_cords_resnet_configs():
    from cords_dp.models.build import build_model
    from cords_dp.training.optim import build_optimizer

    cfg = {
        "optimizer": {"type": "sgd", "lr": 0.01, "lr1": 0.1, "lr2": 0.2, "lr3": 0.3},
        "dataset": {"name": "cifar10"},
    }
    model = build_model({**cfg, "model": {"architecture": "ResNet18", "numclasses": 10}}, seed=0)
    groups = build_optimizer(cfg, model).param_groups
    assert sorted({g["lr"] for g in groups}) == [0.01, 0.1, 0.2, 0.3]
    assert sum(p.numel() for g in groups for p in g["params"]) == sum(p.numel() for p in model.parameters())


def test_cuda_without_cuda_warns_and_uses_the_cpu(make_config, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    trainer = TrainClassifier(make_config("RandomDP", train_args={"device": "cuda"}))
    trainer.train()
    assert trainer.run.device == "cpu"
    assert trainer.cfg.train_args.device == "cuda"  # the user's config stays as it is
    assert "No CUDA" in capsys.readouterr().out


def test_third_parties_can_register_a_strategy(train):
    from cords_dp import Pool

    register_strategy(
        "EveryOther", lambda c: Pool(np.arange(0, c.plan.shape.n, 2)), private=True, uses_all=True, force=True
    )
    assert train("EveryOther").spent().epsilon <= 3.0


# --- checkpoints and resuming ----------------------------------------------------------------------------------


def test_checkpoints_have_cords_keys_and_plain_weights(train, tmp_path):
    train("GLISTERDP", ckpt={"is_save": True, "save_every": 2})
    (path,) = tmp_path.rglob("model.pt")
    state = load_checkpoint(path, "cpu")
    assert {"epoch", "state_dict", "optimizer", "loss", "metrics"} <= set(state)
    assert set(state["state_dict"]) == {"linear.weight", "linear.bias"}


@pytest.mark.parametrize("strategy", PRIVATE)
def test_a_run_resumes_and_the_total_stays_within_budget(make_config, strategy):
    saving = {"is_save": True, "save_every": 1}
    first = TrainClassifier(make_config(strategy, ckpt=saving))
    original = TrainClassifier._save

    def stop_after_two(self, path, epoch):
        original(self, path, epoch)
        if epoch == 2:
            raise KeyboardInterrupt

    first._save = stop_after_two.__get__(first)
    with pytest.raises(KeyboardInterrupt):
        first.train()
    assert first.spent().epsilon < 3.0
    second = TrainClassifier(make_config(strategy, ckpt={**saving, "is_load": True}))
    second.train()
    assert [row["epoch"] for row in second.history.rows] == [2, 4]
    assert second.ledger.attempts == 1
    assert 0.98 * 3.0 <= second.spent().epsilon <= 3.0


def test_replayed_steps_are_charged_again_and_stop_at_the_budget(make_config, tmp_path):
    """An older checkpoint does not lower what was spent: the run ends early instead."""
    saving = {"is_save": True, "save_every": 2}
    TrainClassifier(make_config("RandomDP", ckpt=saving)).train()
    (path,) = tmp_path.rglob("model.pt")
    state = torch.load(path, weights_only=False)
    state["epoch"] = 2
    torch.save(state, path)
    again = TrainClassifier(make_config("RandomDP", ckpt={**saving, "is_load": True}))
    again.train()
    assert again.spent().epsilon <= 3.0
    charged = sum(e.count for e in again.ledger.events(TRAINING_DATA))
    assert charged == again.plan.shape.steps  # nothing was left to charge


def test_a_fresh_run_sets_the_old_ledger_aside(make_config, tmp_path):
    for _ in range(2):
        TrainClassifier(make_config("RandomDP")).train()
    ledgers = sorted(p.name for p in tmp_path.rglob("ledger*.jsonl"))
    assert ledgers == ["ledger-1.jsonl", "ledger.jsonl"]


def test_the_epoch_is_on_disk_before_its_first_step(make_config, tmp_path, monkeypatch):
    from cords_dp.training import engine as module

    class Crashing(module.PrivateEngine):
        def step(self, *batch):
            raise RuntimeError("crash in the first step")

    monkeypatch.setattr(module, "PrivateEngine", Crashing)
    trainer = TrainClassifier(make_config("RandomDP"))
    with pytest.raises(RuntimeError, match="crash"):
        trainer.train()
    (path,) = tmp_path.rglob("ledger.jsonl")
    assert sum(e.count for e in Ledger.load(path).events(TRAINING_DATA)) == trainer.plan.shape.epochs[0].steps


# --- found in review: a checkpoint, its ledger and its plan belong together --------------------------------------


def test_weights_of_another_budget_are_not_continued(make_config):
    """ε = inf (or 8) first, then resumed at ε = 1: the small ε must not be claimed for those weights."""
    from cords_dp.errors import AccountingError

    for first in (math.inf, 8.0):
        saving = {"is_save": True, "save_every": 1}
        TrainClassifier(make_config("RandomDP", privacy={"epsilon": first}, ckpt=saving)).train()
        resumed = TrainClassifier(make_config("RandomDP", privacy={"epsilon": 1.0}, ckpt={**saving, "is_load": True}))
        with pytest.raises(AccountingError, match="another budget"):
            resumed.train()


def test_a_checkpoint_without_its_ledger_is_not_continued(make_config, tmp_path):
    from cords_dp.errors import AccountingError

    saving = {"is_save": True, "save_every": 1}
    TrainClassifier(make_config("RandomDP", ckpt=saving)).train()
    (ledger,) = tmp_path.rglob("ledger.jsonl")
    ledger.unlink()
    with pytest.raises(AccountingError, match="not written under the ledger"):
        TrainClassifier(make_config("RandomDP", ckpt={**saving, "is_load": True})).train()


def test_a_fresh_run_sets_the_old_checkpoint_aside_with_its_ledger(make_config, tmp_path):
    saving = {"is_save": True, "save_every": 4}
    for _ in range(2):
        TrainClassifier(make_config("RandomDP", ckpt=saving)).train()
    names = sorted(p.name for p in tmp_path.rglob("*") if p.suffix in (".jsonl", ".pt"))
    assert names == ["ledger-1.jsonl", "ledger.jsonl", "model-1.pt", "model.pt"]


def test_one_seed_at_two_budgets_does_not_share_noise(train):
    """Equal noise would cancel in the difference of the two models; even where noise is reproducible."""
    from cords_dp.noise.generators import Streams

    contexts = [train("FullDP", privacy={"epsilon": epsilon}).plan.fingerprint for epsilon in (3.0, 8.0)]
    draws = [Streams(0, context=context, reproducible=True).numpy("noise").random() for context in contexts]
    assert draws[0] != draws[1]


def test_two_runs_in_one_folder_notice_each_other(tmp_path):
    from cords_dp.accounting import gaussian
    from cords_dp.errors import AccountingError

    first, second = Ledger(path=tmp_path / "l.json"), Ledger(path=tmp_path / "l.json")
    first.charge(TRAINING_DATA, "training", gaussian(1.0))
    with pytest.raises(AccountingError, match="another run"):
        second.charge(TRAINING_DATA, "training", gaussian(1.0))


# --- what a script finds beside its log --------------------------------------------------------------------------


def beside_the_log(folder):
    (log,) = folder.rglob("*.log")
    return log.parent


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_a_script_s_user_has_the_statement_and_can_load_the_checkpoint(train, tmp_path, decay):
    trainer = train("RandomDP", ckpt={"is_save": True, "save_every": 3}, privacy={"ema_decay": decay})
    folder = beside_the_log(tmp_path)
    report = json.loads((folder / "privacy.json").read_text())
    assert report["epsilon"] == pytest.approx(trainer.spent().epsilon)
    assert report["statement"] in (folder / "privacy.md").read_text()
    loaded = load_model(folder)
    x = trainer.data.test.batch(np.arange(50))[0]
    expected = torch.softmax(trainer.model.eval()(x), dim=1).detach()
    np.testing.assert_allclose(loaded.predict_proba(x), expected, rtol=1e-5, atol=1e-6)


def test_statement_and_card_lie_beside_a_checkpoint_that_is_elsewhere_too(train, tmp_path):
    train("RandomDP", ckpt={"is_save": True, "dir": str(tmp_path / "weights")})
    for folder in (beside_the_log(tmp_path), next((tmp_path / "weights").rglob("model.pt")).parent):
        assert {"privacy.md", "privacy.json", "model.json"} <= {path.name for path in folder.iterdir()}


def test_a_resumed_run_goes_on_in_the_gradient_mode_that_it_began_in(make_config, monkeypatch):
    """One network got book-keeping, ew, ghost, ghost in four runs: the stopwatch of the moment decided."""
    keys = {"ckpt": {"is_save": True, "save_every": 1}}
    first = TrainClassifier(make_config("FullDP", **keys, privacy={"grad_sample_mode": "hooks"}))
    first.train()
    assert first.ledger.notes["gradient mode"] == "hooks"
    tried = []
    real = Probe.problem
    monkeypatch.setattr(Probe, "problem", lambda probe, mode: (tried.append(mode.name), real(probe, mode))[1])
    keys["ckpt"]["is_load"] = True
    TrainClassifier(make_config("FullDP", **keys, privacy={"grad_sample_mode": "auto"})).train()
    assert tried == ["hooks"]


def test_a_state_dict_that_a_script_saves_beside_its_log_can_be_loaded(make_config, tmp_path):
    """Of records that it handed over itself: what is known of a published set of that name is not said of them."""
    x, y = torch.randn(300, 20), torch.randint(0, 3, (300,))
    sets = [TensorDataset(x, y), TensorDataset(x, y), TensorDataset(x.clone(), y)]  # nobody reads the second
    data = dict(zip(("trainset", "validset", "testset"), sets, strict=True))
    config = make_config("FullDP", model={"numclasses": 3, "architecture": "TwoLayerNet"})
    trainer = TrainClassifier(config)
    trainer.train(**data, num_cls=3)
    folder = beside_the_log(tmp_path)
    with pytest.raises(ModelUnavailableError, match="state_dict"):
        load_model(folder)
    torch.save(trainer.model.state_dict(), folder / "model.pt")
    loaded = load_model(folder)
    assert (loaded.card.shape, loaded.classes, loaded.card.pixels) == ((20,), ("0", "1", "2"), None)
    assert loaded.predict_proba(x).shape == (300, 3)


def test_a_run_without_privacy_has_no_statement_and_first_withdraws_an_earlier_one(train, make_config, tmp_path):
    train("Random")
    assert (beside_the_log(tmp_path) / "model.json").is_file()
    assert not list(tmp_path.rglob("privacy.*"))
    train("FullDP")
    (statement,) = tmp_path.rglob("privacy.md")
    assert "differentially private" in statement.read_text()
    killed = TrainClassifier(make_config("FullDP", privacy={"epsilon": math.inf}, ckpt={"is_save": True}))
    killed._after_epoch = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        killed.train()
    assert not list(tmp_path.rglob("privacy.*"))


# --- RandomDP on a secret subset ---------------------------------------------------------------------------------


def test_a_secret_subset_is_drawn_by_coins_kept_out_of_files_and_cannot_be_resumed(train, make_config, tmp_path):
    from cords_dp.errors import ConfigError, MechanismError
    from cords_dp.training.checkpoint import load_checkpoint
    from cords_dp.training.resolve import resolve

    secret = {"secret_subset": True}
    trainer = train("RandomDP", dss_args=secret, ckpt={"is_save": True, "save_every": 2})
    assert trainer.spent().epsilon <= 3.0
    (path,) = tmp_path.rglob("model.pt")
    assert "selection" not in load_checkpoint(path, "cpu")
    with pytest.raises(MechanismError, match="secret"):
        trainer.session.published_subset()
    for refused in ({"ckpt": {"is_load": True}}, {"dss_args": {**secret, "publish_subset": True}}):
        with pytest.raises(ConfigError):
            resolve(make_config("RandomDP", **{"dss_args": secret, **refused}))


def test_the_size_of_a_secret_subset_varies_as_coins_do(make_config):
    """Mutant: a subset of exactly k would not be covered by the amplification that is claimed."""
    from cords_dp.training.trainer import TrainClassifier

    sizes = set()
    for seed in range(3):
        cfg = make_config("RandomDP", dss_args={"secret_subset": True}, train_args={"num_epochs": 1, "seed": seed})
        trainer = TrainClassifier(cfg)
        trainer.train()
        size = len(trainer.session.source.current)
        sizes.add(size)
        k = trainer.plan.shape.k
        assert abs(size - k) < 5 * (k * 0.7) ** 0.5
    assert len(sizes) > 1


# --- seeds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [{"optimizer": {"lr": 0.3}}, {"model": {"architecture": "TwoLayerNet"}}, {"dataset": {"feature": "mildimb"}}],
)
def test_one_seed_gives_different_trainings_different_noise(make_config, changes):
    """Found in review: with equal noise, the difference of two models of one seed would be free of it."""
    from cords_dp.config import config_digest
    from cords_dp.noise.generators import Streams

    one, same, other = make_config(), make_config(), make_config(**changes)
    same.dataset.datadir = "elsewhere"
    assert config_digest(one) == config_digest(same) != config_digest(other)
    noise = [Streams(0, context=config_digest(c), reproducible=True).numpy("noise").random() for c in (one, other)]
    assert noise[0] != noise[1]


def test_ranks_draw_their_own_views_and_toss_their_own_coins():
    from cords_dp.noise.generators import Streams

    streams = [Streams(entropy=5), Streams(entropy=5)]
    views = [s.numpy("augmentation", rank=rank).random(4) for rank, s in enumerate(streams)]
    assert not np.array_equal(*views)
    coins = [s.numpy("batches", rank=rank).random(4) for rank, s in enumerate(streams)]
    assert not np.array_equal(*coins)


def test_the_report_says_what_a_secret_subset_rests_on(make_config, tmp_path):
    from cords_dp.runs.run import run_experiment

    run_experiment(make_config("RandomDP", dss_args={"secret_subset": True}), tmp_path / "run", progress=False)
    assert "as long as the subset stays secret" in (tmp_path / "run" / "privacy.md").read_text()


def test_a_scale_of_the_planned_rate(make_config):
    plan, model = resolve(make_config("FullDP")).plan(1000, 100), LinearHead(2, (3,), input_norm=2.0)
    section = {"type": "sgd", "lr": "auto"}
    planned = planned_learning_rate({"optimizer": section}, plan, model)
    assert planned_learning_rate({"optimizer": {**section, "lr_scale": 2.0}}, plan, model) == pytest.approx(2 * planned)
    with pytest.raises(ConfigError, match="lr_scale"):
        resolve(make_config("RandomDP", optimizer={"lr": 0.1, "lr_scale": 2.0}), plan=False)
