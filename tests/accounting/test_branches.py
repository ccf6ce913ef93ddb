"""A branch chosen by a release: at least each branch, no more than all of them, and exact where it can be computed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from exact import QUIET, RARE, hockey_stick
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from cords_dp.accounting import (
    TRAINING_DATA,
    BranchMaximum,
    ExponentialPicks,
    GumbelFreeze,
    Ledger,
    PoissonGaussian,
    epsilon_bound,
    gaussian,
)
from cords_dp.accounting import branches as module
from cords_dp.accounting.composition import composed_pld
from cords_dp.accounting.events import from_dict, to_dict
from cords_dp.errors import AccountingError

EPSILONS = [-1.0, -0.3, 0.0, 0.05, 0.4, 1.0, 2.0]


def both_directions(events):
    pld = composed_pld(events)
    return {True: pld._pmf_remove, False: pld._pmf_add}


# --- exact ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("removed", [True, False])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_profile_is_the_exact_maximum(epsilon, removed):
    exact = [hockey_stick(event, epsilon, removed=removed) for event in (RARE, QUIET)]
    pmf = both_directions([BranchMaximum(((RARE,), (QUIET,)))])[removed]
    found = pmf.get_delta_for_epsilon(epsilon)
    assert max(exact) - 1e-12 <= found <= max(exact) + 2e-4 * max(*exact, 1e-3)


def test_the_two_branches_above_cross():
    """Otherwise the test of the maximum would be a test of one branch."""
    differences = [hockey_stick(RARE, e, removed=True) - hockey_stick(QUIET, e, removed=True) for e in EPSILONS]
    assert min(differences) < 0 < max(differences)


@pytest.mark.parametrize("removed", [True, False])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 2.0])
def test_an_adaptive_choice_is_covered(epsilon, removed):
    """y ~ N(0 or 1, σ²) is released and its sign chooses: δ of the pair (y, branch) by integration."""
    release = gaussian(2.0)
    s, (here, there) = release.sigma, ((1.0, 0.0) if removed else (0.0, 1.0))

    def density(y):
        loss = stats.norm.logpdf(y, here, s) - stats.norm.logpdf(y, there, s)
        return stats.norm.pdf(y, here, s) * hockey_stick(RARE if y > 0.5 else QUIET, epsilon - loss, removed=removed)

    exact = sum(integrate.quad(density, *ends, limit=200)[0] for ends in ((-16, 0.5), (0.5, 17)))
    found = both_directions([release, BranchMaximum(((RARE,), (QUIET,)))])[removed].get_delta_for_epsilon(epsilon)
    assert exact <= found + 1e-9
    assert found <= exact + 0.05


# --- against plain composition ------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [[], [gaussian(20.0, 3)], [GumbelFreeze(0.2)]])
def test_a_single_branch_is_plain_composition(others):
    branch = (PoissonGaussian(2.0, 0.1, 200), gaussian(20.0, 4))
    plain = epsilon_bound([*branch, *others], 1e-5, "pld").epsilon
    chosen = epsilon_bound([BranchMaximum((branch,)), *others], 1e-5, "pld").epsilon
    assert plain == pytest.approx(chosen, rel=1e-7)
    for epsilon in (0.0, 0.5, 1.5, 3.0):
        one, other = (composed_pld(e).get_delta_for_epsilon(epsilon) for e in (branch, [BranchMaximum((branch,))]))
        assert one == pytest.approx(other, rel=1e-7, abs=1e-13)


@settings(max_examples=4)
@given(
    sigmas=st.tuples(st.floats(2, 5), st.floats(2, 5)),
    rates=st.tuples(st.floats(0.01, 0.5), st.floats(0.01, 0.5)),
    steps=st.tuples(st.integers(1, 20), st.integers(1, 20)),
)
def test_at_least_each_branch_and_at_most_all_of_them(sigmas, rates, steps):
    one, other = (PoissonGaussian(s, q, n) for s, q, n in zip(sigmas, rates, steps, strict=True))
    chosen = BranchMaximum(((one,), (other,)))
    release = gaussian(10.0)
    for name in ("pld", "rdp"):
        cost = epsilon_bound([release, chosen], 1e-5, name).epsilon
        alone = [epsilon_bound([release, e], 1e-5, name).epsilon for e in (one, other)]
        assert max(alone) <= cost * (1 + 1e-7) + 1e-7
        assert cost <= epsilon_bound([release, one, other], 1e-5, name).epsilon * (1 + 1e-7) + 1e-7


def test_probabilities_are_probabilities():
    pmf = both_directions([BranchMaximum(((PoissonGaussian(1.0, 0.2, 50),), (gaussian(3.0, 20),)))])[True]
    assert pmf._probs.min() > -1e-15
    assert pmf._probs.sum() + pmf._infinity_mass == pytest.approx(1.0, abs=1e-9)
    mass_of_q = float(np.dot(pmf._probs, np.exp(-(np.arange(pmf.size) + pmf._lower_loss) * pmf._discretization)))
    assert mass_of_q <= 1 + 1e-9


def test_rdp_is_the_largest_sum():
    chosen = BranchMaximum(((gaussian(2.0, 3), ExponentialPicks(0.1, 5)), (gaussian(1.0),)))
    for order in (1.5, 4.0, 32.0):
        first = 3 * gaussian(2.0).rdp(order) + 5 * ExponentialPicks(0.1).rdp(order)
        assert chosen.rdp(order) == max(first, gaussian(1.0).rdp(order))
    assert epsilon_bound([chosen], 1e-5).accountant == "rdp"  # picks have no dominating pair


def test_an_empty_branch_costs_nothing_and_spares_nothing():
    with_rest = epsilon_bound([BranchMaximum(((RARE,), ()))], 1e-5)
    assert with_rest == epsilon_bound([BranchMaximum(((RARE,),))], 1e-5)
    assert with_rest.accountant == "pld"


def test_two_choices_cost_more_than_one():
    """The pair composes with itself, as two runs in one account need."""
    chosen = BranchMaximum(((RARE,), (QUIET,)))
    once, twice = (epsilon_bound([chosen] * n, 1e-5, "pld").epsilon for n in (1, 2))
    assert once < twice < 2 * once + 1


# --- as data ------------------------------------------------------------------------------------------------


def test_it_survives_json_and_the_ledger(tmp_path):
    chosen = BranchMaximum(((PoissonGaussian(1.5, 0.1, 100), gaussian(9.0)), (BranchMaximum(((gaussian(3.0),),)),)))
    assert from_dict(json.loads(json.dumps(to_dict(chosen)))) == chosen
    Ledger(path=tmp_path / "l.json").charge(TRAINING_DATA, "training", chosen)
    assert Ledger.load(tmp_path / "l.json").events(TRAINING_DATA) == [chosen]


def test_grouping_does_not_make_another_event():
    assert BranchMaximum(((gaussian(1.0), gaussian(1.0)),)) == BranchMaximum(((gaussian(1.0, 2),),))


@pytest.mark.parametrize("branches", [(), ((),), (("step",),)])
def test_senseless_branches_are_refused(branches):
    with pytest.raises(AccountingError):
        BranchMaximum(branches)


def test_a_branch_is_composed_once(monkeypatch):
    calls = []
    monkeypatch.setattr(module, "composed_pld", lambda events: calls.append(events) or composed_pld(events))
    chosen = BranchMaximum(((PoissonGaussian(1.7, 0.11, 300),), (gaussian(2.3, 7),)))
    for delta in (1e-5, 1e-6, 1e-7):
        epsilon_bound([gaussian(11.0), chosen], delta, "pld")
    assert len(calls) == 2
