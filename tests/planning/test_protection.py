"""Whom a statement says is protected, and what it says of other neighbouring relations."""

from __future__ import annotations

import math
import re

from cords_dp.planning.guarantee import protected, relation_words, unprotected
from cords_dp.training.resolve import resolve


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
