"""The filter: sound where events are chosen by what came out, which plain composition is not."""

from __future__ import annotations

import math

import pytest
from exact import QUIET, RARE, hockey_stick
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from cords_dp.accounting import ExponentialPicks, PoissonGaussian, RenyiFilter, epsilon_bound, gaussian
from cords_dp.errors import AccountingError

RELEASE = gaussian(2.0)


def delta_after(epsilon, choose, *, removed):
    """Exact δ of the release followed by what ``choose`` makes of the (up to) two divergences left at each output."""
    s, (here, there) = RELEASE.sigma, ((1.0, 0.0) if removed else (0.0, 1.0))

    def density(y):
        left = epsilon - (stats.norm.logpdf(y, here, s) - stats.norm.logpdf(y, there, s))
        return stats.norm.pdf(y, here, s) * choose([hockey_stick(e, left, removed=removed) for e in (RARE, QUIET)])

    return integrate.quad(density, -16, 17, limit=400)[0]


def worst(epsilon, choose):
    return max(delta_after(epsilon, choose, removed=removed) for removed in (True, False))


@pytest.mark.parametrize("epsilon", [0.8, 1.2])
def test_whoever_chooses_by_what_came_out_exceeds_every_fixed_plan(epsilon):
    """Each of both plans costs at most δ; choosing between them after the release costs more. Hence the filter."""
    fixed = max(worst(epsilon, lambda both: both[0]), worst(epsilon, lambda both: both[1]))
    assert worst(epsilon, max) > 1.02 * fixed


@pytest.mark.parametrize("epsilon", [1.2, 2.0, 3.0])
def test_the_filter_covers_that_choice(epsilon):
    """At the smallest δ for which the filter would let either plan go on, the adaptive choice is within δ."""

    def refuses_one(log_delta):
        filter_ = RenyiFilter(epsilon, math.exp(log_delta))
        return max(filter_.share([RELEASE, e]) for e in (RARE, QUIET)) - 1

    smallest = math.exp(optimize.brentq(refuses_one, math.log(1e-12), math.log(0.2), xtol=1e-6))
    assert worst(epsilon, max) < smallest


def test_the_price_of_adaptivity():
    """Against numerical composition of a plan that was fixed: some 15 %."""
    for events in ([PoissonGaussian(4.2, 0.19, 120), gaussian(22.0, 15)], [PoissonGaussian(3.5, 0.1, 3000)]):
        fixed = epsilon_bound(events, 1e-5, "pld").epsilon

        def excess(total, events=events):
            return RenyiFilter(total, 1e-5).share(events) - 1

        needed = optimize.brentq(excess, fixed / 2, 3 * fixed, xtol=1e-4)
        assert fixed < needed < 1.2 * fixed


@settings(max_examples=30)
@given(epsilon=st.floats(0.05, 20), exponent=st.floats(2, 9))
def test_orders_are_few_and_fixed_by_the_total(epsilon, exponent):
    filter_ = RenyiFilter(epsilon, 10**-exponent)
    assert 1 <= len(filter_.orders) <= 3
    assert min(filter_.orders) >= 2
    assert filter_.share([]) == 0


@settings(max_examples=30)
@given(
    epsilon=st.floats(0.2, 8),
    sigma=st.floats(1, 20),
    rate=st.floats(0.01, 1),
    counts=st.tuples(st.integers(1, 500), st.integers(1, 500)),
)
def test_more_events_are_never_easier_to_admit(epsilon, sigma, rate, counts):
    filter_ = RenyiFilter(epsilon, 1e-5)
    one, both = (PoissonGaussian(sigma, rate, n) for n in (counts[0], sum(counts)))
    assert filter_.share([one]) <= filter_.share([both])
    assert filter_.share([both]) == pytest.approx(filter_.share([one, one.with_count(counts[1])]))
    assert filter_.admits([one]) or not filter_.admits([one, ExponentialPicks(0.1)])


def test_what_the_filter_admits_fits_numerical_composition_too():
    """A filter that admitted more than a fixed plan may spend would be wrong."""
    for sigma, total in ((1.5, 6.0), (4.0, 2.0), (8.0, 0.5)):
        event = PoissonGaussian(sigma, 0.1)
        most = math.floor(1 / RenyiFilter(total, 1e-5).share([event]))
        assert most >= 1
        assert epsilon_bound([event.with_count(most)], 1e-5, "pld").epsilon <= total


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-5), (math.inf, 1e-5), (1.0, 0.0), (1.0, 1.0), (math.nan, 0.1)])
def test_no_total(epsilon, delta):
    with pytest.raises(AccountingError, match="not a total"):
        RenyiFilter(epsilon, delta)
