"""The bound on a whole curve from one run: against linear programs, against laws that are known, and its level."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import binom, norm

from cords_dp.accounting import PoissonGaussian
from cords_dp.accounting.composition import composed_pld
from cords_dp.accounting.pld import directions, knots
from cords_dp.accounting.trade_off import gaussian_profile, trade_off
from cords_dp.auditing.one_run import (
    Least,
    _check,
    _refuted,
    count_right,
    epsilon_from_guesses,
    gaussian_curve,
    mu_from_guesses,
)
from cords_dp.auditing.trade_off import epsilon_at
from cords_dp.errors import AccountingError

GRID = np.linspace(-8, 8, 161)


def curve_of_profile(epsilons: np.ndarray, deltas: np.ndarray) -> Least:
    """Return F⁻¹ where P[M(u) ∈ S] ≤ δ + e^ε·P[M(u′) ∈ S] in both directions, for some pairs with ε of any sign.

    Every pair is a tangent of F; fewer of them claim less.
    """
    shrink = np.exp(-np.asarray(epsilons))
    return lambda p: max(0.0, float((shrink * (p - deltas)).max()))


def curve_p_value(canaries: int, guesses: int, correct: int, least: Least) -> float:
    """Return how likely so many right guesses are, at most, if the run keeps to the curve: up to four digits."""
    _check(canaries, guesses, correct)
    if not _refuted(canaries, guesses, correct, 1.0, least):
        return 1.0
    low, high = -300.0, 0.0  # exponents of ten
    while high - low > 4e-5:
        middle = (low + high) / 2
        low, high = (low, middle) if _refuted(canaries, guesses, correct, 10**middle, least) else (middle, high)
    return float(10**high)


def symmetric_profile(mu):
    """(ε, δ) of μ-GDP on a grid, of both signs."""
    return GRID, gaussian_profile(GRID, mu)


def pure(epsilon):
    return curve_of_profile(np.array([epsilon, -epsilon]), np.array([0.0, -math.expm1(-epsilon)]))


def largest_tail(m, g, c, epsilons, deltas):
    """The largest P[C ≥ c] that the lemma's inequalities leave, for all upper sets at once, as a linear program."""
    rows, limits = [], []
    j = np.arange(g + 1)
    for i in range(1, g + 1):
        right, wrong = np.where(j >= i, j, 0) / m, np.where(j >= i - 1, g - j, 0) / m
        for epsilon, delta in zip(epsilons, deltas, strict=True):
            rows.append(right - math.exp(epsilon) * wrong)
            limits.append(delta)
    found = linprog(-(j >= c).astype(float), A_ub=np.array(rows), b_ub=limits, A_eq=[np.ones(g + 1)], b_eq=[1.0])
    return -found.fun


@pytest.mark.parametrize(("m", "g", "mu"), [(1, 1, 0.7), (5, 5, 0.4), (9, 6, 1.0), (40, 7, 0.8)])
def test_the_recursion_solves_the_linear_program(m, g, mu):
    epsilons, deltas = symmetric_profile(mu)
    epsilons, deltas = epsilons[::4], deltas[::4]
    for c in range(1, g + 1):
        exact = largest_tail(m, g, c, epsilons, deltas)
        assert curve_p_value(m, g, c, curve_of_profile(epsilons, deltas)) == pytest.approx(exact, rel=2e-4)


@pytest.mark.parametrize("mu", [0.1, 0.73, 3.0])
def test_one_canary_is_guessed_as_well_as_neyman_and_pearson_allow(mu):
    assert curve_p_value(1, 1, 1, gaussian_curve(mu, 0.0)) == pytest.approx(norm.cdf(mu / 2), rel=2e-4)


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_randomised_response_stays_below(epsilon):
    """All coins are shown, each flipped with the same chance: right guesses are binomial."""
    m = 30
    for c in range(m + 1):
        tail = binom.sf(c - 1, m, 1 / (1 + math.exp(-epsilon)))
        assert tail <= curve_p_value(m, m, c, pure(epsilon)) * (1 + 1e-9)


def every_run(m, outputs):
    """(probability, coins, output) of a mechanism that is given as a table of outputs."""
    for coins in itertools.product((0, 1), repeat=m):
        for output, chance in outputs(coins).items():
            yield chance / 2**m, coins, output


@pytest.mark.parametrize("epsilon", [0.5, 1.5])
def test_canaries_that_hang_together_stay_below(epsilon):
    """One answer about all coins, by the exponential mechanism with the number of right coins as utility."""
    m = 4
    truth = math.exp(epsilon)

    def outputs(coins):
        weights = {
            v: truth ** (sum(a == b for a, b in zip(v, coins, strict=True)) / 2)
            for v in itertools.product((0, 1), repeat=m)
        }
        return {v: w / sum(weights.values()) for v, w in weights.items()}

    law = np.zeros(m + 1)
    for chance, coins, guess in every_run(m, outputs):
        law[sum(a == b for a, b in zip(guess, coins, strict=True))] += chance
    for c in range(m + 1):
        assert law[c:].sum() <= curve_p_value(m, m, c, pure(epsilon)) + 1e-9


