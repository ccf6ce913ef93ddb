"""One config, one folder: what a run leaves there, and what it takes away."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from cords_dp.cli import main
from cords_dp.data.record_set import category_codes
from cords_dp.errors import ConfigError
from cords_dp.planning.statement import write_statement
from cords_dp.runs.result import published_rows
from cords_dp.runs.run import RunResult, run_and_hand_over, run_experiment
from cords_dp.training.resolve import resolve


def test_a_statement_never_stays_beside_another_run_s_model(make_config, tmp_path):
    """A run without privacy into the folder of a private one used to leave the private one's statement there."""
    published = make_config("RandomDP", dss_args={"publish_subset": True})
    run_experiment(published, tmp_path, progress=False)
    assert (tmp_path / "privacy.md").is_file()
    assert (tmp_path / "subset.json").is_file()
    run_experiment(make_config("Random"), tmp_path, progress=False)
    assert not (tmp_path / "privacy.md").exists()
    assert not (tmp_path / "privacy.json").exists()
    assert not (tmp_path / "subset.json").exists()
    assert (tmp_path / "model.pt").is_file()


def test_a_run_writes_its_statement_once_and_before_the_model(make_config, tmp_path, monkeypatch):
    run_experiment(make_config("RandomDP"), tmp_path, progress=False)  # an earlier one
    seen = []

    def noted(folder, report):
        seen.append((folder, (folder / "model.pt").exists()))
        return write_statement(folder, report)

    monkeypatch.setattr("cords_dp.training.handover.write_statement", noted)
    run_experiment(make_config("RandomDP", ckpt={"is_save": True}), tmp_path, progress=False)
    assert seen == [(tmp_path, False)]
    assert [path.parent for path in tmp_path.rglob("privacy.*")] == [tmp_path] * 3
    assert [path.parent for path in tmp_path.rglob("model.json")] == [tmp_path]


def test_whoever_runs_into_the_same_folder_is_told_that_both_are_paid_for(tmp_path, capsys):
    quick = ["--set", "train_args.num_epochs=2", "--set", "privacy.accountant=rdp", "--quiet"]
    command = ["run", "--config", "random_dp_digits", "--out", str(tmp_path), *quick]
    assert main(command) == 0
    assert capsys.readouterr().err == ""
    assert main(command) == 0
    assert "add up" in capsys.readouterr().err


def test_the_summary_names_the_guarantee_and_does_not_round_work_to_nothing():
    private = RunResult("digits", "FullDP", 1.0, 0, 0.5, 1.0, 2.99, 3.0, 1e-5, 12.04, 0.0, "runs/x")
    assert "runs/x/privacy.md" in private.text()
    assert "12.0 training, under 1 selecting" in private.text()
    plain = RunResult("digits", "Full", 1.0, 0, 0.5, 1.0, float("inf"), float("inf"), 0.0, 1.0, 0.0, "runs/x")
    assert "privacy.md" not in plain.text()


def test_the_summary_names_what_the_noise_leaves_nothing_of():
    lost, kept = {"value": None, "low": None, "high": None}, {"value": 0.5, "low": 0.4, "high": 0.6}
    metrics = {"auc": lost, "log_loss": kept, "released": {}}
    run = RunResult("table", "FullDP", 1.0, 0, float("nan"), 1.0, 2.9, 3.0, 1e-5, 1.0, 0.0, "runs/x", metrics=metrics)
    assert "lost in the noise: AUC; a larger test set" in run.text()


@pytest.mark.parametrize("strategy", ["RandomDP", "GLISTERDP"])
def test_a_published_subset_is_rows_of_the_published_set(make_config, tmp_path, strategy):
    """Numbers in D are places after a permutation, which mean nothing to whoever is given the file."""
    from sklearn.datasets import load_digits

    mechanism = {"mechanism": "top_k"} if strategy == "GLISTERDP" else {}
    config = make_config(strategy, dss_args={"publish_subset": True, **mechanism})
    trainer, _ = run_and_hand_over(config, tmp_path, progress=False)
    subset = json.loads((tmp_path / "subset.json").read_text())
    assert subset["records"] == "training records of digits in the publisher's order, from 0"
    rows, picked = subset["rows"], trainer.session.published_subset()
    assert rows == sorted(rows)
    ours = np.sort(trainer.data.train.batch(picked)[0].numpy(), axis=0)
    theirs = np.sort((load_digits().data[rows] / 16 - 0.3).astype(np.float32), axis=0)
    assert np.array_equal(ours, theirs)


