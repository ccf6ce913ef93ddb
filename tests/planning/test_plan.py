"""The plan: schedule, rates, refusals, and a budget that adds up when recomputed by other code."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace

import dp_accounting
import pytest
from builders import make_plan
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, Ledger
from cords_dp.config import PrivacySettings, SubsetSettings
from cords_dp.errors import ConfigError
from cords_dp.planning import PrivacyPlan, Sizes, price_of_selection, read_mechanism
from cords_dp.planning.plan import _UNPLANNED, amplified, before_amplification
from cords_dp.planning.schedule import SELECTION, TRAINING, WARM_START, Branch, EpochPlan, Shape
from cords_dp.selection import Threshold


def plan_for(strategy="GLISTERDP", *, n=45_000, n_validation=5_000, epochs=20, batch=1024, fraction=0.1, select_every=5,
             greedy="RGreedy", mechanism="exponential", r=15, **changes):  # fmt: skip
    picking = {"greedy": greedy, "r": r} if mechanism == "exponential" else {}
    return make_plan(
        strategy, mechanism, n=n, n_validation=n_validation, epochs=epochs, batch_size=batch, fraction=fraction,
        select_every=select_every, **picking, **changes,
    )  # fmt: skip


# --- schedule ----------------------------------------------------------------------------------------


def test_a_warm_start_s_steps_are_told_apart():
    shape = plan_for("RandomDP", kappa=0.5, fraction=0.1, epochs=20).shape
    assert shape.steps_text == "44 steps at sampling rate 0.02276, 50 steps at sampling rate 0.22756"


@pytest.mark.parametrize("mechanism", ["match", "threshold", "exponential"])
def test_rate_is_batch_over_pool_and_steps_cover_it(mechanism):
    plan = plan_for("RandomDP", mechanism=mechanism)  # a key of GLISTERDP's, without meaning here
    assert {e.rate for e in plan.shape.epochs} == {1024 / 4500}
    assert {e.steps for e in plan.shape.epochs} == {5}
    assert plan.shape.steps == 100


@pytest.mark.parametrize("mechanism", ["align", "match"])
def test_a_batch_may_exceed_k_where_steps_draw_from_all_records(mechanism):
    """Digits with cut classes: 66 of 664 records an epoch in batches of 128, as FullDP at equal compute takes them."""
    small = {"n": 664, "n_validation": 140, "batch": 128, "fraction": 0.1}
    plan = plan_for(mechanism=mechanism, **small)
    assert {(e.pool, e.steps) for e in plan.shape.epochs} == {("own", 1)}
    assert all(0 < e.rate <= 1 for e in (*plan.shape.epochs, *plan.branches))
    assert plan.cost().epsilon <= plan.privacy.epsilon
    with pytest.raises(ConfigError, match="larger than the 664"):
        plan_for(mechanism=mechanism, **{**small, "batch": 665})
    with pytest.raises(ConfigError, match="larger than the 66 "):
        plan_for("RandomDP", **small)


def test_full_dp_at_equal_compute_takes_the_subset_method_s_number_of_steps():
    full, equal, random = plan_for("FullDP"), plan_for("FullDP", compute_fraction=0.1), plan_for("RandomDP")
    assert {e.rate for e in equal.shape.epochs} == {1024 / 45_000}
    assert equal.shape.steps == random.shape.steps
    assert full.shape.steps == 20 * math.ceil(45_000 / 1024)
    assert equal.sigma < full.sigma < random.sigma


@pytest.mark.parametrize(("epochs", "every", "rounds"), [(20, 5, 3), (20, 20, 0), (21, 20, 1), (10, 1, 9), (1, 1, 0)])
def test_rounds_follow_cords(epochs, every, rounds):
    """CORDS re-selects before epoch e when (e − 1) is a multiple of L and e > 1."""
    assert plan_for(epochs=epochs, select_every=every).shape.rounds == rounds


def test_warm_start_is_full_data_dp_sgd_and_charged():
    plan = plan_for(kappa=0.5, epochs=20, fraction=0.1)
    pools = [e.pool for e in plan.shape.epochs]
    assert pools == ["all"] + ["skip"] * 9 + ["own"] * 10  # CORDS: ceil(10·0.1) = 1 warm epoch
    warm = [e for e in plan.entries() if e.phase == WARM_START]
    assert [(w.event.rate, w.event.count) for w in warm] == [(1024 / 45_000, 44)]


@given(epochs=st.integers(1, 40), kappa=st.floats(0, 0.9), fraction=st.floats(0.05, 1), every=st.integers(1, 10))
def test_schedule_matches_a_walk_through_cords_loader(epochs, kappa, fraction, every):
    """The plan's epochs against the conditions of CORDS' AdaptiveDSSDataLoader, written out."""
    subset = SubsetSettings(fraction=fraction, select_every=every, kappa=kappa)
    schedule = Threshold().schedule(Sizes(1000, 100, max(1, int(1000 * fraction)), 10), subset, epochs)
    select_after = int(kappa * epochs)
    warmup = math.ceil(select_after * fraction)
    for number, epoch in enumerate(schedule, start=1):
        if warmup < number <= select_after:
            assert (epoch.pool, epoch.steps) == ("skip", 0)
        elif number <= warmup:
            assert epoch.pool == "all"
        else:
            assert epoch.pool == "own"
            assert epoch.selects == (number > 1 and (number - 1) % every == 0)


# --- conservation, recomputed by separate code -------------------------------------------------------------


def independent_training_epsilon(ledger_json, delta):
    """Training cost by dp-accounting's own accountant, from the ledger file alone."""
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    for entry in json.loads(ledger_json)["entries"]:
        if entry["dataset"] == "D" and entry["phase"] != "selection":
            e = entry["event"]
            event = dp_accounting.PoissonSampledDpEvent(e["rate"], dp_accounting.GaussianDpEvent(e["sigma"]))
            accountant.compose(event, e["count"])
    return accountant.get_epsilon(delta)


