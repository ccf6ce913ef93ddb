"""A regression on a table: trained on [−1, 1], told in the target's own unit, measured by RMSE and R²."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch
from cords_style import made_private, regression_config
from hospital import STAY, patients, write_csv
from sklearn.metrics import r2_score
from worlds import together

from cords_dp import load_model, tune
from cords_dp.config import config_for
from cords_dp.errors import ConfigError
from cords_dp.models.losses import RecordMSELoss
from cords_dp.processes import current_world
from cords_dp.report.page import write_page
from cords_dp.report.tables import mean_table
from cords_dp.runs.run import run_experiment
from cords_dp.training.metrics import evaluate_regression
from cords_dp.training.trainer import TrainClassifier

CLINIC, NEW = patients(1200), patients(300, seed=1)
TRUE = np.array([float(row["stay"]) for row in NEW])


def config(folder, schema=STAY, **changes):
    flat = [{**row, "notes": ""} for row in CLINIC]  # in a run a line is a record
    write_csv(folder / "clinic.csv", flat)
    write_csv(folder / "new.csv", [{**row, "notes": ""} for row in NEW])
    dataset = {"path": str(folder / "clinic.csv"), "test_path": str(folder / "new.csv"), "schema": schema,
               "datadir": str(folder / "data"), "test": "public"}  # fmt: skip
    training = {"num_epochs": 8, "print_every": 4, "device": "cpu", "seed": 0, "results_dir": str(folder / "r")}
    privacy = {"epsilon": 3.0, "accountant": "rdp", "reproducible_noise": True}
    return config_for("table", "FullDP", dataset=dataset, train_args=training, privacy=privacy,
                      loss={"type": "MeanSquaredLoss"}, ckpt={"dir": str(folder / "r")}, **changes)  # fmt: skip


@pytest.fixture(scope="module")
def stay_run(tmp_path_factory):
    root = tmp_path_factory.mktemp("stay")
    return root, run_experiment(config(root), root / "run", progress=False)


def test_predictions_are_in_the_target_s_unit(stay_run):
    root, _ = stay_run
    frame = load_model(root / "run").predict_file(root / "new.csv", out=root / "predictions.csv")
    days = frame["prediction"].to_numpy()
    assert days.min() >= 0
    assert 15 < days.max() <= 60
    assert r2_score(TRUE, days) > 0.3
    with open(root / "predictions.csv", newline="") as file:
        assert [float(row["prediction"]) for row in csv.DictReader(file)] == pytest.approx(days, rel=1e-5)


def test_a_batch_of_records_is_predicted_in_the_target_s_unit_too(stay_run):
    root, _ = stay_run
    model = load_model(root / "run")
    x, _ = model._read(root / "new.csv").batch(np.arange(5))
    predicted = model.predict(x.numpy())
    assert predicted.shape == (5,)
    assert predicted == pytest.approx(model.predict_file(root / "new.csv")["prediction"][:5])


def test_errors_are_those_of_the_predictions(stay_run):
    """RMSE in days, and R², as anybody would compute them from what is predicted."""
    root, result = stay_run
    days = load_model(root / "run").predict_file(root / "new.csv")["prediction"].to_numpy()
    assert result.rmse == pytest.approx(np.sqrt(np.mean((days - TRUE) ** 2)), rel=1e-4)
    assert result.r2 == pytest.approx(r2_score(TRUE, days), abs=1e-4)
    assert result.loss < 0.2  # in the unit that is trained on


def test_errors_stand_where_a_classifier_s_accuracy_stands(stay_run):
    root, result = stay_run
    shown = result.text()
    assert f"test RMSE       {result.rmse:.4g}, in the target's unit\ntest R²         {result.r2:.4f}\n" in shown
    written = json.loads((root / "run" / "result.json").read_text())
    assert (written["rmse"], written["r2"]) == (result.rmse, result.r2)
    with open(root / "run" / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:6] == ["epoch", "rmse", "r2", "loss", "seconds", "epsilon"]
    assert float(rows[-1]["rmse"]) == result.rmse
    (log,) = (root / "run").rglob("*.log")
    said = log.read_text()
    assert "WARNING" not in said
    assert f"Test RMSE: {result.rmse:.2f} , Test R2: {result.r2:.2f}" in said
    page = write_page(root / "run").read_text()
    assert "RMSE, in the target" in page
    for text in (shown, json.dumps(written), ",".join(rows[0]), said, page):
        assert "ccuracy" not in text


def test_train_returns_r2_where_it_returns_a_classifier_s_accuracies(tmp_path):
    trainer = TrainClassifier(config(tmp_path))
    trainer.show_progress = False
    trained, validated, tested, best, seconds = trainer.train()
    assert (trained, validated) == ([], [])
    assert tested == trainer.history.column("tst_r2")
    assert best[-1] == max(tested)
    assert len(seconds) == 2


def test_errors_of_private_sets_are_not_measured(tmp_path):
    cfg = config(tmp_path)
    cfg["train_args"]["print_args"] = ["trn_loss", "trn_acc", "val_loss", "val_acc", "tst_loss", "tst_acc"]
    trainer = TrainClassifier(cfg)
    trainer.show_progress = False
    trainer.train()
    measured = {name for row in trainer.history.rows for name in row if name.startswith(("trn", "val", "tst"))}
    assert measured == {"tst_loss", "tst_rmse", "tst_r2"}


def test_a_target_on_a_logarithmic_scale(tmp_path):
    schema = {**STAY, "target": {"name": "stay", "range": [0, 60], "log": True}}
    result = run_experiment(config(tmp_path, schema), tmp_path / "run", progress=False)
    days = load_model(tmp_path / "run").predict_file(tmp_path / "new.csv")["prediction"].to_numpy()
    assert result.rmse == pytest.approx(np.sqrt(np.mean((days - TRUE) ** 2)), rel=1e-4)
    assert result.r2 > 0.2


def test_data_that_is_handed_over_is_measured_as_it_is(tmp_path):
    """Several targets at once: R² is the mean of theirs."""
    x = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    y = torch.stack([x[:, 0], 10 * x[:, 1] + 5], dim=1)
    parts = [torch.utils.data.TensorDataset(x[a:b], y[a:b]) for a, b in ((0, 140), (140, 170), (170, 200))]
    private = made_private(regression_config("my table", model={"numclasses": 2}), "FullDP", tmp_path)
    trainer = TrainClassifier(private)
    trainer.show_progress = False
    trainer.train(trainset=parts[0], validset=parts[1], testset=parts[2], num_cls=2)
    with torch.no_grad():
        predicted, true = trainer.model.eval()(x[170:]).numpy(), y[170:].numpy()
    assert trainer.history.last("tst_rmse") == pytest.approx(np.sqrt(np.mean((predicted - true) ** 2)), rel=1e-4)
    assert trainer.history.last("tst_r2") == pytest.approx(r2_score(true, predicted), rel=1e-4)


def test_processes_measure_together(monkeypatch):
    """One of them has no record at all."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(30, 2)).astype(np.float32))
    y = x[:, 0] + 1000 + torch.from_numpy(rng.normal(size=30).astype(np.float32))
    model = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(model.weight, 0.5)
    torch.nn.init.constant_(model.bias, 1000.0)

    def measured(rows):
        batches = [(x[part], y[part]) for part in rows]
        return evaluate_regression(model, batches, RecordMSELoss(), "cpu", in_unit=lambda v: 3 * v,
                                   world=current_world())  # fmt: skip

    alone = measured([slice(0, 30)])
    parts = [[slice(0, 7), slice(7, 20)], [slice(20, 30)], []]
    for one in together(monkeypatch, 3, lambda rank: measured(parts[rank])):
        assert one == pytest.approx(alone)
    with torch.no_grad():
        assert alone[2] == pytest.approx(r2_score(y.numpy(), model(x)[:, 0].numpy()), rel=1e-4)


