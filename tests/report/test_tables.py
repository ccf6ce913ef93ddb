"""Tables that are made from runs.csv alone."""

from __future__ import annotations

import pandas as pd

from cords_dp.report.tables import probability_tables


def test_a_table_of_probabilities_holds_means_over_seeds():
    runs = [{"dataset": "t", "budget": 1.0, "method": "A", "scenario": "s", "log_loss": loss} for loss in (0.2, 0.4)]
    ((title, table),) = probability_tables(pd.DataFrame(runs)).items()
    assert title == "t, ε = 1: probabilities"
    assert table.to_dict("records") == [{"method": "A", "s: log loss": "0.300"}]


def test_shares_of_the_records_have_tables_of_their_own():
    run = {"dataset": "t", "budget": 1.0, "method": "A", "scenario": "s"}
    runs = [{**run, "share": share, "log_loss": share} for share in (0.1, 1.0)]
    tables = probability_tables(pd.DataFrame(runs))
    assert list(tables) == ["t, ε = 1, share 0.1: probabilities", "t, ε = 1, share 1: probabilities"]
    assert [table["s: log loss"].item() for table in tables.values()] == ["0.100", "1.000"]


def test_runs_without_scenarios_or_without_scores_have_no_such_table():
    run = {"dataset": "t", "budget": 1.0, "method": "A", "log_loss": 0.2}
    assert probability_tables(pd.DataFrame([run])) == {}
    assert probability_tables(pd.DataFrame([{**run, "scenario": "s"}]).drop(columns="log_loss")) == {}
