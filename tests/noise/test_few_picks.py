"""Picks that ask for few scores: charged first, counted, and refused beyond what was declared."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from cords_dp.accounting import TRAINING_DATA, ExponentialPicks
from cords_dp.errors import MechanismError
from cords_dp.planning.mechanism import Release
from cords_dp.processes import World
from cords_dp.selection.releases import Releases

MANY = 10_000


def releases(happened, *, picks=30, epsilon0=0.1, **settings):
    declared = Release("picks", TRAINING_DATA, ExponentialPicks(epsilon0, picks), 2.0, "picks")
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


@pytest.mark.parametrize("size", [-100, np.nan, -np.inf, 1.5, True, None, MANY + 1])
@pytest.mark.parametrize("few", [True, False])
def test_a_draw_that_is_refused_adds_none(size, few):
    """−100 picks were taken off the counter before they were refused, and NaN made every later comparison false."""
    happened = []
    drawing = releases(happened)
    few_picks = partial(drawing.few_picks, "picks", scores_noted(happened), MANY, bound=1.0)
    picks = partial(drawing.picks, "picks", np.zeros(MANY))
    with pytest.raises(MechanismError, match="cannot pick"):
        (few_picks if few else picks)(size=size)
    assert happened == [], "nothing was drawn, charged or looked at"
    few_picks(size=30)
    with pytest.raises(MechanismError, match="drawn as often"):
        few_picks(size=1)


@pytest.mark.parametrize("draws", [-1, -100, np.nan, 31, np.inf])
def test_the_counter_itself_takes_no_number_that_would_raise_it(draws):
    drawing = releases([])
    with pytest.raises(MechanismError, match="drawn as often"):
        drawing._count(drawing._get("picks"), draws)
    drawing.picks("picks", np.zeros(100), 30)
    with pytest.raises(MechanismError, match="drawn as often"):
        drawing.picks("picks", np.zeros(100), 1)


def test_scores_out_of_bounds_count_the_same_whether_few_or_all_are_read():
    """A million times the bound would be picked for certain, among few records as among many."""
    for count in (100, MANY):
        odd = np.zeros(count)
        odd[0] = 1e6
        (first,) = releases([]).few_picks("picks", lambda at, odd=odd: odd[at], count, 1, bound=1.0)
        assert first != 0


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
