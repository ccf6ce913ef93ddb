"""Accountants: golden values, agreement, upper bounds, both directions; calibration; the ledger."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from cords_dp.accounting import (
    TRAINING_DATA,
    Entry,
    ExponentialPicks,
    GumbelFreeze,
    Ledger,
    PoissonGaussian,
    advanced_composition,
    calibrate,
    epsilon_bound,
    gaussian,
)
from cords_dp.accounting.composition import gumbel_hockey_stick
from cords_dp.accounting.events import from_dict, merge, to_dict
from cords_dp.errors import AccountingError, BudgetExceededError

DPSGD = PoissonGaussian(sigma=1.5, rate=0.04, count=2250)


# --- what every accountant must do ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["prv", "pld", "rdp"])
class TestEveryAccountant:
    def test_nothing_costs_nothing(self, name):
        assert epsilon_bound([], 1e-5, name).epsilon == 0

    def test_more_events_cost_more(self, name):
        small, large = (epsilon_bound([PoissonGaussian(2.0, 0.05, c)], 1e-5, name).epsilon for c in (50, 500))
        assert 0 < small < large

    def test_more_noise_costs_less(self, name):
        loud, quiet = (epsilon_bound([PoissonGaussian(s, 0.05, 200)], 1e-5, name).epsilon for s in (1.0, 3.0))
        assert quiet < loud

    def test_order_and_grouping_do_not_matter(self, name):
        a, b = PoissonGaussian(2.0, 0.05, 100), gaussian(20.0, 3)
        one = epsilon_bound([a, b], 1e-5, name).epsilon
        other = epsilon_bound([b, PoissonGaussian(2.0, 0.05, 40), PoissonGaussian(2.0, 0.05, 60)], 1e-5, name).epsilon
        assert one == pytest.approx(other, rel=1e-6)

    def test_gaussian_against_its_closed_form(self, name):
        """An upper bound on the exact ε of one Gaussian release, and not far above it (RDP within 20 %)."""
        sigma, delta = 2.0, 1e-5

        def exact_delta(eps):
            mu = 1 / sigma
            return stats.norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * stats.norm.cdf(-mu / 2 - eps / mu)

        bound = epsilon_bound([gaussian(sigma)], delta, name).epsilon
        assert exact_delta(bound) <= delta
        assert exact_delta(bound * (0.8 if name == "rdp" else 0.99)) > delta

    def test_delta_outside_zero_one_is_refused(self, name):
        with pytest.raises(AccountingError, match="delta"):
            epsilon_bound([DPSGD], 1.0, name)


def test_golden_values():
    assert epsilon_bound([DPSGD], 1e-5, "prv").epsilon == pytest.approx(6.7774, abs=0.02)
    assert epsilon_bound([DPSGD], 1e-5, "rdp").epsilon == pytest.approx(7.3291, abs=0.01)


@pytest.mark.parametrize(
    "events",
    [
        [DPSGD],
        [PoissonGaussian(3.0, 0.2, 120)],
        [PoissonGaussian(4.2, 0.19, 120), gaussian(22.0, 15)],
        [PoissonGaussian(1.0, 0.01, 1000)],
    ],
)
def test_prv_agrees_with_pld_and_lies_below_rdp(events):
    prv, pld, rdp = (epsilon_bound(events, 1e-5, name).epsilon for name in ("prv", "pld", "rdp"))
    assert prv == pytest.approx(pld, abs=0.02)
    assert prv >= pld  # the larger of both directions
    assert prv < rdp


def test_where_prv_fails_pld_speaks():
    bound = epsilon_bound([PoissonGaussian(2.0, 0.2, 3000)], 1e-5)
    assert bound.accountant == "pld"
    assert 30 < bound.epsilon < 45


def test_picks_are_bounded_by_rdp_only():
    assert epsilon_bound([ExponentialPicks(0.01, 1000)], 1e-5).accountant == "rdp"
    with pytest.raises(AccountingError, match="no dominating pair"):
        epsilon_bound([ExponentialPicks(0.01, 1000)], 1e-5, "prv")


def test_unknown_accountant():
    with pytest.raises(AccountingError, match="gdp"):
        epsilon_bound([DPSGD], 1e-5, "gdp")


# --- Gumbel freezes --------------------------------------------------------------------------------


def gumbel_pdf(x, location):
    z = x - location
    return math.exp(-z - math.exp(-z))


@pytest.mark.parametrize("shift", [0.05, 0.5, 1.5])
@pytest.mark.parametrize("epsilon", [-0.3, 0.0, 0.02, 0.4, 2.0])
def test_hockey_stick_of_gumbel_noise_by_integration(shift, epsilon):
    def divergence(a, b):
        return integrate.quad(
            lambda x: max(0.0, gumbel_pdf(x, a) - math.exp(epsilon) * gumbel_pdf(x, b)), -6, 40, limit=500
        )[0]

    expected = max(divergence(shift, 0.0), divergence(0.0, shift))
    assert float(gumbel_hockey_stick(np.array([epsilon]), shift)[0]) == pytest.approx(expected, abs=1e-6)


@given(shift=st.floats(0.01, 2), smaller=st.floats(0.01, 1), epsilon=st.floats(-3, 5))
def test_a_smaller_shift_never_costs_more(shift, smaller, epsilon):
    grid = np.array([epsilon])
    assert gumbel_hockey_stick(grid, shift * smaller)[0] <= gumbel_hockey_stick(grid, shift)[0] + 1e-12


def test_freeze_cost_is_below_rdp_and_above_the_exact_single_freeze():
    event = GumbelFreeze(0.254)
    pld, rdp = (epsilon_bound([event], 1e-5, name).epsilon for name in ("pld", "rdp"))
    assert rdp == pytest.approx(1.5, abs=0.01)  # the design's figure
    assert pld < rdp
    assert float(gumbel_hockey_stick(np.array([pld]), event.shift)[0]) <= 1e-5
    assert float(gumbel_hockey_stick(np.array([pld - 0.01]), event.shift)[0]) > 1e-5


def test_freezes_and_training_compose():
    joint = epsilon_bound([GumbelFreeze(0.2, 3), DPSGD], 1e-5)
    alone = epsilon_bound([DPSGD], 1e-5, "pld").epsilon
    assert joint.accountant == "pld"
    assert alone < joint.epsilon < alone + epsilon_bound([GumbelFreeze(0.2, 3)], 1e-5, "pld").epsilon


@pytest.mark.parametrize(("epsilon0", "epsilon"), [(0.0045, 1.494), (0.01, 3.444)])
def test_paper_formula(epsilon0, epsilon):
    assert advanced_composition(ExponentialPicks(epsilon0, 4500), 1e-5).epsilon == pytest.approx(epsilon, abs=0.01)


def test_a_few_picks_cost_at_most_their_sum():
    assert advanced_composition(ExponentialPicks(0.1, 2), 1e-5).epsilon == pytest.approx(0.2)


# --- events ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [DPSGD, ExponentialPicks(0.1, 3), GumbelFreeze(0.2, 2), gaussian(5.0)])
def test_events_survive_json(event):
    assert from_dict(json.loads(json.dumps(to_dict(event)))) == event


def test_merge_adds_counts():
    assert merge([gaussian(2.0), GumbelFreeze(1.0), gaussian(2.0, 4)]) == (
        gaussian(2.0, 5),
        GumbelFreeze(1.0),
    )


@pytest.mark.parametrize("arguments", [(0.0, 0.1, 1), (1.0, 0.0, 1), (1.0, 1.1, 1), (1.0, 0.1, -1)])
def test_senseless_events_are_refused(arguments):
    with pytest.raises(AccountingError):
        PoissonGaussian(*arguments)


# --- calibration ---------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(target=st.floats(0.05, 20), power=st.floats(0.3, 3), start=st.floats(0.01, 100), rising=st.booleans())
def test_calibration_lands_within_half_a_percent_below(target, power, start, rising):
    sign = 1 if rising else -1

    def cost(parameter):
        return 3.0 * parameter ** (sign * power) + 0.01

    found = calibrate(cost, target, start=start, rising=rising)
    assert 0.995 * target <= cost(found) <= target


def test_calibration_gives_up_where_nothing_fits():
    with pytest.raises(AccountingError, match=r"0\.5 %"):
        calibrate(lambda _: 5.0, 3.0, start=1.0, rising=False)


# --- the ledger ------------------------------------------------------------------------------------------


def test_the_ledger_is_on_disk_before_charge_returns(tmp_path):
    ledger = Ledger(path=tmp_path / "ledger.json")
    ledger.charge(TRAINING_DATA, "training", DPSGD)
    assert Ledger.load(tmp_path / "ledger.json").entries == [Entry(TRAINING_DATA, "training", DPSGD)]
    assert list(tmp_path.iterdir()) == [tmp_path / "ledger.json"]


def test_a_crash_while_writing_keeps_the_old_ledger(tmp_path, monkeypatch):
    ledger = Ledger(path=tmp_path / "ledger.json")
    ledger.charge(TRAINING_DATA, "training", gaussian(1.0))
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("power cut")))
    with pytest.raises(OSError, match="power cut"):
        ledger.charge(TRAINING_DATA, "training", gaussian(1.0))
    monkeypatch.undo()
    assert len(Ledger.load(tmp_path / "ledger.json").entries) == 1


def test_the_ledger_refuses_more_than_the_plan(tmp_path):
    ledger = Ledger(allowance=(Entry(TRAINING_DATA, "training", gaussian(2.0, 3)),), path=tmp_path / "l.json")
    ledger.charge(TRAINING_DATA, "training", gaussian(2.0, 2))
    with pytest.raises(BudgetExceededError):
        ledger.charge(TRAINING_DATA, "training", gaussian(2.0, 2))
    with pytest.raises(BudgetExceededError):
        ledger.charge(TRAINING_DATA, "selection", gaussian(1.0))
    assert Ledger.load(tmp_path / "l.json").events(TRAINING_DATA) == [gaussian(2.0, 2)]


def test_loading_counts_attempts(tmp_path):
    Ledger(path=tmp_path / "l.json").charge(TRAINING_DATA, "training", DPSGD)
    first = Ledger.load(tmp_path / "l.json")
    first.save()
    assert (first.attempts, Ledger.load(tmp_path / "l.json").attempts) == (1, 2)


def test_a_damaged_ledger_is_an_error_not_a_fresh_start(tmp_path):
    (tmp_path / "l.json").write_text("{")
    with pytest.raises(AccountingError, match="cannot read"):
        Ledger.load(tmp_path / "l.json")
