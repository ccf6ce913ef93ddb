"""Several records of one person: closed forms, dp-accounting's mixtures, exact integrals, and monotonicity."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as reference
from scipy import integrate, optimize, stats

from cords_dp.accounting import (
    BranchMaximum,
    Event,
    ExponentialPicks,
    GumbelFreeze,
    PoissonGaussian,
    epsilon_bound,
    gaussian,
    group_epsilons,
)
from cords_dp.accounting.group import MOST_USEFUL, mixture_pld
from cords_dp.accounting.pld import directions, epsilon_of
from cords_dp.accounting.repeat import RepeatAndSelect

DELTA = 1e-5
STEP = PoissonGaussian(sigma=2.4838060096634442, rate=4096 / 45000, count=330)  # full_dp_cifar10.py, ε = 3


def epsilon_of_gaussian(mu: float, delta: float) -> float:
    """Balle & Wang 2018: the exact ε of one Gaussian release whose mean moves by μ standard deviations."""

    def profile(e: float) -> float:
        return stats.norm.cdf(mu / 2 - e / mu) - math.exp(e) * stats.norm.cdf(-mu / 2 - e / mu) - delta

    return float(optimize.brentq(profile, 0, 100))


# --- closed forms ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_a_gaussian_release_has_k_times_the_sensitivity(size):
    exact = epsilon_of_gaussian(size * math.sqrt(5) / 12, DELTA)
    found = group_epsilons([gaussian(12.0, 5)], [], DELTA, sizes=[size])[size]
    assert exact <= found <= 1.002 * exact


def test_a_gumbel_freeze_shifts_k_scores():
    found = group_epsilons([GumbelFreeze(0.3, 2)], [], DELTA, sizes=[4])[4]
    assert found == pytest.approx(epsilon_bound([GumbelFreeze(0.3, 8)], DELTA, "rough").epsilon)


def test_picks_have_k_times_the_range():
    found = group_epsilons([ExponentialPicks(0.01, 100)], [], DELTA, sizes=[4])[4]
    assert found == epsilon_bound([ExponentialPicks(0.04, 100)], DELTA, "rdp").epsilon


def test_picks_and_steps_share_delta():
    steps, picks = PoissonGaussian(4.0, 0.1, 50), ExponentialPicks(0.004, 100)
    alone = [group_epsilons([event], [], DELTA / 2, sizes=[2])[2] for event in (steps, picks)]
    assert group_epsilons([steps, picks], [], DELTA, sizes=[2])[2] == pytest.approx(sum(alone))


# --- mixtures --------------------------------------------------------------------------------------


def exact_profile(sigma: float, rate: float, size: int, epsilon: float, *, present: bool) -> float:
    shifts = np.arange(size + 1)
    weights = stats.binom.pmf(shifts, size, rate)

    def excess(x: float) -> float:
        mixed, plain = weights @ stats.norm.pdf(x, shifts, sigma), stats.norm.pdf(x, 0, sigma)
        upper, lower = (mixed, plain) if present else (plain, mixed)
        return max(0.0, upper - math.exp(epsilon) * lower)

    points = np.linspace(-10 * sigma, size + 10 * sigma, 60)
    return sum(integrate.quad(excess, a, b, epsabs=1e-13, limit=200)[0] for a, b in pairwise(points))


@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize(("sigma", "rate", "size"), [(1.0, 0.1, 2), (2.0, 0.3, 4), (0.8, 0.02, 8), (3.0, 1.0, 2)])
def test_the_profile_of_a_mixture_is_exact(sigma, rate, size, present):
    pmf = directions(mixture_pld(sigma, rate, size, 1e-3))[0 if present else 1]
    for epsilon in (-0.5, 0.0, 0.1, 0.7, 2.0):
        exact = exact_profile(sigma, rate, size, epsilon, present=present)
        assert exact - 1e-9 <= pmf.get_delta_for_epsilon(epsilon) <= 1.002 * exact + 1e-6


@pytest.mark.parametrize(("sigma", "rate", "size", "count"), [(1.2, 0.05, 2, 60), (2.5, 0.09, 4, 99), (6.0, 0.4, 8, 9)])
def test_mixtures_compose_as_dp_accountings_do(sigma, rate, size, count):
    weights = stats.binom.pmf(np.arange(size + 1), size, rate)
    theirs = reference.from_mixture_gaussian_mechanism(
        sigma, range(size + 1), weights, value_discretization_interval=2e-3
    ).self_compose(count)
    ours = group_epsilons([PoissonGaussian(sigma, rate, count)], [], DELTA, sizes=[size])[size]
    assert ours == pytest.approx(theirs.get_epsilon_for_delta(DELTA), rel=1e-3)


@pytest.mark.parametrize("rate", [0.01, 0.2, 1.0])
def test_a_group_of_one_is_a_record(rate):
    event = PoissonGaussian(2.0, rate, 20)
    found = group_epsilons([event], [], DELTA, sizes=[1])[1]
    assert found == pytest.approx(epsilon_bound([event], DELTA, "pld").epsilon, rel=0.01)


# --- golden values, computed once with dp-accounting's mixture event on a grid of 1e-4 ---------------------


def test_a_run_of_three_gives_two_records_more_than_six():
    found = group_epsilons([STEP], [], DELTA)
    assert found[2] == pytest.approx(6.70, rel=0.005)
    assert found[4] == pytest.approx(15.8, rel=0.005)
    assert found[8] == math.inf


@pytest.mark.parametrize(("size", "sigma", "golden"), [(2, 4.423375707901912, 3.2538), (4, 8.163329195146787, 3.4954)])
def test_a_kth_of_epsilon_is_not_enough(size, sigma, golden):
    """``sigma``: of full_dp_cifar10.py with privacy.epsilon = 3/size."""
    event = PoissonGaussian(sigma, STEP.rate, 330)
    assert epsilon_bound([event], DELTA, "pld").epsilon <= 3 / size
    assert group_epsilons([event], [], DELTA, sizes=[size])[size] == pytest.approx(golden, rel=1e-3)


# --- lists -----------------------------------------------------------------------------------------


def test_more_records_have_more():
    found = list(group_epsilons([PoissonGaussian(8.0, 0.05, 100)], [gaussian(40.0)], DELTA, sizes=range(1, 9)).values())
    assert found == sorted(found)
    assert found[0] < found[-1] / 4


def test_a_branch_is_the_worst_of_its_branches():
    rare, quiet = PoissonGaussian(1.5, 0.02, 30), PoissonGaussian(6.0, 0.3, 30)
    alone = [group_epsilons([event], [], DELTA, sizes=[4])[4] for event in (rare, quiet)]
    found = group_epsilons([BranchMaximum(((rare,), (quiet,)))], [], DELTA, sizes=[4])[4]
    assert max(alone) - 1e-6 <= found <= 1.01 * max(alone)


def test_the_worst_way_to_lie_in_d_and_v_counts():
    """Two Gaussian releases of D and V: a records move D's by a, k − a V's, so k in one of them is the worst."""
    found = group_epsilons([gaussian(10.0)], [gaussian(8.0)], DELTA, sizes=[4])[4]
    exact = epsilon_of_gaussian(4 / 8, DELTA)
    assert exact <= found <= 1.002 * exact


def test_records_in_both_are_composed():
    """At small losses ε grows like a root: five and three records can cost more than eight in one of the two."""
    picks = ExponentialPicks(0.05, 1)  # pure: ε is the number of records times ε₀
    found = group_epsilons([picks], [gaussian(9.0)], DELTA, sizes=[2])[2]
    mixed = epsilon_bound([picks], DELTA / 2, "rdp").epsilon + epsilon_of_gaussian(1 / 9, DELTA / 2)
    assert found >= max(mixed, epsilon_of_gaussian(2 / 9, DELTA))


def test_a_secret_subset_holds_one_of_the_group_with_a_larger_chance():
    inside = group_epsilons([gaussian(4.0)], [], DELTA / 0.19, sizes=[2])[2]
    found = group_epsilons([gaussian(4.0)], [], DELTA, inclusion=0.1, sizes=[2])[2]
    assert found == pytest.approx(math.log1p(0.19 * math.expm1(inside)), rel=1e-3)


def test_other_events_are_bounded_by_their_divergences():
    """Mironov's rule on an event whose divergences for a group are known: it holds, and is not far above."""
    found = group_epsilons([RepeatAndSelect((gaussian(40.0),), 2.0, 1.0)], [], DELTA, sizes=[2])[2]
    exact = epsilon_bound([RepeatAndSelect((gaussian(20.0),), 2.0, 1.0)], DELTA, "rdp").epsilon
    assert exact <= found <= 3 * exact


def test_an_event_that_knows_nothing_has_no_useful_bound():
    class Unknown(Event):
        kind = "unknown"
        count = 1

        def with_count(self, count):
            return self

    assert group_epsilons([Unknown()], [], DELTA)[2] == math.inf


def test_large_losses_have_no_useful_bound():
    assert set(group_epsilons([PoissonGaussian(0.3, 0.2, 100_000)], [], DELTA).values()) == {math.inf}
    assert epsilon_of(mixture_pld(0.05, 0.5, 8, 1e-2), DELTA) > MOST_USEFUL


def test_no_events_cost_nothing():
    assert group_epsilons([], [], DELTA) == {2: 0.0, 4: 0.0, 8: 0.0}
