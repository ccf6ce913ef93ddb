"""``train_args.tensorboard``: what metrics.csv holds, and nothing else."""

from __future__ import annotations

import csv
import sys
import types

import pytest

from cords_dp import TrainClassifier
from cords_dp.errors import ConfigError
from cords_dp.training.log import scalar_name

ALL = ["trn_loss", "trn_acc", "val_loss", "tst_loss", "tst_acc", "subtrn_loss", "time"]


@pytest.fixture
def written(monkeypatch):
    """Torch's writer, as far as it is used; a call of anything else fails."""
    rows = []

    class SummaryWriter:
        def __init__(self, folder):
            self.folder = folder

        def add_scalar(self, name, value, epoch, walltime):
            assert float(walltime).is_integer()  # the time of an epoch follows the size of a secret pool
            rows.append((name, float(value), epoch))

        def flush(self):
            pass

    library = types.ModuleType("torch.utils.tensorboard")
    library.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", library)
    return rows


@pytest.mark.parametrize("strategy", ["RandomDP", "GLISTERDP"])
def test_it_is_given_what_the_table_of_metrics_holds(written, make_config, tmp_path, strategy):
    trainer = TrainClassifier(make_config(strategy, train_args={"tensorboard": True, "print_args": ALL}))
    trainer.output_dir = tmp_path
    trainer.train()
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    names = {"accuracy": "tst_acc", "loss": "tst_loss", "seconds": "time"}
    for row in rows:
        epoch = int(row.pop("epoch"))
        expected = {scalar_name(names.get(key, key)): float(value) for key, value in row.items()}
        assert {name: value for name, value, at in written if at == epoch} == pytest.approx(expected)
    assert not [name for name, _, _ in written if name.startswith(("training/", "validation/", "subset/"))]


def test_the_library_s_own_files_hold_the_same(make_config, tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    trainer = TrainClassifier(make_config("GLISTERDP", train_args={"tensorboard": True}))
    trainer.output_dir = tmp_path
    trainer.train()
    found = events.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert not {kind for kind, names in found.Tags().items() if names} - {"scalars"}  # no weights, no gradients
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    for key, column in (("test/acc", "accuracy"), ("privacy/epsilon", "epsilon"), ("time", "seconds")):
        scalars = found.Scalars(key)
        assert [s.step for s in scalars] == [int(row["epoch"]) for row in rows]
        assert [s.value for s in scalars] == pytest.approx([float(row[column]) for row in rows])
        assert all(s.wall_time.is_integer() for s in scalars)


def test_epsilon_of_d_and_of_v_are_columns_of_their_own(make_config, tmp_path):
    trainer = TrainClassifier(make_config("GLISTERDP"))
    trainer.output_dir = tmp_path
    trainer.train()
    row = list(csv.DictReader((tmp_path / "metrics.csv").open()))[-1]
    cost = trainer.spent()
    assert float(row["epsilon_D"]) == cost.training_data.epsilon
    assert float(row["epsilon_V"]) == cost.validation_data.epsilon
    assert float(row["epsilon"]) == max(float(row["epsilon_D"]), float(row["epsilon_V"]))


def test_what_is_missing_is_told_before_data_is_read(make_config, monkeypatch):
    monkeypatch.setattr("cords_dp.data.build._digits", lambda *_: pytest.fail("data was read"))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[tensorboard\]'"):
        TrainClassifier(make_config("RandomDP", train_args={"tensorboard": True})).train()


@pytest.mark.parametrize(
    ("key", "name"),
    [("tst_acc", "test/acc"), ("epsilon_D", "privacy/epsilon_D"), ("epsilon", "privacy/epsilon"), ("time", "time")],
)
def test_names_are_grouped(key, name):
    assert scalar_name(key) == name
