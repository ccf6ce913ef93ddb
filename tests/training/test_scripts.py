"""CORDS' scripts and notebooks with one import changed: what they set on ``cfg`` until ``train()`` counts."""

from __future__ import annotations

import ast
import copy
import json
import re

import numpy as np
import pytest
from cords_style import CHECKOUT, cords_config, needs_checkout
from dotmap import DotMap
from torch import nn

from cords_dp import TrainClassifier
from cords_dp import cords as toolkit
from cords_dp.data.published import DATASETS, DatasetInfo
from cords_dp.errors import ConfigError, ConfigFileError


class TinyNet(nn.Module):
    """Stands in for ResNet18 where 300 epochs are trained: CORDS' contract, one pooled layer."""

    def __init__(self, num_classes=10):
        super().__init__()
        self.linear = nn.Linear(3 * 16, num_classes)

    def forward(self, x, last=False, freeze=False):
        embedding = nn.functional.avg_pool2d(x, 8).flatten(1)
        out = self.linear(embedding)
        return (out, embedding) if last else out

    def get_embedding_dim(self):
        return 48


@pytest.fixture
def small_cifar(tmp_path, monkeypatch):
    """200 made-up images under CIFAR-10's name in ../data, seen from the folder that scripts run in."""
    rng = np.random.default_rng(0)
    y = np.arange(250) % 10
    x = (rng.integers(0, 90, (250, 3, 32, 32)) + 16 * y[:, None, None, None]).astype(np.uint8)
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "cifar10.npz", x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
    known = DATASETS["cifar10"]
    monkeypatch.setitem(DATASETS, "cifar10", DatasetInfo(200, 50, known.shape, 10, known.mean, known.std))
    monkeypatch.setattr("cords_dp.cords.cords_models.ResNet18", TinyNet)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


# --- the flagship network -------------------------------------------------------------------------------------------


def test_cords_config_of_resnet18_trains_with_the_default_seed(small_cifar, monkeypatch):
    """CORDS' config_glister_cifar10.py with the word changed, on 200 images. It was refused: a mode looked wrong."""
    monkeypatch.undo()
    monkeypatch.chdir(small_cifar)
    known = DATASETS["cifar10"]
    monkeypatch.setitem(DATASETS, "cifar10", DatasetInfo(200, 50, known.shape, 10, known.mean, known.std))
    config = cords_config(
        "cifar10",
        dss_args={"type": "GLISTERDP", "select_every": 1},
        train_args={"num_epochs": 1, "device": "cpu"},
        privacy={"epsilon": 8.0, "accountant": "rdp"},
        dataloader={"batch_size": 10},
    )
    trainer = TrainClassifier(config)
    trainer.train()
    assert type(trainer.model).__name__ == "ResNet"
    assert trainer.ledger.notes["gradient mode"] == "bookkeeping"
    assert 0 < trainer.spent().epsilon <= 8.0


# --- a script of ours, in the manner of CORDS' ---------------------------------------------------------------------


def script_config(**changes):
    private = {"privacy": {"epsilon": 3.0, "accountant": "rdp"}, "dss_args": {"type": "GLISTERDP"}}
    return cords_config("cifar10", **{**private, **changes})


def test_what_is_set_after_construction_counts(small_cifar, tmp_path):
    trainer = TrainClassifier(DotMap(script_config()))
    trainer.cfg.train_args.num_epochs = 4
    trainer.cfg.train_args.print_every = 2
    trainer.cfg.train_args.device = "cpu"
    trainer.cfg.train_args.results_dir = str(tmp_path / "elsewhere")
    trainer.cfg.dss_args.fraction = 0.5
    trainer.cfg.dss_args.select_every = 1
    trainer.cfg.dss_args.kappa = 0.25
    trainer.cfg.dataset.name = "cifar10"
    trainer.cfg.model.numclasses = 10
    before = copy.deepcopy(trainer.cfg.toDict())
    trainer.train()
    shape = trainer.plan.shape
    assert [row["epoch"] for row in trainer.history.rows] == [2, 4]
    assert (shape.n, shape.k, len(shape.epochs)) == (180, 90, 4)
    assert list((tmp_path / "elsewhere").rglob("cifar10_GLISTERDP.log"))
    assert not list(small_cifar.rglob("*.log"))
    assert trainer.cfg.toDict() == before  # nothing is written into the user's config


