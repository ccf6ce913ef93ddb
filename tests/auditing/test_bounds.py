"""The bounds behind the audits, against enumeration and against laws that are known exactly."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

from cords_dp.accounting import PoissonGaussian, epsilon_bound
from cords_dp.auditing.findings import Finding, judge
from cords_dp.auditing.one_run import count_right, epsilon_from_guesses, guessing_p_value
from cords_dp.auditing.trade_off import Counts, epsilon_at, epsilon_of_events
from cords_dp.errors import AccountingError


def formula_by_enumeration(m, r, v, epsilon, delta):
    """Theorem 5.2 with W as a sum over all 2^r outcomes."""
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    law = np.zeros(r + 1)
    for bits in itertools.product((0, 1), repeat=r):
        law[sum(bits)] += math.prod(p if b else 1 - p for b in bits)
    steepest = max((law[v - i : v].sum() / i for i in range(1, v + 1)), default=0.0)
    return min(1.0, law[v:].sum() + 2 * m * delta * steepest)


@pytest.mark.parametrize(("m", "r", "epsilon", "delta"), [(4, 4, 0.7, 0.0), (9, 6, 1.0, 1e-3), (12, 8, 0.0, 1e-2)])
def test_the_p_value_is_the_theorems(m, r, epsilon, delta):
    for v in range(r + 1):
        assert guessing_p_value(m, r, v, epsilon, delta) == pytest.approx(
            formula_by_enumeration(m, r, v, epsilon, delta)
        )


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (1.0, 0.0), (0.5, 0.05), (1.0, 0.2)])
def test_no_guesser_beats_it_on_leaky_randomised_response(epsilon, delta):
    """All coins and outputs enumerated: each coin is shown with probability δ, else by randomised response."""
    m = 4
    flip = 1 / (1 + math.exp(epsilon))
    right_alone = delta + (1 - delta) * (1 - flip)  # the best guess of one coin
    law = np.zeros(m + 1)
    for right in itertools.product((0, 1), repeat=m):
        law[sum(right)] += math.prod(right_alone if b else 1 - right_alone for b in right)
    for v in range(m + 1):
        assert law[v:].sum() <= guessing_p_value(m, m, v, epsilon, delta) + 1e-12


def test_the_p_value_is_exact_for_randomised_response():
    epsilon, r, v = 1.0, 5, 4
    p = math.e / (1 + math.e)
    exact = sum(math.comb(r, i) * p**i * (1 - p) ** (r - i) for i in range(v, r + 1))
    assert guessing_p_value(r, r, v, epsilon, 0.0) == pytest.approx(exact)


def test_the_bound_of_one_run_rises_with_right_guesses_and_falls_with_confidence():
    bounds = [epsilon_from_guesses(1000, 100, v, delta=1e-9, alpha=0.05) for v in (50, 65, 80, 100)]
    assert bounds[0] == 0.0
    assert bounds == sorted(bounds)
    assert bounds[-1] > 3
    assert epsilon_from_guesses(1000, 100, 80, delta=1e-9, alpha=1e-5) < bounds[2]
    assert epsilon_from_guesses(1000, 100, 80, delta=1e-3, alpha=0.05) < bounds[2]
    with pytest.raises(AccountingError, match="impossible"):
        guessing_p_value(10, 5, 6, 1.0, 0.0)


def test_guesses_are_the_extreme_scores():
    scores, included = np.array([5.0, -3.0, 0.1, 4.0, -4.0]), np.array([True, True, False, True, False])
    assert count_right(scores, included, 4) == 3  # 5 and 4 are in, −4 is out, −3 was wrong


def test_one_event_costs_what_the_accountants_say():
    for sigma, rate in ((4.0, 1.0), (2.0, 0.1), (0.7, 0.5)):
        event = PoissonGaussian(sigma, rate)
        assert epsilon_at([event], 1e-5) == pytest.approx(epsilon_bound([event], 1e-5, "pld").epsilon, abs=1e-3)


def test_events_with_little_noise_of_different_amounts_compose():
    events = [PoissonGaussian(0.4, 0.1, 3), PoissonGaussian(0.7, 0.2, 5)]
    assert epsilon_at(events, 1e-5) == pytest.approx(epsilon_bound(events, 1e-5, "pld").epsilon, rel=0.03)


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_the_trade_off_is_exact_where_the_rates_are_known(rate):
    """With the true rates in place of bounds on them, the noise of the event comes out again."""
    sigma, threshold, size = 2.0, 0.7, 10**9
    level = norm.sf(threshold / sigma)
    power = (1 - rate) * level + rate * norm.sf((threshold - 1) / sigma)
    counts = Counts(round(power * size), size, round(level * size), size)
    event = PoissonGaussian(sigma, rate)
    found = epsilon_of_events([event], counts, delta=1e-5, alpha=0.5)
    assert found == pytest.approx(epsilon_at([event], 1e-5), rel=2e-3)
    quarter = PoissonGaussian(sigma / 4, rate)
    assert epsilon_of_events([quarter], counts, delta=1e-5, alpha=0.5) == pytest.approx(found, rel=1e-6)


def test_composed_events_give_a_bound_below_the_claim_and_less_noise_one_above():
    events, delta = [PoissonGaussian(2.0, 1.0, 4)], 1e-5  # four events are one with σ = 1
    claim = epsilon_at(events, delta)
    for sigma, above in ((1.0, False), (0.5, True)):
        rng = np.random.default_rng(0)
        with_record, without = rng.normal(1, sigma, 5000), rng.normal(0, sigma, 5000)
        counts = Counts.above(0.5, with_record, without)
        found = epsilon_of_events(events, counts, delta=delta, alpha=1e-4)
        assert (found > claim) == above
        assert found > 0.5 * claim


def test_clopper_pearson_covers():
    rng, misses = np.random.default_rng(0), 0
    for _ in range(400):
        hits = int(rng.binomial(200, 0.3))
        misses += Counts(hits, 200, hits, 200).least_power(0.05) > 0.3
    assert misses <= 0.05 * 400 + 3 * math.sqrt(0.05 * 0.95 * 400)


def test_a_row_fails_by_the_joint_bound_alone():
    def finding(joint):
        return Finding("x", "y", 1.0, 1e-5, "", lambda alpha: 2.0 if alpha == 0.05 else joint)

    assert [v.passed for v in judge([finding(0.9), finding(1.1)])] == [True, False]
    assert not judge([Finding("x", "replay", None, None, "", violations=("broken",))])[0].passed
