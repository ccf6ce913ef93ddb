"""μ of Gaussian DP: exact on the Gaussian mechanism, never below an attack, and above every point of the curve."""

from __future__ import annotations

import math

import numpy as np
import pytest
from exact import hockey_stick
from scipy import stats

from cords_dp.accounting import BranchMaximum, ExponentialPicks, PoissonGaussian, gaussian
from cords_dp.accounting.membership_risk import risk_of_events
from cords_dp.accounting.trade_off import RATES, gaussian_profile, trade_off
from cords_dp.errors import AccountingError

STEPS = [PoissonGaussian(4.2, 0.19, 120), gaussian(22.0, 15)]


@pytest.mark.parametrize(("sigma", "count"), [(1.0, 1), (8.0, 30), (50.0, 2)])
def test_the_gaussian_mechanism_has_its_own_mu_and_no_regret(sigma, count):
    found, mu = trade_off([gaussian(sigma, count)]), math.sqrt(count) / sigma
    assert mu <= found.mu <= mu + 5e-4 * max(1, count / 10)
    assert found.regret < 1e-3
    for fpr, tpr in zip(found.false_positive_rates, found.true_positive_rates, strict=True):
        best = stats.norm.cdf(stats.norm.ppf(fpr) + mu)
        assert best - 1e-9 <= tpr <= best * 1.002 + 2e-6


@pytest.mark.parametrize(
    "events",
    [STEPS, [PoissonGaussian(0.8, 0.004, 2000)], [BranchMaximum(((STEPS[0],), (gaussian(3.0),)))]],
    ids=["steps", "rare", "branches"],
)
def test_mu_dominates_the_run_s_own_curve(events):
    found = trade_off(events)
    rates = np.array(RATES)
    gaussian_rates = stats.norm.cdf(stats.norm.ppf(rates) + found.mu) + found.slack
    ours = np.array(risk_of_events(events, RATES).true_positive_rates)
    assert (ours <= gaussian_rates * (1 + 1e-4) + 1e-6).all()
    assert (np.array(found.true_positive_rates) >= ours - 1e-9).all()
    assert 0 <= found.regret < 0.06


def test_one_step_is_dominated_at_every_epsilon_in_both_directions():
    """Against the exact profile of one step, not against our own discretisation of it."""
    event = PoissonGaussian(1.1, 0.2)
    found = trade_off([event])
    for epsilon in np.linspace(0, 6, 200):
        exact = max(hockey_stick(event, float(epsilon), removed=removed) for removed in (True, False))
        assert exact <= gaussian_profile(np.array([max(epsilon, 1e-12)]), found.mu)[0] + found.slack


def test_mu_is_not_the_central_limit_s():
    """The asymptotic formula claims less than is true where steps are rare: ours does not."""
    sigma, rate, count = 0.8, 0.004, 2000
    asymptotic = rate * math.sqrt(count * math.expm1(1 / sigma**2))
    assert trade_off([PoissonGaussian(sigma, rate, count)]).mu > 1.2 * asymptotic


def test_events_without_a_loss_distribution_are_refused():
    with pytest.raises(AccountingError):
        trade_off([ExponentialPicks(0.1, 3)])