def test_a_published_subset_is_rows_of_the_user_s_file(make_config, tmp_path):
    lines = [f"{i / 1000},{'yes' if i % 3 else 'no'}" for i in range(1000)]  # a row's value is its number
    (tmp_path / "mine.csv").write_text("a,b\n" + "\n".join(lines) + "\n")
    schema = {"target": {"name": "b", "classes": ["no", "yes"]}, "columns": {"a": {"range": [0, 1]}}}
    section = {"path": str(tmp_path / "mine.csv"), "schema": schema, "datadir": str(tmp_path)}
    config = make_config("RandomDP", "table", dataset=section, dss_args={"publish_subset": True})
    trainer, _ = run_and_hand_over(config, tmp_path / "run", progress=False)
    subset = json.loads((tmp_path / "run" / "subset.json").read_text())
    assert subset["records"] == "records of mine.csv in its order, from 0"
    numbers = trainer.data.train.batch(trainer.session.published_subset())[0][:, 0].numpy()  # in [−1, 1]
    assert sorted(np.round((numbers + 1) * 500).astype(int)) == subset["rows"]


def test_changed_copies_of_a_record_are_that_record(make_config, tmp_path):
    shifted = {"feature": "shift", "inverted_share": 0.5}
    run_experiment(make_config("RandomDP", dataset=shifted, dss_args={"publish_subset": True}), tmp_path)
    rows = json.loads((tmp_path / "subset.json").read_text())["rows"]
    assert 0 <= min(rows) <= max(rows) < 1437


def test_a_subset_of_a_folder_by_class_is_not_published(make_config, tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "1.png").write_bytes(b"")
    config = make_config("RandomDP", "folder", dataset={"path": str(tmp_path / "photos")})
    config["dss_args"]["publish_subset"] = True
    with pytest.raises(ConfigError, match="tell labels"):
        run_experiment(config, tmp_path / "run", progress=False)


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("digits", {"feature": "mildimb"}),
        ("digits", {"feature": "classimb", "classimb_ratio": 0.5}),
        ("digits", {"feature": "classimb", "classimb_ratio": 0.5, "balanced_validation": True}),
        ("digits", {"feature": "shift", "cut_classes": [1, 3], "cut_share": 0.05}),
        ("uci_adult", {"cut_column": "sex", "cut_values": ["Female"], "cut_share": 0.05}),
    ],
)
def test_rows_of_records_that_were_kept_for_what_they_hold_are_not_published(make_config, tmp_path, name, cut):
    """Where nine tenths of a class are left out, a row of the published set that is in D is hardly of that class."""
    config = make_config("RandomDP", name, dataset={**cut, "datadir": str(tmp_path)})
    resolve(config, plan=False)  # without publishing all is well
    config["dss_args"]["publish_subset"] = True
    with pytest.raises(ConfigError, match="tell"):
        resolve(config, plan=False)


def test_a_trainer_does_not_tell_such_rows_either(train):
    trainer = train("RandomDP", dataset={"feature": "mildimb"})
    with pytest.raises(ConfigError, match="tell"):
        published_rows(trainer.session)


def test_the_statement_says_what_is_taken_as_public_of_published_rows(make_config, tmp_path):
    run_experiment(make_config("RandomDP", dss_args={"publish_subset": True}), tmp_path, progress=False)
    assert "that it is in D is taken as public" in (tmp_path / "privacy.md").read_text()


