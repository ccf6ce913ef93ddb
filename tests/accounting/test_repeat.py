"""The number of trials follows its law, and its price is the theorem's: by separate formulas and by brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy import optimize, special, stats

from cords_dp.accounting import (
    TRAINING_DATA,
    Entry,
    Ledger,
    PoissonGaussian,
    RepeatAndSelect,
    TrialLaw,
    epsilon_bound,
    gaussian,
)
from cords_dp.accounting.events import Event, from_dict, to_dict
from cords_dp.accounting.renyi_filter import RenyiFilter
from cords_dp.errors import AccountingError
from cords_dp.noise.generators import secure_generator

LAWS = [(10.0, 1.0), (10.0, 0.0), (30.0, 0.5), (2.0, 3.0)]


# --- the law ----------------------------------------------------------------------------------------------------------


def exact_chances(mean, shape, size=4000):
    """Papernot & Steinke's Definition 1, written out anew, with γ found by bisection on the mean."""
    k = np.arange(1, size + 1)

    def chances(gamma):
        if shape == 0:
            return (1 - gamma) ** k / (k * math.log(1 / gamma))
        products = np.cumprod((np.arange(size) + shape) / (np.arange(size) + 1))
        return (1 - gamma) ** k / (gamma**-shape - 1) * products

    gamma = optimize.bisect(lambda g: (k * chances(g)).sum() - mean, 2e-3, 1 - 1e-6)
    return gamma, chances(gamma)


@pytest.mark.parametrize(("mean", "shape"), LAWS)
def test_the_chances_are_those_of_the_definition(mean, shape):
    gamma, expected = exact_chances(mean, shape)
    law = TrialLaw(mean, shape)
    got = np.array(list(itertools.islice(law.probabilities(), len(expected))))
    assert law.halting == pytest.approx(gamma, rel=1e-4)
    assert got == pytest.approx(expected, rel=1e-3, abs=1e-12)
    assert got.sum() == pytest.approx(1, abs=1e-6)
    assert (got * np.arange(1, len(got) + 1)).sum() == pytest.approx(mean, rel=1e-3)


@pytest.mark.parametrize(("mean", "shape"), LAWS)
def test_draws_follow_the_law(mean, shape):
    law, rng, size = TrialLaw(mean, shape), secure_generator(bytes(16)), 20_000
    drawn = np.array([law.draw(rng) for _ in range(size)])
    _, chances = exact_chances(mean, shape)
    cells = np.minimum(drawn, 20)
    expected = np.append(chances[:19], 1 - chances[:19].sum()) * size
    counts = np.bincount(cells, minlength=21)[1:]
    assert stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > 1e-4
    assert drawn.min() == 1


def test_geometric_and_logarithmic_are_members():
    geometric = list(itertools.islice(TrialLaw(5, 1).probabilities(), 30))
    assert geometric == pytest.approx(list(stats.geom(0.2).pmf(range(1, 31))))
    law = TrialLaw(5, 0)
    assert list(itertools.islice(law.probabilities(), 30)) == pytest.approx(
        list(stats.logser(1 - law.halting).pmf(range(1, 31)))
    )


@pytest.mark.parametrize("values", [(1.0, 1.0), (0.5, 0.0), (math.inf, 1.0), (5.0, -0.1), (math.nan, 1.0)])
def test_what_is_no_law_is_refused(values):
    with pytest.raises(AccountingError):
        TrialLaw(*values)


# --- the price --------------------------------------------------------------------------------------------------------


def own_epsilon(sigma, rate, steps, mean, shape, delta):
    """ε by formulas of our own at whole orders: Mironov et al.'s sum, Theorem 2, Canonne et al.'s conversion."""
    gamma, _ = exact_chances(mean, shape)

    def one(a):
        terms = [math.comb(a, k) * (1 - rate) ** (a - k) * rate**k * math.exp((k * k - k) / (2 * sigma**2))
                 for k in range(a + 1)]  # fmt: skip
        return steps * math.log(math.fsum(terms)) / (a - 1)

    orders = range(2, 60)
    second = min((1 + shape) * ((1 - 1 / a) * one(a) + math.log(1 / gamma) / a) for a in orders)
    return min(
        one(a) + second + math.log(mean) / (a - 1) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in orders
    )


@pytest.mark.parametrize(("mean", "shape"), LAWS)
def test_the_charge_recomputed_by_separate_code(mean, shape):
    event = RepeatAndSelect((PoissonGaussian(2.0, 0.1, 100),), mean, shape)
    got = epsilon_bound([event], 1e-5).epsilon
    assert got == pytest.approx(own_epsilon(2.0, 0.1, 100, mean, shape, 1e-5), rel=2e-3)
    theirs = RdpAccountant()
    one = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(2.0)), 100)
    theirs.compose(dp_event.RepeatAndSelectDpEvent(one, mean, shape))
    assert theirs.get_epsilon(1e-5) <= got * 1.001  # whole orders alone cost us a little
    assert got <= 1.05 * theirs.get_epsilon(1e-5)


