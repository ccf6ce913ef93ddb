"""Divergences of the Poisson-subsampled Gaussian, against integration, in both directions and at fractional orders."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from cords_dp.accounting import PoissonGaussian, composition, epsilon_bound, gaussian
from cords_dp.accounting import poisson_gaussian as module
from cords_dp.accounting.events import PLD_STEP
from cords_dp.accounting.pld import directions, knots


def rdp_by_integration(event, order):
    """Rényi divergences (record present, record absent); the trapezoid rule is exact for such integrands."""
    s, q = event.sigma, event.rate
    z = np.linspace(-14 * s - order, 14 * s + order + 1, 20_001)
    base = -(z**2) / (2 * s**2) - 0.5 * math.log(2 * math.pi * s**2)
    ratio = (2 * z - 1) / (2 * s**2)
    if q < 1:
        ratio = np.logaddexp(math.log1p(-q), math.log(q) + ratio)

    def divergence(power):
        return (special.logsumexp(base + power * ratio) + math.log(z[1] - z[0])) / (order - 1)

    return divergence(order), divergence(1 - order)


PAIRS = [(1.5, 0.04), (4.2, 0.19), (0.8, 0.001), (20.0, 0.05), (2.0, 1.0), (1.0, 0.5)]
ORDERS = [1.05, 1.5, 1.95, 2.0, 2.25, 3.0, 4.75, 8.5, 11.75, 16.0, 32.0]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("sigma", "rate"), [(1.5, 0.04), (4.2, 0.19), (0.8, 0.001), (20.0, 0.05), (2.0, 1.0), (1.0, 0.5)]
)
def test_rdp_is_an_upper_bound_in_both_directions(sigma, rate, order):
    present, absent = rdp_by_integration(PoissonGaussian(sigma, rate), order)
    assert present >= absent * (1 - 1e-9)  # so the one that is computed is the larger
    assert PoissonGaussian(sigma, rate).rdp(order) >= present - 1e-11


@settings(max_examples=40)
@given(
    sigma=st.floats(0.5, 30),
    rate=st.floats(1e-4, 1.0),
    order=st.sampled_from([o for o in composition._RDP_ORDERS if o <= 32]),
)
def test_rdp_is_an_upper_bound_wherever_it_is_finite(sigma, rate, order):
    assert (
        PoissonGaussian(sigma, rate).rdp(order) >= max(rdp_by_integration(PoissonGaussian(sigma, rate), order)) - 1e-10
    )


@pytest.mark.parametrize("order", [2.0, 5.0, 17.0, 64.0])
@pytest.mark.parametrize(("sigma", "rate"), [(1.5, 0.04), (4.2, 0.19), (2.0, 1.0)])
def test_integer_orders_are_exact(sigma, rate, order):
    exact = max(rdp_by_integration(PoissonGaussian(sigma, rate), order))
    assert PoissonGaussian(sigma, rate).rdp(order) == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize(("sigma", "rate"), [*PAIRS, (0.3, 0.3), (60.0, 1e-4)])
def test_all_terms_at_once_are_what_they_are_one_by_one(sigma, rate):
    for order in (order for order in composition._WHOLE_ORDERS if order > 2):
        if rate < 1:
            one_by_one = rdp_privacy_accountant._compute_rdp_poisson_subsampled_gaussian(rate, sigma, [order])[0]
            assert module._finite_sum(sigma, rate, order) == pytest.approx(float(one_by_one), rel=1e-10, abs=1e-13)


def test_the_price_of_upper_bounds_at_fractional_orders_is_small():
    """At the orders that decide about ε ≤ 10 they cost at most one percent."""
    for event in (PoissonGaussian(1.5, 0.04, 2250), PoissonGaussian(1.0, 0.01, 1000), PoissonGaussian(3.0, 0.5, 100)):
        exact = min(
            event.count * max(rdp_by_integration(event, a)) + math.log1p(-1 / a) - math.log(1e-5 * a) / (a - 1)
            for a in [o for o in composition._RDP_ORDERS if o <= 50]
        )
        assert exact * (1 - 1e-9) <= epsilon_bound([event], 1e-5, "rdp").epsilon <= 1.011 * exact


def test_orders_that_do_not_converge_are_left_out_quietly(capfd):
    event = PoissonGaussian(0.61, 0.2, 100)
    assert event.rdp(1.05) == math.inf
    assert math.isfinite(epsilon_bound([event], 1e-5, "rdp").epsilon)
    assert capfd.readouterr().err == ""


def test_a_noise_is_evaluated_once(monkeypatch):
    """Calibration changes one σ at a time and asks for the others again and again."""
    calls = []
    real = module._rdp
    monkeypatch.setattr(module, "_rdp", lambda *key: calls.append(key) or real(*key))
    fixed = gaussian(23.7, 3)
    for sigma in (2.01, 2.02, 2.03):
        epsilon_bound([PoissonGaussian(sigma, 0.1, 50), fixed], 1e-5, "rdp")
        epsilon_bound([PoissonGaussian(sigma, 0.1, 60), fixed], 1e-6, "rdp")
    assert len(calls) == 4 * len(composition._RDP_ORDERS)


@pytest.mark.parametrize(
    ("sigma", "rate"), [(0.5, 0.5), (1.0, 0.01), (4.0, 0.1), (16.0, 1.0), (20.0, 1 - 1e-7), (0.7, 0.999), (3.0, 1e-5)]
)
def test_the_loss_distribution_is_dp_accountings(sigma, rate):
    step = PLD_STEP if sigma > 2 else 50 * PLD_STEP  # dp-accounting asks for one point of a wide range after the other
    ours = PoissonGaussian(sigma, rate).pld_on(step)
    theirs = from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=step)
    for one, other in zip(directions(ours), directions(theirs), strict=True):
        for mine, expected in zip(knots(one), knots(other), strict=True):
            assert mine == pytest.approx(expected, abs=1e-11)


def test_a_loss_beyond_the_range_of_exp_is_no_problem():
    assert np.isfinite(PoissonGaussian(0.05, 0.3).pld_on(100 * PLD_STEP).get_epsilon_for_delta(1e-5))
