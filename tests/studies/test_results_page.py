"""The page of results: every table is what its kept rows say."""

from __future__ import annotations

import pandas as pd
import pytest
from conftest import REPOSITORY

from cords_dp.studies.results_page import PAGES, fill, picture

DOCS = REPOSITORY / "docs"


def rows(method, share, accuracies, **changes):
    return [
        {"dataset": "cifar100", "method": method, "share": share, "budget": 3.0, "seed": seed, "accuracy": accuracy}
        | changes
        for seed, accuracy in enumerate(accuracies)
    ]


def filled(tmp_path, table, *files):
    for number, file in enumerate(files):
        pd.DataFrame(file).to_csv(tmp_path / f"rows{number}.csv", index=False)
    names = ", ".join(f"rows{number}" for number in range(len(files)))
    page = f"before\n\n<!-- table {table} of {names} -->\nan older table\n<!-- end -->\n\nafter\n"
    return fill(page, tmp_path)


def test_the_paper_s_cells_stand_beside_ours(tmp_path):
    page = filled(tmp_path, "beside-the-paper", rows("GLISTERDP", 0.1, (0.30, 0.32)), rows("RandomDP", 0.5, (0.2,)))
    assert "| CIFAR-100 | 3 | GLISTERDP | 1.6 → 31.0 | 2.7 | 4.8 | 7.3 | 8.3 |" in page
    assert "| CIFAR-100 | 3 | RandomDP | 1.6 | 2.5 | 5.1 | 6.6 | 8.5 → 20.0 |" in page
    assert "MNIST" not in page  # sets that were not run are left out
    assert "*3 runs, 1 to 2 seeds a cell.*" in page
    assert (page[:7], page[-7:]) == ("before\n", "\nafter\n")
    assert "older" not in page
    assert fill(page, tmp_path) == page


def test_tables_over_a_column_say_their_data_and_budget(tmp_path):
    page = filled(tmp_path, "by-column", rows("GLISTERDP", 0.1, (0.5,)) + rows("RandomDP", 0.1, (0.25,), budget=8.0))
    assert "| cifar100, ε = 3 | GLISTERDP | 50.00 |" in page
    assert "| cifar100, ε = 8 | RandomDP | 25.00 |" in page
    assert "*2 runs, one seed a cell.*" in page


def test_differences_at_equal_gradients_are_those_of_the_same_seed(tmp_path):
    scenario = {"scenario": "40 % of labels moved on"}
    tenth = rows("GLISTERDP", 0.1, (0.50, 0.60), **scenario) + rows(
        "FullDP, equal compute", 0.1, (0.49, 0.58), **scenario
    )
    whole = rows("GLISTERDP", 1.0, (0.70,), **scenario) + rows("FullDP", 1.0, (0.75,), **scenario)
    page = filled(tmp_path, "equal-gradients", tenth + whole)
    assert "| CIFAR-100, ε = 3: gradients | method | moved |" in page
    assert "| a tenth | difference, by seed | +1.50 ± 6.35 |" in page  # Student's t with one degree of freedom
    assert "| all | FullDP | 75.00 |" in page
    assert "| all | difference, by seed | -5.00 |" in page


def test_scenarios_are_columns(tmp_path):
    page = filled(tmp_path, "by-scenario", rows("ClassWeightsDP", 0.1, (0.5, 0.6), scenario="odd classes cut to 5 %"))
    assert "| data | method | cut |" in page
    assert "| CIFAR-100, ε = 3, share 0.1 | ClassWeightsDP | 55.00 ± 7.07 |" in page


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_its_rows_say(name):
    page = (DOCS / name).read_text()
    assert "<!-- table " in page
    assert fill(page, DOCS / "results") == page


def test_the_picture_can_be_drawn_again(tmp_path):
    assert picture(DOCS / "results", tmp_path / "results.png").stat().st_size > 10_000
