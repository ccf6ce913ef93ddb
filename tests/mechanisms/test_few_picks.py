"""Picks that ask for few scores: charged first, counted, and refused beyond what was declared."""

from __future__ import annotations

import numpy as np
import pytest

from cords_dp.accounting import TRAINING_DATA, ExponentialPicks
from cords_dp.distributed import World
from cords_dp.errors import MechanismError
from cords_dp.mechanisms.releases import Releases
from cords_dp.planning.mechanism import Release

MANY = 10_000


def releases(happened, *, picks=30, epsilon0=0.1, **settings):
    declared = Release("picks", TRAINING_DATA, ExponentialPicks(epsilon0, picks), 2.0, "picks", epsilon0=epsilon0)
    return Releases(
        [declared],
        charge=lambda dataset, phase, event: happened.append("charged"),
        generators={TRAINING_DATA: np.random.default_rng(0)},
        **settings,
    )


def scores_noted(happened):
    def score_of(places):
        happened.append(len(places))
        return np.zeros(len(places))

    return score_of


def test_a_charge_comes_before_the_first_score_and_picks_are_counted():
    happened = []
    drawing = releases(happened)
    for _ in range(2):
        assert len(set(drawing.few_picks("picks", scores_noted(happened), MANY, 15, bound=1.0))) == 15
    assert happened[0] == "charged"
    assert happened.count("charged") == 1
    with pytest.raises(MechanismError, match="drawn as often"):
        drawing.few_picks("picks", scores_noted(happened), MANY, 1, bound=1.0)


@pytest.mark.parametrize(
    ("count", "size", "epsilon0"), [(100, 10, 0.1), (MANY, 9_000, 0.1), (MANY, 10, 20.0), (MANY, 10, 1e6)]
)
def test_public_numbers_decide_when_all_scores_are_asked_for(count, size, epsilon0):
    happened = []
    drawing = releases(happened, picks=size, epsilon0=epsilon0)
    assert not drawing.reads_few("picks", count, size, bound=1.0)
    assert len(drawing.few_picks("picks", scores_noted(happened), count, size, bound=1.0)) == size
    assert count in happened


def test_without_noise_the_best_are_taken():
    best = releases([], noiseless=True).few_picks("picks", lambda places: -places.astype(float), MANY, 3, bound=1.0)
    assert best.tolist() == [0, 1, 2]


def test_one_of_several_processes_is_refused():
    with pytest.raises(MechanismError, match="compare all records"):
        releases([], world=World(0, 2)).few_picks("picks", scores_noted([]), MANY, 3, bound=1.0)
