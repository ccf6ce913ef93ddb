"""The guarantee in other measures: from the same events, in statement, page and report."""

from __future__ import annotations

import html

import pytest

from cords_dp.accounting import Ledger, epsilon_bound
from cords_dp.planning.guarantee import measure_lines
from cords_dp.planning.statement import privacy_markdown, privacy_report
from cords_dp.planning.statement_page import statement_page
from cords_dp.report.single_run import measures_part
from cords_dp.training.resolve import resolve

ABOUT = {"date": "2026-11-18", "versions": {"cords-dp": "0.2.0"}, "data": {"name": "digits", "records": {}}}


def report_of(config):
    plan = resolve(config).plan(1294, 143)
    return plan, privacy_report(plan, Ledger(plan.entries()), about=ABOUT)


@pytest.fixture
def full(make_config):
    return report_of(make_config("FullDP", privacy={"accountant": "pld", "reproducible_noise": False}))


def test_epsilon_at_the_usual_deltas(full):
    plan, report = full
    (row,) = report["measures"]
    events = [entry.event for entry in plan.entries()]
    assert [at["delta"] for at in row["epsilon_at"]] == [1e-5, 1e-6, 1 / 1294**2]
    assert row["epsilon_at"][0]["epsilon"] == report["epsilon"]
    for at in row["epsilon_at"][1:]:
        assert at["epsilon"] == epsilon_bound(events, at["delta"], "pld").epsilon


def test_mu_and_rates_say_more_than_epsilon_and_delta(full, make_config):
    (row,) = full[1]["measures"]
    (coarse,) = report_of(make_config("FullDP"))[1]["measures"]  # by RDP: from ε and δ alone
    assert 0.5 < row["trade_off"]["mu"] < 1.0
    assert row["trade_off"]["regret"] < 0.05
    assert coarse["trade_off"]["mu"] is None
    assert [at["false_positive_rate"] for at in row["true_positive_rate_at"]] == [0.1, 0.01, 0.001, 0.0001]
    for fine, less in zip(row["true_positive_rate_at"], coarse["true_positive_rate_at"], strict=True):
        assert fine["true_positive_rate"] < less["true_positive_rate"]


def test_statement_page_and_report_show_them(full):
    _, report = full
    (line,) = measure_lines(report["measures"])
    assert "μ = " in line
    assert line in privacy_markdown(report)
    for page in (statement_page(report), measures_part(report)):
        assert html.escape(line.partition(";")[0]) in page
        assert page.count("<svg") == 1
        assert page.count("<polyline") >= 3
    assert measures_part({}) == ""


def test_registry_fields_name_what_was_used_and_nothing_else(full, make_config):
    fields = full[1]["dp_deployments_registry"]
    assert fields["mechanisms"] == "Poisson-subsampled Gaussian"
    assert fields["dataset"] == "digits"
    assert fields["implementation"] == "cords-dp 0.2.0"
    assert "1,294" in fields["privacy unit"]
    picks = make_config("GLISTERDP", dss_args={"mechanism": "exponential"}, privacy={"composition": "basic"})
    assert "exponential mechanism" in report_of(picks)[1]["dp_deployments_registry"]["mechanisms"]


def test_two_data_sets_have_a_row_each(make_config):
    _, report = report_of(make_config("GLISTERDP"))
    assert [row["dataset"] for row in report["measures"]] == ["D", "V"]