def charge_everything(plan):
    ledger = Ledger(allowance=plan.entries())
    for entry in plan.entries():
        ledger.charge(entry.dataset, entry.phase, entry.event)
    return ledger


@pytest.mark.parametrize("split", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("epsilon", [3.0, 8.0])
def test_basic_composition_conserves_epsilon_and_delta(split, epsilon):
    """ε_train = r·ε and ε_ss = (1−r)·ε at δ split alike, recomputed from the ledger by other code."""
    plan = plan_for(composition="basic", split=split, epsilon=epsilon, accountant="auto")
    ledger = charge_everything(plan)
    picks = [e["event"] for e in ledger.to_dict()["entries"] if e["phase"] == "selection"]
    total_picks = sum(e["count"] for e in picks)
    assert total_picks == 3 * 4500
    e0 = picks[0]["epsilon0"]
    delta_ss = (1 - split) * 1e-5
    epsilon_ss = total_picks * e0**2 / 2 + e0 * math.sqrt(2 * total_picks * math.log(1 / delta_ss))
    epsilon_train = independent_training_epsilon(json.dumps(ledger.to_dict()), split * 1e-5)
    assert 0.995 * (1 - split) * epsilon <= epsilon_ss <= (1 - split) * epsilon
    assert 0.98 * split * epsilon <= epsilon_train <= split * epsilon + 1e-3
    cost = plan.spent(ledger)
    assert cost.training_data.epsilon == pytest.approx(epsilon_ss + epsilon_train, rel=0.01)
    assert cost.training_data.delta == pytest.approx(1e-5)
    assert cost.epsilon <= epsilon


@pytest.mark.parametrize("greedy", ["Frozen", "RGreedy"])
def test_joint_composition_meets_the_target_in_total(greedy):
    plan = plan_for(greedy=greedy, accountant="auto", validation="public")
    total = plan.cost().training_data
    assert 0.995 * 3.0 <= total.epsilon <= 3.0
    assert total.delta == 1e-5
    assert total.accountant == ("pld" if greedy == "Frozen" else "rdp")


@settings(max_examples=15)
@given(
    epsilon=st.floats(0.3, 10), fraction=st.floats(0.1, 0.9), greedy=st.sampled_from(["Frozen", "RGreedy", "Naive"]),
    composition=st.sampled_from(["joint", "basic"]), validation=st.sampled_from(["public", "private"]),
)  # fmt: skip
def test_calibration_is_within_half_a_percent_below_and_never_above(epsilon, fraction, greedy, composition, validation):
    plan = plan_for(
        n=4000, n_validation=500, batch=64, epsilon=epsilon, fraction=fraction, greedy=greedy, composition=composition,
        validation=validation, epochs=6, select_every=2,
    )  # fmt: skip
    cost = plan.cost()
    assert 0.99 * epsilon <= cost.training_data.epsilon <= epsilon
    if validation == "private":
        assert 0.995 * epsilon <= cost.validation_data.epsilon <= epsilon


def test_joint_frozen_selection_is_nearly_free():
    """The design's claim: with v frozen, training noise rises by under 10 % against RandomDP."""
    random, frozen = plan_for("RandomDP"), plan_for(greedy="Frozen")
    paper = plan_for(composition="basic", split=0.5)
    assert frozen.sigma < 1.1 * random.sigma
    assert frozen.selection_noise > 20 * paper.selection_noise


@pytest.mark.parametrize(
    ("composition", "low", "high"),
    [("paper", 0.0043, 0.0046), ("bounded_range", 0.009, 0.011), ("freeze", 0.25, 0.33)],
)
def test_per_pick_epsilon_of_the_design_page(composition, low, high):
    """ε_ss = 1.5, k = 4,500, R = 1; δ split in half makes each a little smaller."""
    plan = plan_for(
        composition="basic", split=0.5, select_every=20, epochs=21, selection_composition=composition,
        greedy="Frozen" if composition == "freeze" else "RGreedy", accountant="auto",
    )  # fmt: skip
    assert low <= plan.selection_noise <= high


# --- mutants -------------------------------------------------------------------------------------------------


def test_mutant_selection_uncharged_is_caught():
    """Entries without the selection cost less than the budget: the total no longer meets the target."""
    plan = plan_for(greedy="RGreedy", split=0.5)
    without = [e for e in plan.entries() if e.phase != SELECTION]
    assert plan.cost(without).training_data.epsilon < 0.97 * plan.privacy.epsilon
    assert plan.cost().training_data.epsilon > 0.995 * plan.privacy.epsilon


def test_mutant_rate_of_the_whole_dataset_is_caught():
    """q = B/n instead of B/k would report less than a third of what is spent."""
    plan = plan_for("RandomDP")
    honest = plan.cost().training_data.epsilon
    lying = [replace(e, event=replace(e.event, rate=1024 / 45_000)) for e in plan.entries()]
    assert plan.cost(lying).training_data.epsilon < honest / 3
    assert all(e.event.rate == 1024 / 4500 for e in plan.entries())


# --- totals, delta, refusals ------------------------------------------------------------------------------------


def test_the_run_costs_the_larger_of_d_and_v():
    cost = plan_for(greedy="Frozen", validation="private").cost()
    assert cost.epsilon == max(cost.training_data.epsilon, cost.validation_data.epsilon)
    assert {e.dataset for e in plan_for(greedy="Frozen").entries()} == {TRAINING_DATA, VALIDATION_DATA}


def test_public_validation_is_not_charged():
    plan = plan_for(greedy="Frozen", validation="public")
    assert plan.sigma_validation is None
    assert plan.cost().validation_data is None


def test_delta_defaults_below_one_over_n():
    """n·δ is the number of records that a mechanism of this δ might publish whole: at most a tenth."""
    assert plan_for("RandomDP", delta=None, n=5_000, n_validation=500, batch=64).delta == 1e-5
    assert plan_for("RandomDP", delta=None).delta == pytest.approx(0.1 / 45_000)
    assert plan_for("RandomDP", delta=None, n=1_000_000).delta == pytest.approx(1e-7)


def test_epsilon_infinity_means_no_noise_and_no_charges():
    plan = plan_for(epsilon=math.inf)
    assert (plan.sigma, plan.entries()) == (0.0, ())
    assert plan.cost().epsilon == math.inf


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"delta": 1e-4}, "privacy.delta", "below 1/n"),
        ({"batch": 5000}, "dataloader.batch_size", "larger than the 4500"),
        ({"selection_composition": "freeze"}, "privacy.selection_composition", "Frozen"),
        ({"selection_composition": "paper"}, "privacy.selection_composition", "basic"),
        ({"greedy": "Frozen", "validation_noise": 0.1}, "privacy.validation_noise", "raise it"),
    ],
)
def test_refusals_name_key_value_and_fix(changes, key, words):
    with pytest.raises(ConfigError, match=words) as caught:
        plan_for(**changes)
    assert caught.value.key == key


