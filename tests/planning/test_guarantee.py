"""The guarantee in other measures: from the same events, in statement, page and report."""

from __future__ import annotations

import html
import json
import math
import re

import jsonschema
import pytest
from conftest import REPOSITORY
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from cords_dp.accounting import (
    BranchMaximum,
    ExponentialPicks,
    GumbelFreeze,
    Ledger,
    PoissonGaussian,
    RepeatAndSelect,
    epsilon_bound,
    gaussian,
)
from cords_dp.accounting.events import from_dict, to_dict
from cords_dp.errors import AccountingError
from cords_dp.planning.guarantee import events_of, measure_lines, protected, relation_words, unprotected
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


# --- whom it protects ------------------------------------------------------------------------------------------------


def plan_of(make_config, strategy="GLISTERDP", **changes):
    return resolve(make_config(strategy, **changes)).plan(1294, 143)


def test_replacing_a_record_is_two_steps_of_zero_out(make_config):
    plan = plan_of(make_config, "FullDP")
    cost = plan.cost()
    epsilon, delta = re.search(r"ε = ([\d.]+) and δ = ([\d.e-]+)", relation_words(plan)).groups()
    assert float(epsilon) == round(2 * cost.epsilon, 4)
    assert math.isclose(float(delta), (1 + math.exp(cost.epsilon)) * cost.delta, rel_tol=1e-2)


def test_the_comparison_is_two_sentences_and_knows_where_indices_are_picked(make_config):
    picked = plan_of(make_config, dss_args={"mechanism": "top_k"})
    for plan in (plan_of(make_config), plan_of(make_config, "FullDP"), picked):
        assert len(re.findall(r"\.(?: [A-Z]|$)", relation_words(plan))) == 2
    assert "same ε" in relation_words(plan_of(make_config))
    assert "no counterpart" in relation_words(picked)


def test_who_is_protected_follows_the_plan(make_config):
    private = plan_of(make_config)
    assert protected(private) == [
        "every single record of the training set D (1,294 records)",
        "every single record of the validation set V (143 records)",
    ]
    assert not any("declared public" in words for words in unprotected(private))
    public = plan_of(make_config, privacy={"validation": "public"})
    assert len(protected(public)) == 1
    assert "declared public" in unprotected(public)[0]
    unread = plan_of(make_config, "FullDP")
    assert "no mechanism has read" in protected(unread)[1]
    without = resolve(make_config("FullDP")).plan(1437, 0)
    assert protected(without) == ["every single record of the training set D (1,437 records)"]
    for plan in (private, public, unread):
        assert any("test set" in words for words in unprotected(plan))
        assert any("several records" in words for words in unprotected(plan))


def test_switched_on_metrics_are_named(make_config):
    plan = plan_of(make_config, "FullDP", privacy={"exact_metrics": True})
    assert "exact metrics were switched on" in unprotected(plan)[0]


# --- as data for other programs --------------------------------------------------------------------------------------

SCHEMA = json.loads((REPOSITORY / "cords_dp" / "planning" / "interchange.schema.json").read_text())
STEP = PoissonGaussian(1.5, 0.04, 200)


def check(instance, part=None):
    schema = SCHEMA if part is None else {**SCHEMA["$defs"][part], "$defs": SCHEMA["$defs"]}
    jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(instance)))


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        ("FullDP", {}),
        ("GLISTERDP", {}),
        ("GLISTERDP", {"dss_args": {"mechanism": "exponential"}, "privacy": {"composition": "basic"}}),
        ("RandomDP", {"dss_args": {"secret_subset": True}}),
    ],
)
def test_what_a_run_lists_meets_the_schema(make_config, strategy, changes):
    plan = resolve(make_config(strategy, **changes)).plan(1294, 143)
    events = events_of(plan)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    check(events)
    listed = [e["event"]["count"] for d in events["datasets"] for p in d["parts"] for e in p["events"]]
    assert sum(listed) == sum(entry.event.count for entry in plan.entries())
    for data in events["datasets"]:
        assert data["delta"] == pytest.approx(sum(part["delta"] for part in data["parts"]))
    assert max(d["epsilon"] for d in events["datasets"]) == plan.cost().epsilon
    report = privacy_report(plan, Ledger(plan.entries()))
    assert report["events"] == json.loads(json.dumps(events))


@pytest.mark.parametrize(
    "event",
    [
        STEP,
        GumbelFreeze(0.2, 3),
        ExponentialPicks(0.1, 4),
        BranchMaximum(((STEP,), (gaussian(4.0),))),
        RepeatAndSelect((STEP,), 10.0, 1.0, orders=(4.0, 8.0)),
    ],
    ids=lambda event: event.kind,
)
def test_every_kind_of_event_meets_the_schema_and_comes_back(event):
    check(to_dict(event), "event")
    assert from_dict(json.loads(json.dumps(to_dict(event)))) == event


@pytest.mark.parametrize(
    "bad",
    [
        {"kind": "poisson_gaussian", "sigma": -1.0, "rate": 0.1, "count": 1},
        {"kind": "poisson_gaussian", "sigma": 1.0, "rate": 1.1, "count": 1},
        {"kind": "poisson_gaussian", "sigma": 1.0, "count": 1},
        {"kind": "branch_maximum", "count": 1},
        {"kind": "gumbel_freeze", "epsilon0": 1.0, "count": 0.5},
    ],
)
def test_the_schema_refuses_what_is_no_event(bad):
    with pytest.raises(jsonschema.ValidationError):
        check(bad, "event")


@pytest.mark.parametrize("event", [STEP, gaussian(3.0, 5)], ids=["steps", "gaussian"])
def test_dp_accounting_finds_the_same_epsilon(event):
    accountant = PLDAccountant(NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(event.to_dp_event())
    assert accountant.get_epsilon(1e-5) == pytest.approx(epsilon_bound([event], 1e-5, "pld").epsilon, rel=1e-4)


@pytest.mark.parametrize(
    "event", [ExponentialPicks(0.01, 50), RepeatAndSelect((STEP,), 10.0, 1.0)], ids=["picks", "best"]
)
def test_dp_accounting_finds_no_less_by_renyi(event):
    accountant = RdpAccountant([*range(2, 64), 128, 256, 512, 1024], NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(event.to_dp_event())
    assert accountant.get_epsilon(1e-5) == pytest.approx(epsilon_bound([event], 1e-5, "rdp").epsilon, rel=0.02)


@pytest.mark.parametrize(
    "event",
    [GumbelFreeze(0.2), BranchMaximum(((STEP,),)), RepeatAndSelect((STEP,), 10.0, 1.0, orders=(4.0,))],
    ids=lambda event: event.kind,
)
def test_what_dp_accounting_does_not_know_is_refused(event):
    with pytest.raises(AccountingError, match="dp-accounting"):
        event.to_dp_event()
