"""The rough accountant: an upper bound, close to the exact one, for every event with a pair; RDP for the rest."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cords_dp.accounting import BranchMaximum, ExponentialPicks, GumbelFreeze, PoissonGaussian, epsilon_bound, gaussian
from cords_dp.accounting.composition import GLANCE, ROUGH

LISTS = [
    [PoissonGaussian(0.93, 0.05, 40), gaussian(22.0, 4)],
    [PoissonGaussian(1.5, 0.04, 2250)],
    [gaussian(6.0, 4)],
    [GumbelFreeze(0.08, 4), PoissonGaussian(4.7, 0.5, 40)],
    [
        gaussian(22.0, 4),
        BranchMaximum(((PoissonGaussian(0.95, 0.05, 30),), (PoissonGaussian(1.7, 0.15, 30),))),
    ],
]


@pytest.mark.parametrize("events", LISTS)
def test_rough_is_close_to_exact(events):
    exact = epsilon_bound(events, 1e-5, "pld").epsilon
    rough = epsilon_bound(events, 1e-5, ROUGH)
    assert rough.accountant == ROUGH
    # both are upper bounds; of a Gumbel freeze the coarse grid reaches a little lower, so it may even be the better one
    assert exact * (1 - 1e-4) <= rough.epsilon <= 1.01 * exact


@settings(max_examples=15)
@given(sigma=st.floats(0.7, 6), rate=st.floats(0.002, 0.6), count=st.integers(1, 400))
def test_rough_is_an_upper_bound(sigma, rate, count):
    events = [PoissonGaussian(sigma, rate, count)]
    exact = epsilon_bound(events, 1e-5, "pld").epsilon
    assert epsilon_bound(events, 1e-5, ROUGH).epsilon >= exact * (1 - 1e-9)


@pytest.mark.parametrize("accountant", [ROUGH, GLANCE])
def test_events_without_a_pair_are_bounded_by_rdp_at_fewer_orders(accountant):
    events = [ExponentialPicks(0.01, 1000), PoissonGaussian(1.2, 0.05, 100)]
    assert epsilon_bound(events, 1e-5, accountant).epsilon >= epsilon_bound(events, 1e-5, "rdp").epsilon


def test_configs_cannot_ask_for_them(make_config):
    from cords_dp.errors import ConfigError
    from cords_dp.training.resolve import resolve

    for accountant in (ROUGH, GLANCE):
        with pytest.raises(ConfigError, match=r"privacy\.accountant"):
            resolve(make_config(privacy={"accountant": accountant}))
