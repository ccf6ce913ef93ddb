"""Events: plain data that survives JSON, owns its divergences and is registered once."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import ClassVar

import pytest

from cords_dp.accounting import (
    TRAINING_DATA,
    Event,
    ExponentialPicks,
    GumbelFreeze,
    Ledger,
    PoissonGaussian,
    epsilon_bound,
    gaussian,
    register_event,
)
from cords_dp.accounting.events import from_dict, merge, to_dict
from cords_dp.errors import AccountingError

DPSGD = PoissonGaussian(sigma=1.5, rate=0.04, count=2250)


@register_event
@dataclass(frozen=True)
class Coin(Event):
    """A user's event: a pure ε-DP release that knows its Rényi bound only."""

    kind: ClassVar[str] = "test_coin"
    epsilon: float
    count: int = 1

    def rdp(self, order):
        return min(self.epsilon, order * self.epsilon**2 / 2)


@dataclass(frozen=True)
class Unregistered(Event):
    kind: ClassVar[str] = "test_unregistered"
    count: int = 1


@pytest.mark.parametrize("event", [DPSGD, ExponentialPicks(0.1, 3), GumbelFreeze(0.2, 2), gaussian(5.0)])
def test_events_survive_json(event):
    assert from_dict(json.loads(json.dumps(to_dict(event)))) == event


def test_merge_adds_counts():
    assert merge([gaussian(2.0), GumbelFreeze(1.0), gaussian(2.0, 4)]) == (
        gaussian(2.0, 5),
        GumbelFreeze(1.0),
    )


@pytest.mark.parametrize("arguments", [(0.0, 0.1, 1), (1.0, 0.0, 1), (1.0, 1.1, 1), (1.0, 0.1, -1)])
def test_senseless_events_are_refused(arguments):
    with pytest.raises(AccountingError):
        PoissonGaussian(*arguments)


@pytest.mark.parametrize("count", [1.5, True, "2"])
def test_counts_are_whole_numbers(count):
    with pytest.raises(AccountingError):
        gaussian(1.0, count)


def test_an_infinite_sigma_is_no_event():
    with pytest.raises(AccountingError):
        gaussian(math.inf)


# --- what an accountant cannot bound is refused --------------------------------------------------------


def test_a_users_event_survives_json_and_is_bounded_where_it_can_be():
    event = Coin(0.1, 4)
    assert from_dict(json.loads(json.dumps(to_dict(event)))) == event
    bound = epsilon_bound([event, gaussian(5.0)], 1e-5)
    assert bound.accountant == "rdp"
    assert bound.epsilon > epsilon_bound([gaussian(5.0)], 1e-5, "rdp").epsilon


@pytest.mark.parametrize("name", ["prv", "pld"])
def test_an_accountant_refuses_an_event_without_the_divergence_it_needs(name):
    with pytest.raises(AccountingError, match="no dominating pair for test_coin"):
        epsilon_bound([DPSGD, Coin(0.1)], 1e-5, name)


def test_an_event_without_divergences_is_refused_by_all():
    with pytest.raises(AccountingError, match="rdp has no dominating pair"):
        epsilon_bound([Unregistered()], 1e-5)


@pytest.mark.parametrize("thing", ["poisson_gaussian", {"kind": "poisson_gaussian"}, None, 1.0])
def test_what_is_no_event_is_refused(thing):
    with pytest.raises(AccountingError, match="not a privacy event"):
        epsilon_bound([DPSGD, thing], 1e-5)


def test_a_kind_is_registered_once():
    with pytest.raises(AccountingError, match="choose another kind"):
        register_event(type("Impostor", (PoissonGaussian,), {}))
    assert type(from_dict(to_dict(DPSGD))) is PoissonGaussian


def test_only_dataclasses_of_ours_are_registered():
    for cls in (int, type("Bare", (Event,), {"kind": "bare"})):
        with pytest.raises(AccountingError, match="not a dataclass"):
            register_event(cls)


def test_an_unregistered_event_cannot_be_charged():
    """It could not be read back, so a resumed run would not know what was spent."""
    ledger = Ledger()
    with pytest.raises(AccountingError, match="registered kind"):
        ledger.charge(TRAINING_DATA, "training", Unregistered())
    assert ledger.events(TRAINING_DATA) == []


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "laplace", "count": 1},
        {"sigma": 1.0},
        {"kind": "poisson_gaussian", "sigma": 1.0},
        {"kind": "poisson_gaussian", "sigma": "1", "rate": 0.1, "count": 1},
        {"kind": "poisson_gaussian", "sigma": 1.0, "rate": 0.1, "count": 1, "free": True},
    ],
)
def test_unknown_kinds_and_fields_are_refused(data):
    with pytest.raises(AccountingError):
        from_dict(data)