@pytest.mark.parametrize(("kind", "words"), [("PerClass", "labels_public"), ("PerBatch", "no sensitivity is proved")])
def test_selection_types_without_proof_are_refused(kind, words):
    with pytest.raises(ConfigError, match=words):
        plan_for(n=4000, n_validation=500, epochs=6, batch=64, selection_type=kind, greedy="Frozen")


def test_step_events_are_those_of_the_schedule():
    plan = plan_for("RandomDP")
    event = plan.step_event(plan.shape.epochs[0])
    assert (event.sigma, event.rate, event.count) == (plan.sigma, 1024 / 4500, 5)
    assert sum(e.event.count for e in plan.entries() if e.phase == TRAINING) == plan.shape.steps


# --- a secret uniform subset ---------------------------------------------------------------------------


def secret_plan(secret=True, strategy="RandomDP", **changes):
    sizes = {"n": 45_000, "n_validation": 5_000, "epochs": 20, "batch_size": 1024}
    return make_plan(strategy, fraction=0.1, secret_subset=secret, **sizes, **changes)


def test_amplification_by_a_secret_subset():
    """The design's figure: at γ = 0.1 a total of 3 allows 5.26 inside. Exact on randomised response."""
    assert before_amplification(3.0, 0.1) == pytest.approx(5.26, abs=0.005)
    assert amplified(before_amplification(3.0, 0.1), 0.1) == pytest.approx(3.0)
    # M answers truly with odds e^ε; on a subsample the record's answer is a coin's with probability 1−γ
    epsilon, gamma = 2.0, 0.3
    true = math.exp(epsilon) / (1 + math.exp(epsilon))
    mixed = gamma * true + (1 - gamma) * (1 - true)  # against a world in which the answer is the other one
    assert math.log(mixed / (1 - true)) == pytest.approx(amplified(epsilon, gamma))


