"""Exponential mechanism: Gumbel freezes against integration, and the paper's formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

from cords_dp.accounting import (
    ExponentialPicks,
    GumbelFreeze,
    PoissonGaussian,
    advanced_composition,
    epsilon_bound,
    gumbel_hockey_stick,
)

DPSGD = PoissonGaussian(sigma=1.5, rate=0.04, count=2250)


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
