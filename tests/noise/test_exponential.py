"""The exponential mechanism has exactly the law it claims, and broken copies of it are caught."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import law_holds, max_log_ratio, sequential_law
from scipy import stats

from cords_dp.errors import MechanismError
from cords_dp.noise import primitives as module
from cords_dp.noise.primitives import ScoreFreeze, enough_proposals, gumbel_top_m, pick_probabilities, proposed_picks

SCORES = np.array([0.9, -0.6, 0.1, -1.0, 0.4, 0.0])
EPSILON0, SENSITIVITY = 4.0, 1.0
LOGITS = EPSILON0 * SCORES / (2 * SENSITIVITY)


def sampler(scores, m, rng):
    return gumbel_top_m(scores, m, epsilon0=EPSILON0, sensitivity=SENSITIVITY, rng=rng)


def test_law_of_up_to_three_picks():
    """χ² over all ordered outcomes: Gumbel-top-m equals sequential picks for m = 1, 2, 3."""
    assert law_holds(sampler, SCORES, LOGITS)


FEWER = 2.0  # ε₀ for proposals: hundreds of them for a draw, instead of thousands


def proposing(scores, m, rng, epsilon0=FEWER):
    return proposed_picks(
        lambda at: scores[at], len(scores), m, bound=1.0, epsilon0=epsilon0, sensitivity=SENSITIVITY, rng=rng
    )


def test_proposed_picks_have_the_same_law():
    """χ² over all ordered outcomes, for m = 1, 2, 3 of six: more is picked twice here than of many records."""
    assert law_holds(proposing, SCORES, FEWER * SCORES / (2 * SENSITIVITY), draws=25_000)


@pytest.mark.slow  # ten seconds: the law itself is tested above
def test_mutant_proposals_with_another_epsilon_are_caught():
    logits = FEWER * SCORES / (2 * SENSITIVITY)
    assert not law_holds(lambda *a: proposing(*a, epsilon0=1.1 * FEWER), SCORES, logits, draws=100_000)


@pytest.mark.parametrize("at_once", [1, 4])
def test_picks_of_many_rounds_of_proposals_have_the_same_law(monkeypatch, at_once):
    """Whoever was picked in a round before stays picked, in that place."""
    monkeypatch.setattr(module, "enough_proposals", lambda *_: at_once)
    scores = SCORES[:5]

    def one_draw(scores, m, rng):
        rounds = iter(range(10_000))

        def score_of(at):
            assert next(rounds, None) is not None, "picks of earlier rounds are forgotten: there is no end"
            return scores[at]

        return proposed_picks(score_of, len(scores), m, bound=1.0, epsilon0=2.0, sensitivity=SENSITIVITY, rng=rng)

    assert law_holds(one_draw, scores, 2.0 * scores / (2 * SENSITIVITY), draws=4_000)


@pytest.mark.parametrize("n", [4_096, 45_000])
@pytest.mark.parametrize("share", [0.0, 0.007, 0.1, 0.3])
@pytest.mark.parametrize("epsilon0", [0.0, 0.01, 0.3, 2.0])
def test_a_second_round_is_as_rare_as_promised(n, share, epsilon0):
    """Against the exact tail, at the worst scores and with nearly all picks made: a surplus too small, or too large."""
    m = max(1, int(share * n))
    proposals = enough_proposals(n, m, m, 1.0, epsilon0, 1.0)
    chance = np.exp(-epsilon0) * (n - m + 1) / n
    assert stats.binom.cdf(m - 1, proposals, chance) <= 1e-9
    assert proposals <= (m + 8 * np.sqrt(m * (1 - chance)) + 60) / chance


def test_how_many_scores_are_read_does_not_depend_on_them():
    read = []
    for value in (-1.0, 0.0, 1.0):
        asked = []
        proposed_picks(
            lambda at, asked=asked, value=value: asked.append(at) or np.full(len(at), value),
            50_000, 500, bound=1.0, epsilon0=0.5, sensitivity=1.0, rng=np.random.default_rng(0),
        )  # fmt: skip
        (only,) = asked
        read.append(only)
    assert np.array_equal(read[0], read[1])
    assert np.array_equal(read[0], read[2])


def test_a_score_that_is_not_finite_is_that_of_a_null_record_for_proposals_too():
    """Clipped first, +inf would be the best score there is; both ways of picking give it 0."""
    odd, null = np.array([np.inf, -np.inf, np.nan, 0.8]), np.array([0.0, 0.0, 0.0, 0.8])
    assert law_holds(proposing, odd, FEWER * null / (2 * SENSITIVITY), m=2, draws=8_000)
    assert law_holds(sampler, odd, EPSILON0 * null / (2 * SENSITIVITY), m=2, draws=8_000)


def test_scores_of_another_shape_or_without_a_bound_are_refused():
    wrong = {"epsilon0": 1.0, "sensitivity": 1.0, "rng": np.random.default_rng(0)}
    with pytest.raises(MechanismError, match="asked for"):
        proposed_picks(lambda at: np.zeros(1 + len(at)), 10, 2, bound=1.0, **wrong)
    for bound in (np.inf, np.nan, -1.0):
        with pytest.raises(MechanismError, match="bound"):
            proposed_picks(lambda at: np.zeros(len(at)), 10, 2, bound=bound, **wrong)


def test_proposed_picks_ask_for_few_scores_and_give_what_was_wanted():
    asked = []

    def score_of(at):
        asked.append(len(at))
        return np.sin(at.astype(float))

    picked = proposed_picks(
        score_of, 100_000, 500, bound=1.0, epsilon0=0.2, sensitivity=1.0, rng=np.random.default_rng(0)
    )
    assert len(picked) == len(np.unique(picked)) == 500
    assert len(asked) == 1
    assert sum(asked) <= enough_proposals(100_000, 500, 500, 1.0, 0.2, 1.0) < 1.5 * 500 * np.exp(0.2)


def test_proposed_picks_can_take_every_record():
    scores = np.array([np.nan, np.inf, 5.0, -1.0])  # also those that are out of bounds, which count as at the bound
    picked = proposed_picks(
        lambda at: scores[at], 4, 4, bound=1.0, epsilon0=1.0, sensitivity=1.0, rng=np.random.default_rng(0)
    )
    assert sorted(picked) == [0, 1, 2, 3]
    with pytest.raises(MechanismError, match="cannot pick"):
        proposing(SCORES, 7, np.random.default_rng(0))


def test_the_law_test_rejects_scores_five_percent_off():
    assert not law_holds(sampler, SCORES * 1.05, LOGITS)


def test_mutant_factor_two_missing_is_caught():
    def broken(scores, m, rng):
        return gumbel_top_m(scores, m, epsilon0=2 * EPSILON0, sensitivity=SENSITIVITY, rng=rng)

    assert not law_holds(broken, SCORES, LOGITS, draws=20_000)


def test_mutant_argmax_is_caught():
    def broken(scores, m, rng):
        return np.argsort(-scores)[:m]

    assert not law_holds(broken, SCORES, LOGITS, draws=20_000)


def test_mutant_reused_gumbel_noise_is_caught():
    """Noise drawn once and reused for every freeze gives the same picks each time."""
    noise = np.random.default_rng(1).gumbel(size=6)

    def broken(scores, m, rng):
        return np.argsort(-(LOGITS + noise))[:m]

    assert not law_holds(broken, SCORES, LOGITS, draws=20_000)


def test_pick_probabilities_are_the_law():
    law = sequential_law(LOGITS, 1)
    got = pick_probabilities(SCORES, epsilon0=EPSILON0, sensitivity=SENSITIVITY)
    np.testing.assert_allclose(got, [law[(i,)] for i in range(6)], rtol=1e-12)


scores_strategy = st.lists(st.floats(-1, 1), min_size=2, max_size=5)


@settings(max_examples=500)
@given(scores=scores_strategy, epsilon0=st.floats(0.01, 5), data=st.data())
def test_privacy_ratio_by_enumeration_when_one_score_moves(scores, epsilon0, data):
    """Zeroing a record (score u → 0, |u| ≤ Δ): m picks are m·ε₀/2-DP, exactly enumerated."""
    record = data.draw(st.integers(0, len(scores) - 1))
    m = data.draw(st.integers(1, min(3, len(scores))))
    neighbour = np.array(scores)
    neighbour[record] = 0.0
    factor = epsilon0 / 2
    ratio = max_log_ratio(sequential_law(factor * np.array(scores), m), sequential_law(factor * neighbour, m))
    assert ratio <= m * epsilon0 / 2 + 1e-9


@settings(max_examples=500)
@given(data=st.data(), n=st.integers(2, 5), epsilon0=st.floats(0.01, 5))
def test_privacy_ratio_by_enumeration_when_every_score_moves(data, n, epsilon0):
    """All scores may move by Δ = 2 within [−1, 1]: m picks are m·ε₀-DP."""
    bounded = st.lists(st.floats(-1, 1), min_size=n, max_size=n)
    here, there = np.array(data.draw(bounded)), np.array(data.draw(bounded))
    m = data.draw(st.integers(1, min(3, n)))
    factor = epsilon0 / (2 * 2.0)
    ratio = max_log_ratio(sequential_law(factor * here, m), sequential_law(factor * there, m))
    assert ratio <= m * epsilon0 + 1e-9


def test_mutant_sensitivity_ignoring_the_update_is_caught():
    """Δ = 1 although every score moves by 2: the privacy ratio exceeds ε₀."""
    here, there = np.array([1.0, -1.0, -1.0, -1.0]), np.array([-1.0, 1.0, 1.0, 1.0])
    factor = EPSILON0 / (2 * 1.0)
    assert max_log_ratio(sequential_law(factor * here, 1), sequential_law(factor * there, 1)) > EPSILON0


def test_non_finite_scores_count_as_zero():
    odd = np.array([np.nan, np.inf, -np.inf, 0.0])
    np.testing.assert_allclose(pick_probabilities(odd, epsilon0=1.0, sensitivity=1.0), 0.25)
    rng = np.random.default_rng(0)
    first = [gumbel_top_m(odd, 1, epsilon0=50.0, sensitivity=1.0, rng=rng)[0] for _ in range(2000)]
    assert set(first) == {0, 1, 2, 3}


def test_huge_epsilon_picks_the_best():
    rng = np.random.default_rng(0)
    picked = gumbel_top_m(SCORES, 2, epsilon0=1e6, sensitivity=1.0, rng=rng)
    assert list(picked) == [0, 4]


def test_a_freeze_refuses_a_score_update():
    scores = SCORES.copy()
    freeze = ScoreFreeze(scores, epsilon0=1.0, sensitivity=1.0)
    scores[2] = 0.5
    with pytest.raises(MechanismError, match="changed inside a freeze"):
        freeze.draw(2, np.random.default_rng(0))


def test_a_freeze_draws_once():
    freeze = ScoreFreeze(SCORES, epsilon0=1.0, sensitivity=1.0)
    freeze.draw(2, np.random.default_rng(0))
    with pytest.raises(MechanismError, match="drawn from"):
        freeze.draw(1, np.random.default_rng(0))


@pytest.mark.parametrize("m", [-1, 7, np.nan, 2.0, True, None])
def test_impossible_numbers_of_picks_are_refused(m):
    with pytest.raises(MechanismError, match="cannot pick"):
        sampler(SCORES, m, np.random.default_rng(0))


@pytest.mark.parametrize(("epsilon0", "sensitivity"), [(1.0, 0.0), (1.0, np.inf), (-1.0, 1.0), (np.nan, 1.0)])
def test_senseless_parameters_are_refused(epsilon0, sensitivity):
    with pytest.raises(MechanismError):
        pick_probabilities(SCORES, epsilon0=epsilon0, sensitivity=sensitivity)


def test_a_million_candidates_take_well_under_a_second():
    rng = np.random.default_rng(0)
    scores = rng.uniform(-1, 1, 1_000_000)
    start = time.perf_counter()
    picked = gumbel_top_m(scores, 100_000, epsilon0=0.1, sensitivity=1.0, rng=rng)
    assert time.perf_counter() - start < 5  # 0.1 s here; a loaded machine may be slow
    assert len(np.unique(picked)) == 100_000
