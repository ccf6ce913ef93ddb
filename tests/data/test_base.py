"""Records of one's own through the interface: keys, facts, splits, guards."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from cords_dp.config import config_for
from cords_dp.config.values import whole
from cords_dp.data.build import data_binding
from cords_dp.data.record_set import Splits
from cords_dp.data.sources.base import (
    SPLIT_KEYS,
    Facts,
    Source,
    check_split,
    register_source,
    split_rows,
    unregister_source,
)
from cords_dp.errors import ConfigError, DataError, MechanismError
from cords_dp.training.resolve import resolve
from cords_dp.training.trainer import TrainClassifier


class Points(Dataset):
    """Made-up records of length 1; every tenth has a label that is no class."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        angle = torch.tensor(float(self.rows[index]))
        return torch.stack([angle.cos(), angle.sin()]), int(angle.cos() > 0) if self.rows[index] % 10 else -1


class PointSource(Source):
    name = "points"
    keys = {**SPLIT_KEYS, "count": whole}

    def check(self, section, *, private):
        check_split(section)

    def facts(self, section):
        return Facts((2,), ("left", "right"), norm=1.0)

    def build(self, section, rng):
        rows = split_rows(section["count"], section, rng)
        test = rows.test[rows.test % 10 > 0]
        return Splits(Points(rows.train), Points(rows.validation), Points(test), 2)

    def card(self, section):
        return {"source": self.name, "shape": [2], "classes": ["left", "right"]}

    def read(self, card, path):
        return Points(np.arange(3))


@pytest.fixture(autouse=True)
def points():
    register_source(PointSource())
    yield
    unregister_source("points")


def config(strategy="FullDP", *, dataset=None, **changes):
    dataset = {"count": 400, **(dataset or {})}
    training = {"num_epochs": 2, "print_every": 1, "device": "cpu", "seed": 0}
    privacy = {"epsilon": 3.0, "accountant": "rdp"}
    return config_for("points", strategy, dataset=dataset, train_args=training, privacy=privacy, **changes)


def test_a_source_trains_and_its_private_sets_are_guarded(tmp_path):
    cfg = config("RandomDP", dss_args={"fraction": 0.5}, ckpt={"dir": str(tmp_path)})
    cfg["train_args"]["results_dir"] = str(tmp_path)
    trainer = TrainClassifier(cfg)
    trainer.show_progress = False
    trainer.train()
    assert (trainer.plan.shape.n, trainer.plan.shape.n_validation) == (320, 0)  # 400 less a fifth; nothing reads V
    assert trainer.model.input_norm == 1.0
    x, y = trainer.data.train.batch(np.arange(320))
    strange = torch.as_tensor(trainer.data.train.file_rows() % 10 == 0)
    assert torch.isnan(x[strange]).all()
    assert torch.isfinite(x[~strange]).all()
    assert set(y.tolist()) == {0, 1}


def test_rows_of_a_validation_set_that_nothing_reads_are_in_d():
    rows = split_rows(50, {"validation_fraction": 0.0}, np.random.default_rng(0))
    assert [len(part) for part in rows] == [40, 0, 10]
    assert sorted(np.concatenate(rows).tolist()) == list(range(50))
    assert [len(part) for part in split_rows(50, {}, np.random.default_rng(0))] == [35, 5, 10]
    with pytest.raises(DataError, match="too few"):
        split_rows(9, {"test_fraction": 0.2}, np.random.default_rng(0))
    check_split({"validation_path": "v.csv", "validation_fraction": 0.0})
    with pytest.raises(ConfigError, match="a file of its own"):
        check_split({"validation_path": "v.csv", "validation_fraction": 0.1})


def test_keys_of_a_source_belong_to_it_alone():
    resolve(config(), plan=False)
    with pytest.raises(ConfigError, match=r"dataset\.cuont.*did you mean 'count'"):
        resolve(config(dataset={"cuont": 3}), plan=False)
    with pytest.raises(ConfigError, match=r"dataset\.cut_share"):
        resolve(config(dataset={"cut_share": 0.5}), plan=False)
    with pytest.raises(ConfigError, match=r"dataset\.count"):
        resolve(config_for("digits", "FullDP", dataset={"count": 3}, privacy={"epsilon": 1.0}), plan=False)
    with pytest.raises(ConfigError, match=r"dataset\.count = 0"):
        resolve(config(dataset={"count": 0}), plan=False)
    with pytest.raises(ConfigError, match=r"dataset\.feature"):
        resolve(config(dataset={"feature": "classimb"}), plan=False)
    with pytest.raises(ConfigError, match=r"model\.numclasses = 3: the data has 2 classes"):
        resolve(config(model={"numclasses": 3}), plan=False)
    with pytest.raises(MechanismError, match="already"):
        register_source(PointSource())


def test_splits_look_at_the_number_of_rows_alone():
    rows = split_rows(100, {}, np.random.default_rng(0))
    assert [len(part) for part in rows] == [70, 10, 20]
    assert sorted(np.concatenate(rows).tolist()) == list(range(100))
    assert all((a == b).all() for a, b in zip(rows, split_rows(100, {}, np.random.default_rng(0)), strict=True))
    own = split_rows(100, {"validation_path": "v.csv", "test_path": "t.csv"}, np.random.default_rng(0))
    assert [len(part) for part in own] == [100, 0, 0]
    with pytest.raises(DataError, match="3 records are too few"):
        split_rows(3, {}, np.random.default_rng(0))
    with pytest.raises(ConfigError, match=r"dataset\.test_fraction"):
        check_split({"test_fraction": 0.95})
    with pytest.raises(ConfigError, match="a file of its own"):
        check_split({"test_fraction": 0.1, "test_path": "t.csv"})


def test_a_ledger_is_bound_to_the_rows_and_not_to_a_folder():
    data = PointSource().build({"count": 100}, np.random.default_rng(0))
    other = PointSource().build({"count": 100}, np.random.default_rng(1))

    def binding(splits, built=True, **section):
        return data_binding({"dataset": {"name": "points", "count": 100, **section}}, 0, splits, built=built)

    assert binding(data, path="here/a.csv", datadir="x", cache=False) == binding(data, path="there/a.csv")
    assert binding(data, path="a.csv") != binding(data, path="b.csv")
    assert binding(data) != binding(other)
    assert binding(data, built=False) == binding(other, built=False)  # what a user hands over may call anything rows
