"""Accountants: golden values, agreement, upper bounds, both directions."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from cords_dp.accounting import (
    TRAINING_DATA,
    ExponentialPicks,
    Ledger,
    PoissonGaussian,
    composition,
    epsilon_bound,
    gaussian,
)
from cords_dp.errors import AccountingError

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


def test_of_very_many_events_pld_speaks_and_each_kind_is_composed_once(monkeypatch):
    """A ledger of 100,000 events: what a query does is counted, not its seconds."""
    ledger = Ledger()
    for number in range(100_000):
        ledger.charge(TRAINING_DATA, "training", gaussian(900.0) if number % 100 == 0 else PoissonGaussian(12.1, 0.01))
    composed, asked = [], []
    real = composition.self_composed
    monkeypatch.setattr(composition, "self_composed", lambda pld, n: composed.append(n) or real(pld, n))
    monkeypatch.setattr(composition, "PRVAccountant", lambda *_, **__: asked.append("prv"))
    for _ in range(3):
        bound = epsilon_bound(ledger.events(TRAINING_DATA), 1e-5)
    assert (bound.accountant, composed, asked) == ("pld", [1000, 99_000], [])
    ledger.charge(TRAINING_DATA, "training", PoissonGaussian(12.1, 0.01))
    assert bound.epsilon < epsilon_bound(ledger.events(TRAINING_DATA), 1e-5).epsilon
    assert composed == [1000, 99_000, 99_001]  # of the other kind the result is kept


def test_picks_are_bounded_by_rdp_only():
    assert epsilon_bound([ExponentialPicks(0.01, 1000)], 1e-5).accountant == "rdp"
    with pytest.raises(AccountingError, match="no dominating pair"):
        epsilon_bound([ExponentialPicks(0.01, 1000)], 1e-5, "prv")


def test_unknown_accountant():
    with pytest.raises(AccountingError, match="gdp"):
        epsilon_bound([DPSGD], 1e-5, "gdp")
