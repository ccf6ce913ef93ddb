"""Events as data for other programs: they meet their schema, and dp-accounting finds the same ε."""

from __future__ import annotations

import json

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
from cords_dp.planning.guarantee import events_of
from cords_dp.planning.statement import privacy_report
from cords_dp.training.resolve import resolve

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