def test_the_word_itself_may_be_changed_on_the_trainer(small_cifar):
    trainer = TrainClassifier(DotMap(cords_config("cifar10", dss_args={"type": "Random"})))
    trainer.cfg.dss_args.type = "RandomDP"
    trainer.cfg.privacy.epsilon = 2.0
    trainer.cfg.privacy.accountant = "rdp"
    trainer.cfg.train_args.num_epochs = 1
    trainer.cfg.dss_args.fraction = 0.5
    trainer.train()
    assert 0 < trainer.spent().epsilon <= 2.0


def test_training_twice_is_two_runs(small_cifar, tmp_path):
    trainer = TrainClassifier(DotMap(script_config(train_args={"num_epochs": 1}, dss_args={"type": "FullDP"})))
    plans, ledgers = [], []
    for epsilon in (2.0, 1.0):
        trainer.cfg.privacy.epsilon = epsilon
        trainer.train()
        plans.append(trainer.plan)
        ledgers.append(trainer.ledger)
        assert trainer.spent().epsilon <= epsilon
    assert plans[0].sigma < plans[1].sigma
    assert ledgers[0].id != ledgers[1].id


def test_a_path_is_enough(small_cifar):
    path = small_cifar / "config_random.py"
    path.write_text(f"config = {script_config(dss_args={'type': 'RandomDP', 'fraction': 0.5})!r}\n")
    for given in (str(path), path):
        trainer = TrainClassifier(given)
        trainer.cfg.train_args.num_epochs = 1
        trainer.train()
        assert trainer.plan.privacy.epsilon == 3.0
    with pytest.raises(ConfigFileError, match="no config file"):
        TrainClassifier("no/such/config.py")


def test_a_section_that_cords_ignores_is_told_and_ignored(small_cifar, capsys):
    """CORDS' benchmark notebook writes ``cfg.dss_strategy``, which nothing reads."""
    trainer = TrainClassifier(DotMap(script_config(dss_args={"type": "RandomDP", "fraction": 0.5})))
    trainer.cfg.dss_strategy.fraction = 0.9
    trainer.cfg.dss_strategy.select_every = 10
    trainer.cfg.train_args.num_epochs = 1
    trainer.train()
    assert trainer.plan.shape.k == 100
    assert "no section 'dss_strategy'" in capsys.readouterr().out
    trainer.cfg.dss_strateggy.fraction = 0.9  # any other is a mistake
    with pytest.raises(ConfigError, match="dss_strateggy"):
        trainer.train()


def test_looking_at_a_section_that_is_not_there_does_no_harm(small_cifar):
    """A DotMap makes an empty section of every name that is asked for."""
    trainer = TrainClassifier(DotMap(script_config(dss_args={"type": "RandomDP", "fraction": 0.5})))
    assert not trainer.cfg.hyperparameters
    trainer.cfg.train_args.num_epochs = 1
    trainer.train()


def test_is_reg_beside_classes_is_told_and_the_loss_decides(small_cifar, capsys):
    """CORDS' run_cifar10_glister.py sets ``is_reg = True`` for CIFAR-10."""
    trainer = TrainClassifier(DotMap(script_config(dss_args={"type": "RandomDP", "fraction": 0.5})))
    trainer.cfg.is_reg = True
    trainer.cfg.train_args.num_epochs = 1
    trainer.train()
    assert "is_reg = True is not used" in capsys.readouterr().out
    assert trainer.history.last("tst_acc") > 0


# --- CORDS' own, where a checkout is at hand ----------------------------------------------------------------------

TRAIN_IMPORT = "from train_sl import TrainClassifier"