@pytest.mark.parametrize(("m", "share"), [(60, 1.0), (200, 0.1), (200, 0.5)])
@pytest.mark.parametrize("mu", [0.3, 0.73, 2.0])
def test_p_values_are_valid_over_many_gaussian_runs(mu, m, share):
    """At the true μ no level is exceeded more often than it says, whatever the guesser leaves open."""
    guesses, runs, rng = 2 * round(m * share / 2), 3000, np.random.default_rng(1)
    included = rng.random((runs, m)) < 0.5
    scores = included + rng.normal(0, 1 / mu, (runs, m))
    right = np.array([count_right(s, u, guesses) for s, u in zip(scores, included, strict=True)])
    known = {c: curve_p_value(m, guesses, c, gaussian_curve(mu)) for c in set(right.tolist())}
    values = np.array([known[c] for c in right.tolist()])
    for level in (0.01, 0.05, 0.2, 0.5):
        assert (values <= level).mean() <= level + 3 * math.sqrt(level * (1 - level) / runs)
    tails = {c: (right >= c).mean() for c in known}
    assert all(known[c] >= tails[c] - 4 * math.sqrt(tails[c] / runs) for c in known)


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_canaries_that_share_their_noise_stay_below(dimensions):
    """Eight coins in so few numbers, guessed together by the joint posterior of all 256 cases."""
    m, mu, runs, rng = 8, 1.5, 4000, np.random.default_rng(2)
    directions_of = rng.normal(size=(m, dimensions))
    directions_of /= np.linalg.norm(directions_of, axis=1, keepdims=True)  # a coin moves the output by 1
    cases = np.array(list(itertools.product((0, 1), repeat=m)))
    coins = cases[rng.integers(0, len(cases), runs)]
    seen = coins @ directions_of + rng.normal(0, 1 / mu, (runs, dimensions))
    gaps = ((seen[:, None, :] - (cases @ directions_of)[None]) ** 2).sum(axis=2)
    for guess in (cases[gaps.argmin(axis=1)], (np.exp(-gaps * mu**2 / 2) @ (cases - 0.5)) > 0):
        right = (guess == coins).sum(axis=1)
        for c in range(m + 1):
            tail = (right >= c).mean()
            assert tail <= curve_p_value(m, m, c, gaussian_curve(mu)) + 4 * math.sqrt(tail / runs)


def test_a_wrong_mu_is_refuted_and_the_true_one_is_not():
    m, guesses, rng = 2000, 200, np.random.default_rng(3)
    included = rng.random(m) < 0.5
    right = count_right(included + rng.normal(0, 1.0, m), included, guesses)
    assert curve_p_value(m, guesses, right, gaussian_curve(0.3)) < 1e-3
    assert curve_p_value(m, guesses, right, gaussian_curve(1.0)) > 0.05


def test_the_bound_is_where_the_p_value_meets_alpha():
    m, guesses, right, alpha = 1000, 100, 82, 0.05
    mu = mu_from_guesses(m, guesses, right, alpha=alpha)
    assert curve_p_value(m, guesses, right, gaussian_curve(mu + 1e-3)) >= alpha
    assert curve_p_value(m, guesses, right, gaussian_curve(mu - 1e-3)) < alpha
    bounds = [mu_from_guesses(m, guesses, c, alpha=alpha) for c in (50, 65, 82, 100)]
    assert bounds[0] == 0.0
    assert bounds == sorted(bounds)
    assert mu_from_guesses(m, guesses, right, alpha=1e-5) < mu


@pytest.mark.parametrize(("mu", "share"), [(0.73, 0.1), (1.5, 0.1), (0.73, 0.5)])
def test_it_is_tighter_than_the_bound_from_one_epsilon_and_delta(mu, share):
    """The same guesses, told as ε at the same δ; the number right is what a Gaussian run gives on average."""
    m, delta = 2000, 1e-5
    guesses = 2 * round(m * share / 2)
    rng, right = np.random.default_rng(4), []
    for _ in range(20):
        included = rng.random(m) < 0.5
        right.append(count_right(included + rng.normal(0, 1 / mu, m), included, guesses))
    typical = round(float(np.mean(right)))
    found = mu_from_guesses(m, guesses, typical, alpha=0.05)
    as_epsilon = epsilon_at([PoissonGaussian(1 / found, 1.0)], delta)
    assert as_epsilon > 1.3 * epsilon_from_guesses(m, guesses, typical, delta=delta, alpha=0.05)
    assert found < mu


def test_the_curve_of_a_composition_lies_below_its_dominating_gaussian():
    """DP-SGD's own profile allows a little less than μ of Gaussian DP, which dominates it."""
    events = [PoissonGaussian(4.2, 0.19, 120)]
    one, other = (knots(pmf) for pmf in directions(composed_pld(events)))
    epsilons = np.linspace(-4, 4, 161)
    deltas = np.maximum(np.interp(epsilons, *one), np.interp(epsilons, *other)) + 1e-6
    own = curve_p_value(500, 50, 40, curve_of_profile(epsilons, deltas))
    assert own <= curve_p_value(500, 50, 40, gaussian_curve(trade_off(events).mu)) * 1.01
    assert own > 1e-12


def test_extremes_are_numbers():
    assert curve_p_value(10, 10, 0, gaussian_curve(0.0)) == 1.0
    assert curve_p_value(10**5, 10**4, 10**4, gaussian_curve(0.5, 0.0)) < 1e-30
    assert mu_from_guesses(10**4, 10**4, 10**4, alpha=1e-9) > 1
    assert curve_p_value(100, 100, 100, gaussian_curve(20.0)) > 0.5
    for impossible in ((10, 5, 6), (4, 5, 5), (3, 0, 0)):
        with pytest.raises(AccountingError, match="impossible"):
            curve_p_value(*impossible, gaussian_curve(1.0))
