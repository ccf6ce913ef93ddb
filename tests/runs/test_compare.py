"""`cords-dp compare`: with and without privacy, with and without selection, and what that costs."""

from __future__ import annotations

import json

import pytest
from hospital import STAY, patients, write_csv

from cords_dp.cli import main
from cords_dp.config import config_for, load_config
from cords_dp.errors import ConfigError
from cords_dp.runs.compare import compare, variants_of
from cords_dp.training.resolve import resolve

QUICK = ["train_args.num_epochs=2", "privacy.accountant=rdp", "train_args.seed=0", "train_args.print_every=2"]


def variants(name, *overrides):
    config = load_config(name, [*QUICK, *overrides])
    return variants_of(config, resolve(config, plan=False))


def test_the_four_variants_differ_in_selection_and_in_the_budget_alone():
    found = variants("glister_dp_digits", "dss_args.mechanism=match", "privacy.validation_noise=20")
    assert list(found) == ["FullDP", "GLISTERDP", "FullDP, not private", "GLISTERDP, not private"]
    full, glister = found["FullDP"], found["GLISTERDP"]
    assert full["dss_args"]["compute_fraction"] == glister["dss_args"]["fraction"] == 0.3
    assert "mechanism" not in full["dss_args"]
    assert "validation_noise" not in full["privacy"]
    assert [found[name]["privacy"]["epsilon"] for name in found] == [3.0, 3.0, None, None]
    for section in ("dataset", "model", "optimizer", "train_args"):
        assert full[section] == glister[section]


def test_a_config_that_does_not_select_is_compared_with_glisterdp():
    found = variants("full_dp_digits")
    assert found["GLISTERDP"]["dss_args"]["fraction"] == 1.0
    resolve(found["GLISTERDP"], plan=False)


def test_a_config_without_a_budget_is_refused():
    with pytest.raises(ConfigError, match="private strategy and its budget"):
        variants("full_dp_digits", "privacy.epsilon=None")


def test_the_table_says_what_it_cost(tmp_path, capsys):
    command = ["compare", "glister_dp_digits", "--out", str(tmp_path), "--quiet"]
    assert main([*command, *(part for value in QUICK for part in ("--set", value))]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].split() == ["run", "accuracy", "loss", "ε"]
    assert "the 2 private runs read the same records" in text
    assert "protect nobody" in text
    facts = json.loads((tmp_path / "comparison.json").read_text())
    private = [row["epsilon"] for row in facts["runs"] if row["epsilon"] != "inf"]
    assert max(private) < facts["epsilon_together"] < sum(private)
    assert "NOT PRIVATE" in (tmp_path / "FullDP-not-private" / "privacy.md").read_text()


def test_a_regression_is_compared_without_selection_and_by_r2(tmp_path):
    """None of the mechanisms is proved for one."""
    write_csv(tmp_path / "clinic.csv", [{**row, "notes": ""} for row in patients(400)])
    dataset = {"path": str(tmp_path / "clinic.csv"), "schema": STAY, "datadir": str(tmp_path / "data")}
    config = config_for(
        "table", "FullDP", dataset=dataset, train_args={"num_epochs": 2, "device": "cpu"},
        privacy={"epsilon": 3.0, "accountant": "rdp"}, loss={"type": "MeanSquaredLoss"},
    )  # fmt: skip
    result = compare(config, tmp_path / "out", progress=False)
    assert list(result.rows) == ["FullDP", "FullDP, not private"]
    assert list(result.table()) == ["run", "R²", "RMSE", "loss", "ε"]