def run_as_script(text: str, names: dict | None = None) -> dict:
    assert TRAIN_IMPORT in text or names is not None
    names = {"__name__": "__main__"} if names is None else names
    exec(compile(text.replace(TRAIN_IMPORT, "from cords_dp import TrainClassifier"), "script", "exec"), names)
    return names


def cells(notebook: str) -> list[str]:
    """The cells that are Python: not those with shell commands or magic, nor one with a syntax error."""
    found = json.loads((CHECKOUT / notebook).read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]
    return [source for source in sources if is_python(source)]


def is_python(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return "google.colab" not in source and "tensorflow" not in source


@needs_checkout
@pytest.mark.parametrize("private", [False, True])
def test_cords_example_script(small_cifar, private):
    (small_cifar / "configs").symlink_to(CHECKOUT / "configs")
    script = (CHECKOUT / "examples/SL/image_classification/python_files/run_cifar10_glister.py").read_text()
    if private:  # and the word
        word = 'classifier.cfg.dss_args.type = "GLISTERDP"\nclassifier.cfg.privacy.epsilon = 3.0\n'
        word += "classifier.cfg.dataloader.batch_size = 9\n"  # of 18 records
        script = script.replace("classifier.train()", word + "classifier.train()")
    names = run_as_script(script)
    trainer = names["classifier"]
    assert len(trainer.history.rows) == 300
    assert (trainer.plan is not None) == private
    assert trainer.run.config["dss_args"]["fraction"] == 0.1


@needs_checkout
def test_cords_glister_notebook(small_cifar):
    (small_cifar / "configs").symlink_to(CHECKOUT / "configs")
    names: dict = {}
    notebook = "examples/SL/image_classification/python_notebooks/cords_cifar10_glister_train.ipynb"
    for cell in cells(notebook):
        run_as_script(cell, names)
    assert len(names["glister_trn"].history.rows) == 300


@needs_checkout
def test_every_cell_of_cords_benchmark(small_cifar, capsys):
    """Paths and the number of epochs are the reader's; two of its config files are in no checkout."""
    names: dict = {}
    ran, absent = 0, 0
    for cell in cells("benchmarks/SL/CORDS_SL_CIFAR10_benchmark.ipynb"):
        cell = cell.replace("/content/cords/", f"{CHECKOUT}/").replace("/content/drive/MyDrive", str(small_cifar))
        cell = re.sub(r"num_epochs = \d+", "num_epochs = 2", cell)
        if re.search(r'"(configs/config_full|.*config_randomol)', cell):
            absent += 1
            cell = re.sub(r'"[^"]*config_\w+\.py"', f'"{CHECKOUT}/configs/SL/config_full_cifar10.py"', cell)
        run_as_script(cell, names)
        ran += 1
    trained = [value for value in names.values() if isinstance(value, TrainClassifier)]
    assert len(trained) == 13
    assert all(trainer.history.rows for trainer in trained)
    assert (ran, absent) == (40, 2)
    assert "no section 'dss_strategy'" in capsys.readouterr().out


@needs_checkout
@pytest.mark.skipif(toolkit.IS_CHECKOUT, reason="the imported checkout of CORDS has newer loaders than its notebook")
def test_cords_custom_loop_runs_once_cords_dp_is_imported(small_cifar, monkeypatch):
    """Without privacy, as it is: CORDS' imports of what no longer exists are mended by ours."""
    from cords_dp.data.build import build_dataset

    data = build_dataset(cords_config("cifar10"), np.random.default_rng(0))
    monkeypatch.setattr("cords.utils.data.datasets.SL.gen_dataset", lambda *_, **__: data)
    names: dict = {"__name__": "notebook"}
    for cell in cells("examples/SL/image_classification/python_notebooks/CORDS_SL_CIFAR10_Custom_Train.ipynb"):
        cell = re.sub(r"num_epochs ?= ?300", "num_epochs=2", cell).replace("'cuda'", "'cpu'")
        exec(compile(cell, "notebook", "exec"), names)
    assert len(names["tst_acc"]) == 2
