"""A tuning's plan: the whole meets its budget on D and on V, whatever settings a trial draws."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from builders import make_plan

from cords_dp.accounting import (
    TRAINING_DATA,
    VALIDATION_DATA,
    RenyiFilter,
    RepeatAndSelect,
    TrialLaw,
    epsilon_bound,
    renyi,
)
from cords_dp.accounting.composition import _WHOLE_ORDERS
from cords_dp.config import PrivacySettings
from cords_dp.errors import ConfigError
from cords_dp.tuning.plan import build_tuning_plan
from cords_dp.tuning.statement import price_of_tuning, tuning_markdown, tuning_report, tuning_table

LAW = TrialLaw(10.0, 1.0)
PRIVACY = PrivacySettings(epsilon=3.0, delta=1e-5, accountant="rdp")


def planner(strategy="RandomDP", mechanism="match", **keys):
    sizes = {"n": 2000, "n_validation": 300, "epochs": 4, "batch_size": 200, "fraction": 0.5, **keys}

    def plan_with(privacy):
        own = {"epsilon": privacy.epsilon, "delta": privacy.delta, "validation": privacy.validation}
        if strategy == "GLISTERDP":
            own |= {key: getattr(privacy, key) for key in ("validation_noise", "train_on_validation")}
        return make_plan(strategy, mechanism, **{**sizes, **own})

    return plan_with


def own_renyi(event, order):
    """Of Gaussian events at whole orders, written out anew."""
    if event.rate == 1:
        return event.count * order / (2 * event.sigma**2)
    terms = [math.comb(order, k) * (1 - event.rate) ** (order - k) * event.rate**k
             * math.exp((k * k - k) / (2 * event.sigma**2)) for k in range(order + 1)]  # fmt: skip
    return event.count * math.log(math.fsum(terms)) / (order - 1)


def divergence(event, order):
    return own_renyi(event, int(order)) if float(order).is_integer() else event.count * event.rdp(order)


def own_epsilon(events, delta, *, mean=10.0, gamma=0.1, shape=1.0):
    """Theorem 2 of Papernot & Steinke (2022) for the geometric law of mean 10, whose γ is a tenth."""
    rho = {a: sum(own_renyi(event, a) for event in events) for a in range(2, 60)}
    second = min((1 + shape) * ((1 - 1 / a) * r + math.log(1 / gamma) / a) for a, r in rho.items())
    return min(
        r + second + math.log(mean) / (a - 1) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1)
        for a, r in rho.items()
    )


@pytest.mark.parametrize("strategy", ["RandomDP", "FullDP", "GLISTERDP"])
def test_the_whole_costs_its_budget_on_either_side_recomputed_by_separate_code(strategy):
    plan = build_tuning_plan(PRIVACY, planner(strategy), LAW)
    for side in (TRAINING_DATA, VALIDATION_DATA):
        assert 0.97 * 3 < own_epsilon(plan.trial_events(side), plan.delta) <= 3.001
        assert plan.bound(side).epsilon <= 3.0
    assert plan.trial.sigma > planner(strategy)(PRIVACY).sigma  # choosing costs
    assert [e.dataset for e in plan.entries()] == [TRAINING_DATA, VALIDATION_DATA]


def test_the_score_is_charged_to_v_beside_what_selections_read():
    plan = build_tuning_plan(PRIVACY, planner("GLISTERDP"), LAW)
    run = [e.event for e in plan.trial.entries() if e.dataset == VALIDATION_DATA]
    assert run
    assert plan.trial_events(VALIDATION_DATA) == (*run, plan.score_release().event)
    assert plan.score_release().sensitivity == 1.0


def test_a_public_validation_set_costs_nothing_and_scores_exactly():
    plan = build_tuning_plan(replace(PRIVACY, validation="public"), planner(), LAW)
    assert plan.score_noise is None
    assert plan.score_release().event is None
    assert plan.bound(VALIDATION_DATA) is None
    assert "V is declared PUBLIC" in tuning_markdown(tuning_report(plan, planner()(PRIVACY)))


@pytest.mark.parametrize("strategy", ["RandomDP", "GLISTERDP"])
@pytest.mark.parametrize("changes", [{"epochs": 9}, {"batch_size": 50}, {"fraction": 0.1}])
def test_a_trial_with_another_schedule_costs_no_more_at_the_theorem_s_orders(strategy, changes):
    plan = build_tuning_plan(PRIVACY, planner(strategy), LAW)
    other = planner(strategy, **{**({"batch_size": 100} if "fraction" in changes else {}), **changes})
    fitted = other(plan.fit(other))
    score = plan.score_release().event
    for side, extra in ((TRAINING_DATA, ()), (VALIDATION_DATA, (score,))):
        events = [*(e.event for e in fitted.entries() if e.dataset == side), *extra]
        shares = []
        for order in plan._orders(side):
            paid = sum(divergence(event, order) for event in plan.trial_events(side))
            shares.append(sum(divergence(event, order) for event in events) / paid)
        assert max(shares) <= 1 + 1e-9
        assert side == VALIDATION_DATA or max(shares) > 0.85  # and wastes little


def test_the_charge_holds_at_every_order_that_anybody_may_ask_for():
    """Trials are compared at a few orders. An account composes the charge with others at orders of its own choice."""
    few, many = planner("FullDP", n=1438, epochs=1, batch_size=512), planner("FullDP", n=1438, epochs=40, batch_size=64)
    account = RenyiFilter(8.0, 1e-9)
    plan = build_tuning_plan(replace(PRIVACY, epsilon=1.0), many, TrialLaw(5.0, 1.0), account.orders)
    theirs = [e.event for e in few(plan.fit(few)).entries() if e.dataset == TRAINING_DATA]
    paid = plan.trial_events(TRAINING_DATA)
    (charged,) = [e.event for e in plan.entries() if e.dataset == TRAINING_DATA]
    assert any(renyi(theirs, order) > 1.05 * renyi(paid, order) for order in _WHOLE_ORDERS)  # at some it costs more
    cheapest = RepeatAndSelect(tuple(theirs), 5.0, 1.0)
    for order in {*_WHOLE_ORDERS, *account.orders, 64}:  # at these divergences are exact
        assert charged.rdp(order) >= cheapest.rdp(order), order
    for delta in (1e-5, 1e-9):
        for several in (1, 4, 12):
            true = epsilon_bound([cheapest] * several, delta, "rdp").epsilon
            assert epsilon_bound([charged] * several, delta, "rdp").epsilon >= true
    assert epsilon_bound([charged], plan.delta, "rdp").epsilon <= 1.0  # and its own price stays what it was


def test_settings_that_leave_the_schedule_alone_leave_the_budget_alone():
    plan = build_tuning_plan(PRIVACY, planner(), LAW)
    assert plan.fit(planner()) == plan.trial.privacy


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"epsilon": math.inf}, "epsilon"),
        ({"reproducible_noise": True}, "reproducible_noise"),
        ({"exact_metrics": True}, "exact_metrics"),
        ({"validation_noise": 5.0}, "validation_noise"),
    ],
)
def test_what_a_tuning_cannot_keep_is_refused(changes, key):
    with pytest.raises(ConfigError, match=key):
        build_tuning_plan(replace(PRIVACY, **changes), planner(), LAW)


def test_delta_must_suit_the_validation_set_too():
    with pytest.raises(ConfigError, match=r"1/\|V\|"):
        build_tuning_plan(PRIVACY, planner(n_validation=200_000), LAW)


def test_statement_and_table_name_the_price():
    plan, single = build_tuning_plan(PRIVACY, planner(), LAW), planner()(PRIVACY)
    report = tuning_report(plan, single)
    text = tuning_markdown(report)
    assert price_of_tuning(plan, single) in text
    assert "geometric law with mean 10" in text
    assert f"{single.sigma:.4f}" in tuning_table(plan, single)
    assert f"{plan.trial.sigma:.4f}" in tuning_table(plan, single)
    assert report["epsilon"] <= 3.0
