"""The rule for strategy, share and epochs, held to what was measured (docs/results/*.csv)."""

from __future__ import annotations

import importlib.util

import pytest
from conftest import REPOSITORY

from cords_dp.planning.budget import ALIKE, DIFFERENT, UNKNOWN, advise


@pytest.fixture(scope="module")
def checked():
    spec = importlib.util.spec_from_file_location("advice_benchmark", REPOSITORY / "benchmarks" / "advice.py")
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    return benchmark.checked()


@pytest.mark.parametrize(
    ("question", "settings", "share"),
    [
        ("strategy, nothing known", 50, 0.9),
        ("strategy, known to be alike", 10, 0.9),
        ("share", 15, 0.9),
        ("epochs", 3, 1.0),
    ],
)
def test_the_rule_is_within_half_a_point_of_the_best_measured(checked, question, settings, share):
    rows = checked[question]
    assert len(rows) >= settings
    assert sum(row["good"] for row in rows) >= share * len(rows)


def test_selection_where_it_can_gain():
    assert advise(0.1, ALIKE).strategy == "FullDP"
    for shift in (UNKNOWN, DIFFERENT):
        assert (advise(0.1, shift).strategy, advise(0.1, shift).mechanism) == ("GLISTERDP", "align")
    assert advise(0.9, ALIKE).share == 0.9
    assert advise(0.9, UNKNOWN).share == 0.5