def test_targets_that_are_all_equal_have_no_r2():
    model = torch.nn.Linear(2, 1)
    found = evaluate_regression(model, [(torch.ones(4, 2), torch.zeros(4))], RecordMSELoss(), "cpu", in_unit=np.asarray)
    assert np.isnan(found[2])


# --- the planned learning rate -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "epochs"), [(1.0, 8), (8.0, 8), (8.0, 30)])
def test_a_planned_learning_rate_learns(tmp_path, epsilon, epochs):
    cfg = config(tmp_path)
    cfg["privacy"]["epsilon"], cfg["train_args"]["num_epochs"] = epsilon, epochs
    assert run_experiment(cfg, tmp_path / "run", progress=False).r2 > 0.25


def planned(tmp_path, **sections):
    cfg = config(tmp_path)
    cfg["train_args"]["num_epochs"] = 1
    for name, section in sections.items():
        cfg[name].update(section)
    trainer = TrainClassifier(cfg)
    trainer.show_progress = False
    trainer.train()
    return trainer.run.learning_rate, trainer.plan


def test_noise_adds_up_to_a_fixed_amount_of_the_target_s_range(tmp_path):
    rate, plan = planned(tmp_path, privacy={"epsilon": 0.3})
    noise = plan.sigma * plan.privacy.max_grad_norm * plan.shape.steps**0.5 / plan.shape.batch_size / (1 - 0.9)
    assert rate * noise == pytest.approx(0.1)
    assert planned(tmp_path, privacy={"epsilon": 0.3}, optimizer={"lr_scale": 2.0})[0] == pytest.approx(2 * rate)


def test_a_rate_is_half_of_what_is_stable_where_there_is_little_noise(tmp_path):
    """Records of a table are no longer than 1, with the bias √2: the curvature of a squared error is 4 at most."""
    calm = {"epsilon": 400.0}
    assert planned(tmp_path, privacy=calm)[0] == pytest.approx(1.9 / 4)
    assert planned(tmp_path, privacy=calm, optimizer={"momentum": 0.0})[0] == pytest.approx(1 / 4)
    assert planned(tmp_path, privacy=calm, optimizer={"nesterov": True})[0] == pytest.approx(1.9 / 4 / 2.8)
    automatic = {**calm, "clipping": "automatic"}
    assert planned(tmp_path, privacy=automatic)[0] == pytest.approx(1.9 / (2**0.5 / 0.1))


def test_a_regression_is_not_tuned_by_accuracy(tmp_path):
    with pytest.raises(ConfigError, match="--metric"):
        tune(config(tmp_path), {"optimizer.lr": "loguniform(0.01, 1)"}, out=tmp_path / "tuned", metric="accuracy")


def test_a_sweep_s_table_shows_errors():
    import pandas as pd

    runs = pd.DataFrame({"lr": [1, 1, 2], "seed": [0, 1, 0], "rmse": [4.0, 6.0, 7.25], "r2": [0.5, 0.7, 0.25],
                         "train_seconds": 1.0, "selection_seconds": 0.0})  # fmt: skip
    table = mean_table(runs, ["lr"])
    assert table["rmse"].tolist() == ["5 ± 1.4", "7.25"]
    assert table["r2"].tolist() == ["0.6 ± 0.14", "0.25"]
    assert table["runs"].tolist() == [2, 1]
