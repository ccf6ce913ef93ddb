"""Powers of loss distributions: dp-accounting's, only faster."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from hypothesis import given, settings
from hypothesis import strategies as st

from cords_dp.accounting import PoissonGaussian
from cords_dp.accounting.pld import connected_dots, directions, epsilon_of, self_composed
from cords_dp.errors import AccountingError

STEP = 2e-3


@settings(max_examples=10)
@given(sigma=st.floats(1.0, 8), rate=st.sampled_from([0.001, 0.05, 0.5, 1.0]), count=st.integers(1, 300))
def test_a_power_costs_what_dp_accountings_costs(sigma, rate, count):
    pld = PoissonGaussian(sigma, rate).pld_on(STEP)
    ours, theirs = self_composed(pld, count), pld.self_compose(count)
    epsilons = [0.0, 0.5, 1.0, 3.0, 8.0]
    # masses of Fourier transforms carry an error near 1e-16 each
    assert ours.get_delta_for_epsilon(epsilons) == pytest.approx(
        theirs.get_delta_for_epsilon(epsilons), rel=1e-6, abs=1e-11
    )


@settings(max_examples=10)
@given(sigma=st.floats(0.6, 8), rate=st.sampled_from([0.01, 0.3, 1.0]), count=st.integers(2, 500))
def test_no_mass_is_lost_in_a_power(sigma, rate, count):
    """What is cut off counts as a loss of infinity."""
    pld = PoissonGaussian(sigma, rate).pld_on(STEP)
    for one, power in zip(directions(pld), directions(self_composed(pld, count)), strict=True):
        assert mass(power) == pytest.approx(mass(one) ** count, abs=1e-11)
        assert power._infinity_mass >= 1e-15


def mass(pmf):
    return float(np.sum(pmf.to_dense_pmf()._probs)) + pmf._infinity_mass


def test_a_loss_of_infinity_adds_up():
    pld = PoissonGaussian(1.0, 0.1).pld_on(STEP)
    pmf = directions(pld)[0]
    pmf._infinity_mass = 0.01
    assert directions(self_composed(pld, 10))[0]._infinity_mass == pytest.approx(1 - 0.99**10)


@settings(max_examples=15)
@given(
    sigma=st.floats(0.6, 8),
    rate=st.sampled_from([0.001, 0.05, 0.5, 1.0]),
    count=st.integers(1, 100),
    delta=st.sampled_from([1e-12, 1e-7, 1e-5, 0.01, 0.4, 0.999]),
)
def test_epsilon_is_dp_accountings(sigma, rate, count, delta):
    pld = self_composed(PoissonGaussian(sigma, rate).pld_on(STEP), count)
    assert epsilon_of(pld, delta) == pytest.approx(pld.get_epsilon_for_delta(delta), rel=1e-9, abs=1e-12)


def test_epsilon_at_the_ends():
    pld = PoissonGaussian(0.03, 1.0).pld_on(0.05)  # losses of a thousand and more: e^-loss is zero
    for delta in (1e-9, 0.3, 0.9):
        assert epsilon_of(pld, delta) == pytest.approx(pld.get_epsilon_for_delta(delta), rel=1e-3)
        assert epsilon_of(pld, delta) >= pld.get_epsilon_for_delta(delta) * (1 - 1e-9)
    directions(pld)[0]._infinity_mass = 0.5
    assert epsilon_of(pld, 0.4) == np.inf


@settings(max_examples=15)
@given(sigma=st.floats(0.6, 8), rate=st.sampled_from([0.001, 0.05, 0.5, 1.0]), step=st.sampled_from([1e-3, 5e-3]))
def test_dots_are_connected_as_dp_accounting_does(sigma, rate, step):
    theirs = from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=step)
    for our, their in zip(directions(PoissonGaussian(sigma, rate).pld_on(step)), directions(theirs), strict=True):
        their = their.to_dense_pmf()
        assert our._lower_loss == their._lower_loss
        assert our._infinity_mass == pytest.approx(their._infinity_mass, rel=1e-6)
        assert our._probs == pytest.approx(their._probs, rel=1e-6, abs=1e-12)


def test_no_profile_no_distribution():
    for deltas in ([0.5], [1.2, 0.1], [0.5, -0.1], [0.5, np.nan]):
        with pytest.raises(AccountingError):
            connected_dots(np.array(deltas), 0, STEP)
