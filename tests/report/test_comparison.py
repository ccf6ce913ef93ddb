"""Runs side by side: what tells them apart, their spread, and what all of them cost together."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest
import yaml

from cords_dp.accounting import Entry, PoissonGaussian, epsilon_bound
from cords_dp.planning.statement import rounded_up
from cords_dp.report.comparison import (
    best_first,
    comparison_html,
    comparison_table,
    cost_together,
    differences,
    gathered,
)
from cords_dp.report.page import write_page

TRAINING = PoissonGaussian(2.0, 0.1, 50)


@pytest.fixture
def folder_of(tmp_path):
    """Write the files of a run that a report reads."""

    def write(
        name, *, accuracy=0.5, strategy="FullDP", seed=0, epsilon=3.0, data="digits", config=None, on="D", unit="record"
    ):
        folder = tmp_path / "all" / name
        folder.mkdir(parents=True)
        private = math.isfinite(epsilon)
        spent = epsilon_bound([TRAINING], 1e-5, "quick").epsilon
        result = {"dataset": data, "strategy": strategy, "seed": seed, "accuracy": accuracy, "train_seconds": 3.0,
                  "epsilon": spent if private else None, "delta": 1e-5}  # fmt: skip
        (folder / "result.json").write_text(json.dumps(result))
        (folder / "config.yaml").write_text(
            yaml.safe_dump({"dss_args": {"type": strategy, **(config or {})}, "privacy": {"epsilon": epsilon}})
        )
        report = {"statement": "It is private.", "private": private}
        if private:
            entries = [Entry(on, "training", TRAINING).to_dict()]
            report |= {"unit": f"one {unit} of the training set D", "epsilon": spent, "delta": 1e-5}
            report |= {"ledger": {"entries": entries}}
        (folder / "privacy.json").write_text(json.dumps(report))
        return folder

    return write


def test_kinds_are_told_apart_by_what_differs_but_seeds_and_places():
    first = {"dss_args": {"type": "GLISTERDP", "fraction": 0.3}, "train_args": {"seed": 1, "results_dir": "a"}}
    second = {"dss_args": {"type": "GLISTERDP", "fraction": 0.1}, "train_args": {"seed": 2, "results_dir": "b"}}
    assert differences([first, second]) == [{"fraction": 0.3}, {"fraction": 0.1}]
    assert differences([first, {**first, "train_args": {"seed": 3}}]) == [{}, {}]


def test_kinds_that_differ_in_a_list_can_be_grouped():
    cut, whole = ({"dss_args": {"type": "FullDP"}, "dataset": {"cut_classes": c}} for c in ([1, 3], None))
    assert differences([cut, whole]) == [{"cut_classes": "1, 3"}, {"cut_classes": ""}]


def test_settings_of_training_tell_runs_of_one_strategy_apart_where_nothing_else_does():
    rates = [{"dss_args": {"type": "FullDP"}, "optimizer": {"lr": lr}} for lr in (0.1, 1.0)]
    assert differences(rates) == [{"lr": 0.1}, {"lr": 1.0}]


def test_the_table_has_the_best_first_and_no_spread_of_one_seed(folder_of):
    folders = [folder_of("a", accuracy=0.2), folder_of("b", accuracy=0.8, strategy="GLISTERDP"),
               folder_of("c", accuracy=0.6, strategy="GLISTERDP", seed=1)]  # fmt: skip
    frame, by = gathered(folders)
    table = comparison_table(frame, by, ["accuracy"])
    assert table["strategy"].tolist() == ["GLISTERDP", "FullDP"]
    assert table["accuracy, %"].tolist() == ["70.00 ± 14.14", "20.00"]
    assert best_first(frame, by)["strategy"].tolist() == ["GLISTERDP", "GLISTERDP", "FullDP"]


def test_an_error_is_better_where_it_is_lower():
    rows = [{"strategy": name, "seed": 0, "rmse": rmse, "ε of a run": 1.0, "seconds": 1.0, "folder": ""}
            for name, rmse in (("worse", 3.0), ("better", 2.0))]  # fmt: skip
    assert comparison_table(pd.DataFrame(rows), ["strategy"], ["rmse"])["strategy"].tolist() == ["better", "worse"]


def test_a_run_without_privacy_is_named_so_and_its_budget_stays_the_allowed_one(folder_of):
    frame, by = gathered([folder_of("private"), folder_of("open", epsilon=math.inf)])
    table = comparison_table(frame, by, ["accuracy"])
    assert table["ε allowed"].tolist() == [3.0, "no limit"]
    assert table["ε of a run"].tolist()[1] == "none"
    assert "not private" in write_page(Path(frame["folder"][0]).parent).read_text()


def runs_of(**metrics):
    """Two kinds of runs whose metrics are those given, one value each."""
    rows = [
        {"strategy": name, "seed": 0, **{key: values[place] for key, values in metrics.items()}, "ε of a run": 1.0,
         "seconds": 1.0, "folder": ""}
        for place, name in enumerate(("FullDP", "GLISTERDP"))
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_the_base_rate_is_a_sentence_and_few_metrics_stand_first():
    measured = {"accuracy": (0.9, 0.8), "balanced_accuracy": (0.6, 0.7), "auc": (0.8, 0.9), "log_loss": (0.3, 0.4)}
    page = comparison_html(runs_of(**measured, base_rate=(0.928, 0.928)), ["strategy"])
    first, folded, rest = page.partition("<details><summary>Other metrics")
    assert folded
    assert "Always the most frequent class would reach 92.80 %." in first
    assert "log loss" not in first
    assert "log loss" in rest
    assert "base rate" not in page
    assert "±" not in page, "one seed has no spread"


def test_base_rates_that_differ_are_a_column():
    page = comparison_html(runs_of(accuracy=(0.9, 0.8), base_rate=(0.9, 0.7)), ["strategy"])
    assert "would reach" not in page
    assert "base rate" in page.partition("Other metrics")[2]


def test_metrics_that_are_folded_keep_the_order_of_the_first():
    frame = runs_of(accuracy=(0.8, 0.9), log_loss=(0.1, 0.5))
    table = comparison_table(frame, ["strategy"], ["log_loss"], first="accuracy", costs=False)
    assert table["strategy"].tolist() == ["GLISTERDP", "FullDP"]
    assert "ε of a run" not in table


def test_nothing_measured_is_said(folder_of):
    folders = [folder_of("a", accuracy=None), folder_of("b", accuracy=None, seed=1)]
    assert "No run has measured anything" in comparison_html(*gathered(folders))


def test_the_cost_of_all_runs_is_that_of_all_their_charges(folder_of):
    (sentence,) = cost_together([folder_of(str(seed), seed=seed) for seed in range(4)])
    expected = epsilon_bound([TRAINING.with_count(200)], 1e-5, "quick").epsilon
    one = epsilon_bound([TRAINING], 1e-5, "quick").epsilon
    assert one < expected < 4 * one
    assert f"at most ε = {rounded_up(expected)} at δ = 1e-05" in sentence
    assert f"ε = {rounded_up(4 * one)} at δ = 4e-05" in sentence


def test_a_record_that_changes_sides_pays_in_every_run(folder_of):
    """D of one run and V of another may hold the same record: nothing is halved by that."""
    (sides,) = cost_together([folder_of("a"), folder_of("b", on="V")])
    expected = epsilon_bound([TRAINING.with_count(100)], 1e-5, "quick").epsilon
    assert f"at most ε = {rounded_up(expected)}" in sides


def test_records_and_owners_are_not_added_up(folder_of):
    """Replacing one of an owner's records costs two steps of zero-out: no record pays what an owner pays."""
    owners = [folder_of(name, unit="owner with all of its records") for name in "ab"]
    (sentence,) = cost_together(owners)
    assert "an owner that each of the 2 private runs" in sentence
    both = cost_together([*owners, folder_of("c"), folder_of("d")])
    assert len(both) == 3
    assert all("each of the 2 private runs" in sentence for sentence in both[:2])
    assert "do not add up" in both[2]


def test_other_data_and_runs_without_privacy_are_kept_apart(folder_of):
    folders = [folder_of("a"), folder_of("b", data="other"), folder_of("c", epsilon=math.inf)]
    (sentence,) = cost_together(folders)
    assert sentence.startswith("1 run without privacy")


def test_a_statement_that_cannot_be_composed_is_added_up(folder_of):
    folders = [folder_of("a"), folder_of("b")]
    for folder in folders:
        report = json.loads((folder / "privacy.json").read_text())
        (folder / "privacy.json").write_text(json.dumps({**report, "ledger": {}}))
    (sentence,) = cost_together(folders)
    assert "simply added up" in sentence
    assert "at most" not in sentence
