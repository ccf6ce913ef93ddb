"""μ of Gaussian DP: exact on the Gaussian mechanism, never below an attack, and above every point of the curve."""

from __future__ import annotations

import math

import numpy as np
import pytest
from exact import QUIET, RARE, hockey_stick
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cords_dp.accounting import (
    BranchMaximum,
    ExponentialPicks,
    GumbelFreeze,
    PoissonGaussian,
    epsilon_bound,
    gaussian,
    membership_risk,
)
from cords_dp.accounting.trade_off import RATES, gaussian_profile, risk_of_bound, risk_of_events, trade_off
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


# --- in two numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sigma", "count"), [(1.0, 1), (4.0, 1), (8.0, 30), (0.5, 1), (50.0, 2)])
def test_the_gaussian_mechanism_exactly(sigma, count):
    """Advantage 2Φ(μ/2) − 1 and TPR = Φ(Φ⁻¹(FPR) + μ), μ = √count/σ."""
    mu = math.sqrt(count) / sigma
    risk = risk_of_events([gaussian(sigma, count)], (0.1, 0.01, 0.001))
    exact = 2 * stats.norm.cdf(mu / 2) - 1
    assert exact - 1e-9 <= risk.advantage <= exact + 1e-4 * count
    for fpr, tpr in zip(risk.false_positive_rates, risk.true_positive_rates, strict=True):
        best = stats.norm.cdf(stats.norm.ppf(fpr) + mu)
        assert best - 1e-9 <= tpr <= min(1.0, best * (1 + 1e-3) + 1e-6)


def test_a_subsampled_step_exactly():
    """The worse direction of total variation: q·(2Φ(1/2σ) − 1)."""
    for event in (RARE, QUIET):
        exact = max(hockey_stick(event, 0.0, removed=removed) for removed in (True, False))
        assert exact == pytest.approx(event.rate * (2 * stats.norm.cdf(0.5 / event.sigma) - 1))
        assert exact <= risk_of_events([event]).advantage <= exact + 1e-4


def test_a_real_attack_on_composed_steps_stays_below():
    """The likelihood-ratio attack on 60 subsampled releases, with many draws: close to the bound, not above it."""
    rng, steps, draws, q, s = np.random.default_rng(0), 60, 40_000, 0.1, 2.0
    noise = rng.normal(0, s, (2, draws, steps))
    noise[1] += rng.random((draws, steps)) < q
    scores = np.log1p(q * np.expm1((noise - 0.5) / s**2)).sum(axis=2)
    risk = risk_of_events([PoissonGaussian(s, q, steps)], (0.1, 0.01))
    seen = max((scores[1] > t).mean() - (scores[0] > t).mean() for t in np.linspace(-1, 1, 41))
    assert 0.9 * risk.advantage < seen < risk.advantage + 4 / math.sqrt(draws)
    for fpr, tpr in zip(risk.false_positive_rates, risk.true_positive_rates, strict=True):
        reached = (scores[1] > np.quantile(scores[0], 1 - fpr)).mean()
        assert reached < tpr * 1.15


@given(epsilon=st.floats(0, 10), delta=st.floats(0, 0.1), fpr=st.floats(0, 1))
def test_bounds_from_epsilon_and_delta_are_those_of_randomised_response(epsilon, delta, fpr):
    risk = risk_of_bound(epsilon, delta, (fpr,))
    (tpr,) = risk.true_positive_rates
    assert risk.advantage <= 1
    assert min(1.0, fpr) - 1e-12 <= tpr <= 1
    assert tpr - fpr <= risk.advantage + 1e-9
    answer = math.exp(epsilon) / (1 + math.exp(epsilon))  # tells the truth: TPR − FPR of a mechanism with this ε
    assert (1 - delta) * (2 * answer - 1) + delta == pytest.approx(risk.advantage, abs=1e-9)


def test_the_events_say_more_than_epsilon_and_delta():
    events = [PoissonGaussian(4.2, 0.19, 120), gaussian(22.0, 15)]
    bound = epsilon_bound(events, 1e-5)
    fine, coarse = risk_of_events(events), risk_of_bound(bound.epsilon, 1e-5)
    assert fine.advantage < coarse.advantage / 3
    assert all(f < c for f, c in zip(fine.true_positive_rates, coarse.true_positive_rates, strict=True))
    assert membership_risk(events, bound.epsilon, 1e-5) == fine


def test_where_no_distribution_is_known_epsilon_and_delta_speak():
    risk = membership_risk([ExponentialPicks(0.01, 100)], 1.0, 1e-5)
    assert risk == risk_of_bound(1.0, 1e-5)
    assert risk.source == "epsilon and delta"


def test_branches_count_with_the_worse_one():
    both = risk_of_events([BranchMaximum(((RARE,), (QUIET,)))], (0.1, 0.001))
    each = [risk_of_events([event], (0.1, 0.001)) for event in (RARE, QUIET)]
    assert both.advantage == pytest.approx(max(risk.advantage for risk in each), abs=1e-6)
    for place in (0, 1):
        assert both.true_positive_rates[place] >= max(r.true_positive_rates[place] for r in each) - 1e-9


def test_nothing_released_means_guessing():
    risk = risk_of_events([])
    assert (risk.advantage, risk.true_positive_rates) == (0.0, risk.false_positive_rates)


def test_no_privacy_means_certainty():
    risk = risk_of_bound(math.inf, 0.0)
    assert (risk.advantage, set(risk.true_positive_rates)) == (1.0, {1.0})


def test_words_for_a_report():
    text = risk_of_events([gaussian(2.0), GumbelFreeze(0.1)]).text()
    assert "at most 61." in text or "at most 60." in text or "at most 62." in text
    assert "1 % of the absent" in text
    assert "0.1 % of the absent" in text