def test_a_secret_subset_needs_less_noise_for_the_same_guarantee():
    secret, open_ = secret_plan(), secret_plan(secret=False)
    assert secret.sigma < 0.75 * open_.sigma
    assert 2.95 < secret.cost().epsilon <= 3.0
    assert secret.cost().delta == 1e-5
    assert "amplified" in secret.cost().training_data.accountant
    assert secret.secret_pool
    assert not open_.secret_pool


@pytest.mark.parametrize(
    "changes", [{"strategy": "FullDP"}, {"strategy": "GLISTERDP"}, {"strategy": "MyOwnDP"}, {"kappa": 0.5}]
)
def test_amplification_is_for_one_uniform_subset_only(changes):
    with pytest.raises(ConfigError, match="secret_subset"):
        secret_plan(**changes)


def test_the_price_of_selection_is_in_the_plan():
    assert price_of_selection(plan_for("RandomDP")) == 0
    assert 0 < price_of_selection(plan_for(mechanism="match")) < 0.01 < price_of_selection(plan_for(mechanism="top_k"))


@pytest.mark.parametrize("mechanism", ["align", "match", "threshold", "top_k", "exponential"])
def test_a_quick_answer_is_a_bound_too(mechanism):
    """Picks have no PLD: whoever is asked first, somebody has to answer while a run is under way."""
    plan = make_plan(mechanism=mechanism, n=2000, k=200, accountant="auto", select_every=2)
    quick, full = plan.cost(quick=True), plan.cost()
    assert quick.epsilon == pytest.approx(full.epsilon, rel=0.02)
    assert quick.phases.keys() == full.phases.keys()


# --- the fingerprint ------------------------------------------------------------------------------------------------


def test_a_fingerprint_follows_from_public_values_alone():
    """Pinned: a ledger that was written today can be continued by later versions. It was a hash of ``repr``."""
    epochs = (EpochPlan("own", 6, 0.05, selects=True), EpochPlan("own", 6, 0.05))
    plan = PrivacyPlan(
        Shape("GLISTERDP", Sizes(1000, 100, 300, 50), epochs),
        PrivacySettings(epsilon=3.0, delta=1e-5, accountant="rdp"),
        SubsetSettings(fraction=0.3),
        read_mechanism({"mechanism": "top_k"}, PrivacySettings(epsilon=3.0), SubsetSettings(fraction=0.3)),
        delta=1e-5,
        sigma=1.25,
        selection_noise=10.0,
    )
    assert plan.fingerprint == "ccd157d88514c72840d2a60f6cde7d48"
    for key, value in (("max_physical_batch_size", 64), ("grad_sample_mode", "hooks"), ("account", "elsewhere.jsonl")):
        assert replace(plan, privacy=replace(plan.privacy, **{key: value})).fingerprint == plan.fingerprint
    for change in (
        {"sigma": 1.26}, {"delta": 2e-5}, {"selection_noise": 11.0}, {"sigma_validation": 1.0},
        {"privacy": replace(plan.privacy, max_grad_norm=2.0)}, {"subset": replace(plan.subset, kappa=0.1)},
        {"mechanism": None}, {"shape": replace(plan.shape, strategy="RandomDP")},
        {"branches": (Branch(1.0, 0.1, 1.0),)},
    ):  # fmt: skip
        assert replace(plan, **change).fingerprint != plan.fingerprint


def test_every_key_of_privacy_is_in_the_fingerprint_or_named_as_left_out():
    kept = make_plan("FullDP", n=100, batch_size=10).facts()["privacy"]
    left_out = {f.name for f in fields(PrivacySettings)} - set(kept)
    assert left_out == {*_UNPLANNED, "records_per_owner"}  # there was no other unit than a record
    of_owners = make_plan("FullDP", n=100, batch_size=10, records_per_owner=10).facts()["privacy"]
    assert of_owners == {**kept, "records_per_owner": 10}