def _patients(tmp_path, **training):
    rng = np.random.default_rng(0)
    age, sex = rng.integers(18, 90, 1200), rng.choice(["f", "m"], 1200)
    ill = np.where(age + 8 * (sex == "m") + rng.normal(0, 10, 1200) > 80, "yes", "no")
    lines = [f"{a},{s},{t}" for a, s, t in zip(age, sex, ill, strict=True)]
    (tmp_path / "patients.csv").write_text("age,sex,ill\n" + "\n".join(lines) + "\n")
    schema = {
        "target": {"name": "ill", "classes": ["no", "yes"]},
        "columns": {"age": {"range": [0, 100]}, "sex": {"categories": ["f", "m"]}},
    }
    section = {"path": str(tmp_path / "patients.csv"), "schema": schema, "datadir": str(tmp_path), "test": "public"}
    return {"dataset": section, "train_args": training}


def test_a_run_ends_with_the_numbers_that_a_decision_needs(make_config, tmp_path):
    config = make_config("FullDP", "table", **_patients(tmp_path, metrics_by="sex"))
    trainer, result = run_and_hand_over(config, tmp_path / "run", progress=False)
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    x, y = trainer.data.test.batch(range(len(trainer.data.test)))
    proba = torch.softmax(trainer.model(x), dim=1).detach().numpy()
    assert found["metrics"]["auc"] == pytest.approx(roc_auc_score(y, proba[:, 1]), abs=1e-6)
    assert found["metrics"]["accuracy"] == pytest.approx(found["accuracy"])
    assert found["metrics"]["base_rate"] == pytest.approx(max((y == 0).float().mean(), (y == 1).float().mean()))
    sexes = category_codes(trainer.data.test, "sex")[0]
    assert [row["records"] for row in found["metrics"]["by_group"]] == np.bincount(sexes).tolist()
    assert found["classes"] == ["no", "yes"]
    for words in ("always the most frequent class", "balanced accuracy", "AUC", "recall", "group"):
        assert words in result.text()
    last = pd.read_csv(tmp_path / "run" / "metrics.csv").iloc[-1]
    assert last["auc"] == pytest.approx(found["metrics"]["auc"])
    assert "AUC" in (tmp_path / "run" / "README.md").read_text()


def test_metrics_are_chosen_and_checked(make_config, tmp_path):
    run_experiment(make_config("FullDP", train_args={"metrics": ["balanced_accuracy"]}), tmp_path, progress=False)
    assert set(json.loads((tmp_path / "result.json").read_text())["metrics"]) == {"balanced_accuracy"}
    with pytest.raises(ConfigError, match=r"train_args\.metrics"):
        resolve(make_config("FullDP", train_args={"metrics": ["rmse"]}))  # of a regression
    with pytest.raises(ConfigError, match="have columns"):
        resolve(make_config("FullDP", train_args={"metrics_by": "sex"}))
    with pytest.raises(ConfigError, match="categorical column of the schema: sex"):
        resolve(make_config("FullDP", "table", **_patients(tmp_path, metrics_by="age")))


def test_a_threshold_is_chosen_from_a_run_and_used_in_predictions(make_config, tmp_path, capsys):
    run_experiment(make_config("FullDP", "table", **_patients(tmp_path)), tmp_path / "run", progress=False)
    assert main(["threshold", str(tmp_path / "run"), "--recall", "0.9", "--json"]) == 0
    chosen = json.loads(capsys.readouterr().out)
    assert chosen["positive"] == "yes"
    assert chosen["recall"] >= 0.9
    predict = ["predict", str(tmp_path / "run"), "--input", str(tmp_path / "patients.csv"), "--quiet"]
    out = tmp_path / "predictions.csv"
    assert main([*predict, "--out", str(out), "--threshold", str(chosen["threshold"])]) == 0
    frame = pd.read_csv(out)
    clear = (frame["p_yes"] - chosen["threshold"]).abs() > 1e-5  # the file has six digits
    assert ((frame["prediction"] == "yes") == (frame["p_yes"] >= chosen["threshold"]))[clear].all()
    assert main(["threshold", str(tmp_path / "run"), "--cost", "5"]) != 0
    assert main([*predict, "--threshold", "2"]) != 0