class TwoPoint(Event):
    """A mechanism with outputs 0 … m−1 whose law is known exactly."""

    kind = "two point"
    count = 1

    def __init__(self, p, q):
        self.p, self.q = np.array(p), np.array(q)

    def with_count(self, count):
        return self

    def rdp(self, order):
        return max(renyi(self.p, self.q, order), renyi(self.q, self.p, order))


def renyi(p, q, order):
    return float(special.logsumexp(order * np.log(p) + (1 - order) * np.log(q))) / (order - 1)


def law_of_the_best(p, chances):
    """Of the largest of K draws: Σ_k P[K = k]·(F(x)^k − F(x−)^k)."""
    below = np.append(0.0, np.cumsum(p)[:-1])
    k = np.arange(1, len(chances) + 1)[:, None]
    return (chances[:, None] * (np.cumsum(p) ** k - below**k)).sum(axis=0)


@pytest.mark.parametrize(("mean", "shape"), LAWS)
def test_no_mechanism_with_few_outputs_exceeds_the_price(mean, shape):
    """Exact divergences of the selected output, over random pairs of laws, are below what is charged."""
    rng = np.random.default_rng(0)
    _, chances = exact_chances(mean, shape)
    chances = np.append(chances, max(0.0, 1 - chances.sum()))
    closest = 0.0
    for _ in range(60):
        p = rng.dirichlet(np.ones(4)) + 0.01
        q = p * np.exp(rng.uniform(-0.4, 0.4, 4))
        p, q = p / p.sum(), q / q.sum()
        event = RepeatAndSelect.__new__(RepeatAndSelect)
        fields = {"trial": (TwoPoint(p, q),), "mean": mean, "shape": shape, "count": 1, "orders": None}
        for name, value in fields.items():
            object.__setattr__(event, name, value)
        one, other = law_of_the_best(p, chances), law_of_the_best(q, chances)
        for order in (2.0, 4.0, 16.0):
            exact = max(renyi(one, other, order), renyi(other, one, order))
            assert exact <= event.rdp(order)
            closest = max(closest, exact / TwoPoint(p, q).rdp(order))
    assert closest > 1.3  # choosing does cost: a single trial's price would be exceeded


def test_more_trials_and_larger_shapes_cost_more():
    def cost(mean, shape):
        return epsilon_bound([RepeatAndSelect((gaussian(5.0),), mean, shape)], 1e-5).epsilon

    single = epsilon_bound([gaussian(5.0)], 1e-5, "rdp").epsilon
    assert single < cost(3, 0) < cost(3, 1) < cost(10, 1) < cost(100, 1)
    assert cost(100, 1) < 100 * single


def test_ledgers_and_filters_hold_it(tmp_path):
    event = RepeatAndSelect((gaussian(5.0), gaussian(5.0), PoissonGaussian(2.0, 0.1, 7)), 10.0, 1.0)
    assert event.trial == (gaussian(5.0, 2), PoissonGaussian(2.0, 0.1, 7))
    assert from_dict(to_dict(event)) == event
    ledger = Ledger(allowance=(Entry(TRAINING_DATA, "tuning", event),), path=tmp_path / "ledger.jsonl")
    ledger.charge(TRAINING_DATA, "tuning", event)
    ledger.close()
    assert Ledger.load(tmp_path / "ledger.jsonl").events(TRAINING_DATA) == [event]
    assert 0 < RenyiFilter(8.0, 1e-5).share([event]) < math.inf


def test_at_an_order_that_was_not_compared_the_next_larger_one_counts_and_beyond_them_nothing_is_known():
    trial = (PoissonGaussian(2.0, 0.1, 100),)
    everywhere, event = RepeatAndSelect(trial, 10.0, 1.0), RepeatAndSelect(trial, 10.0, 1.0, orders=(20.0, 5.0))
    second = min(2 * ((1 - 1 / a) * 100 * trial[0].rdp(a) + math.log(10) / a) for a in (5, 20))
    for order, known in ((2.0, 5.0), (4.9, 5.0), (5.0, 5.0), (5.1, 20.0), (20.0, 20.0)):
        assert event.rdp(order) == pytest.approx(100 * trial[0].rdp(known) + second + math.log(10) / (order - 1))
        assert event.rdp(order) >= everywhere.rdp(order)
    assert event.rdp(20.5) == math.inf
    assert event.second_order in (5.0, 20.0)


def test_orders_are_kept_and_an_event_without_them_is_read_as_before():
    event = RepeatAndSelect((gaussian(5.0),), 10.0, 1.0, orders=(3, 7.5))
    assert from_dict(to_dict(event)) == event
    before = {"kind": "repeat_and_select", "trial": [to_dict(gaussian(5.0))], "mean": 10.0, "shape": 1.0, "count": 1}
    assert to_dict(from_dict(before)) == before  # as version 0.2.0 wrote them
    for orders in ((), (1.0,), (2.0, math.inf), (math.nan,)):
        with pytest.raises(AccountingError):
            RepeatAndSelect((gaussian(5.0),), 10.0, 1.0, orders=orders)


def test_an_empty_trial_is_refused():
    with pytest.raises(AccountingError):
        RepeatAndSelect((), 10.0, 1.0)
