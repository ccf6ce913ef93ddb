"""``train_args.wandb``: what metrics.csv holds, and nothing else."""

from __future__ import annotations

import csv
import sys
import types

import pytest

from cords_dp import TrainClassifier
from cords_dp.errors import ConfigError

ALL = ["trn_loss", "trn_acc", "val_loss", "val_acc", "tst_loss", "tst_acc", "subtrn_loss", "subtrn_acc", "time"]


@pytest.fixture
def wandb(monkeypatch):
    """The library, as far as CORDS uses it; a call of anything else fails."""
    library = types.ModuleType("wandb")
    library.run, library.rows = object(), []
    library.log = library.rows.append
    monkeypatch.setitem(sys.modules, "wandb", library)
    return library


@pytest.mark.parametrize("strategy", ["RandomDP", "GLISTERDP"])
def test_it_is_sent_what_the_table_of_metrics_holds(wandb, make_config, tmp_path, strategy):
    """Mutant: CORDS' ``wandb.watch(model)``, which sends gradients of private batches."""
    trainer = TrainClassifier(make_config(strategy, train_args={"wandb": True, "print_args": ALL}))
    trainer.output_dir = tmp_path
    trainer.train()
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    assert len(wandb.rows) == len(rows) == 2
    names = {"epoch": "Epoch", "accuracy": "tst_acc", "loss": "tst_loss", "seconds": "Time"}
    for sent, row in zip(wandb.rows, rows, strict=True):
        assert set(sent) == {*(names.get(key, key) for key in row), "best_acc"}
        assert not {key for key in sent if key.startswith(("trn", "val", "subtrn"))}
        assert sent["epsilon"] == float(row["epsilon"])


def test_cords_own_strategies_are_logged_too(wandb, make_config):
    cfg = make_config("Random", optimizer={"lr": 0.1}, train_args={"wandb": True, "print_args": ALL})
    del cfg["privacy"]
    TrainClassifier(cfg).train()
    assert {"trn_acc", "val_acc", "tst_acc", "subtrn_loss", "Epoch", "Time"} <= set(wandb.rows[-1])


def test_what_is_missing_is_told_before_data_is_read(wandb, make_config, monkeypatch):
    monkeypatch.setattr("cords_dp.data.build._digits", lambda *_: pytest.fail("data was read"))
    wandb.run = None
    trainer = TrainClassifier(make_config("RandomDP", train_args={"wandb": True}))
    with pytest.raises(ConfigError, match=r"wandb\.init"):
        trainer.train()
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="pip install wandb"):
        trainer.train()


def test_return_args_are_checked_and_checkpoints_hold_the_best_accuracy(make_config, tmp_path):
    from cords_dp.training.checkpoint import load_checkpoint

    with pytest.raises(ConfigError, match="return_args"):
        TrainClassifier(make_config("RandomDP", train_args={"return_args": ["everything"]}))
    wanted = {"return_args": ["tst_acc"], "print_every": 1}
    trainer = TrainClassifier(make_config("RandomDP", train_args=wanted, ckpt={"is_save": True, "save_every": 2}))
    _, _, accuracy, best, _ = trainer.train()
    (path,) = tmp_path.rglob("model.pt")
    metrics = load_checkpoint(path, "cpu")["metrics"]
    assert metrics["best_acc"] == best == [max(accuracy[: i + 1]) for i in range(4)]
