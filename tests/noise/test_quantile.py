"""Private quantiles: exact without noise, of the stated sensitivity, with the stated noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cords_dp.noise import primitives as quantile
from cords_dp.noise.primitives import score_cells, tail_histogram, tail_noise, tails_from, threshold_for


def tails(scores, labels=None, *, classes=1, bins=16, sigma=0.0, seed=0):
    """What a release of tail counts gives: noise in proportion to the sensitivity, on the factored histogram."""
    labels = np.zeros(len(scores), dtype=int) if labels is None else labels
    factored, sensitivity = tail_histogram(scores, labels, classes=classes, bins=bins)
    noise = np.random.default_rng(seed).normal(size=factored.shape)
    return tails_from(factored + sigma * sensitivity * noise)


def test_without_noise_tail_counts_are_exact():
    rng = np.random.default_rng(0)
    scores, labels = rng.uniform(-1, 1, 500), rng.integers(0, 3, 500)
    got = tails(scores, labels, classes=3)
    cells = score_cells(scores, 16)
    expected = [[np.sum((labels == c) & (cells >= b)) for b in range(16)] for c in range(3)]
    np.testing.assert_allclose(got, expected, atol=1e-9)


def before_noise(scores, labels=None, classes=1):
    """What noise is added to, and the sensitivity that it is scaled by."""
    labels = np.zeros(len(scores), dtype=int) if labels is None else labels
    return tail_histogram(np.asarray(scores), labels, classes=classes, bins=16)


@pytest.mark.parametrize("score", [-1.0, -0.3, 0.99, 1.0])
def test_one_record_moves_the_release_by_at_most_the_stated_sensitivity(score):
    """With the record, and with a null record (NaN: no cell at all) in its place."""
    others, labels = [0.2, -0.7], np.array([0, 1, 1])
    here, sensitivity = before_noise([*others, score], labels, 2)
    there, _ = before_noise([*others, np.nan], labels, 2)
    moved = np.linalg.norm(here - there)
    assert 0 < moved <= sensitivity + 1e-12
    if score == 1.0:
        assert moved == pytest.approx(sensitivity)  # the highest cell is the first column


def test_mutant_null_record_with_a_cell_is_caught():
    """A null record that were counted in some cell would cancel or double the record's own trace."""
    with_null, _ = before_noise([0.2, np.nan])
    without, _ = before_noise([0.2])
    np.testing.assert_array_equal(with_null, without)


def test_noise_of_every_tail_count_is_small_and_as_computed():
    """std of each tail count is σ·‖row of L‖·‖first column of R‖ ≤ σ·(1 + ln(bins)/π) or so."""
    sigma, bins = 10.0, 128
    draws = np.array([tails(np.array([]), bins=bins, sigma=sigma, seed=s)[0] for s in range(1500)])
    root = quantile._square_root(bins)
    expected = sigma * np.linalg.norm(root[:, 0]) * np.linalg.norm(root, axis=1)[::-1]
    np.testing.assert_allclose(draws.std(axis=0), expected, rtol=0.12)
    assert expected.max() < sigma * (1.3 + np.log(bins) / np.pi)
    # a plain noisy histogram would err by σ·√bins = 113 at the far end
    assert expected.max() < 3 * sigma


def test_the_square_root_is_one():
    root = quantile._square_root(50)
    np.testing.assert_allclose(root @ root, np.tril(np.ones((50, 50))), atol=1e-12)


@settings(max_examples=50)
@given(seed=st.integers(0, 1000), share=st.floats(0.01, 0.99))
def test_thresholds_without_noise_hit_the_target_within_a_cell(seed, share):
    rng = np.random.default_rng(seed)
    scores = np.clip(rng.normal(0.1, 0.3, 4000), -1, 1)
    tau = threshold_for(tails(scores, bins=128)[0], 4000 * share)
    cell = np.bincount(score_cells(scores, 128)).max()
    assert abs(np.sum(scores >= tau) - 4000 * share) <= cell


def test_the_pool_is_within_ten_percent_of_k_at_the_default_noise():
    """n = 30,000, k/3 = 700 of a peaked distribution, σ = 25: mean within 10 %, and not one draw far off."""
    scores = np.clip(np.random.default_rng(0).normal(0.0, 0.25, 30_000), -1, 1)
    sizes = [np.sum(scores >= threshold_for(tails(scores, bins=128, sigma=25.0, seed=s)[0], 700)) for s in range(60)]
    assert abs(np.mean(sizes) - 700) < 70
    assert np.std(sizes) < 100


@pytest.mark.parametrize(("target", "expected"), [(0, 1.0000001), (-5, 1.0000001), (10**9, -1.0)])
def test_thresholds_at_the_ends(target, expected):
    assert threshold_for(tails(np.zeros(10))[0], target) == pytest.approx(expected, abs=1e-6)


def test_tail_noise_is_that_of_the_release():
    draws = np.array([tails(np.zeros(0), bins=32, sigma=3.0, seed=seed)[0] for seed in range(4000)])
    assert draws.std(axis=0).max() == pytest.approx(tail_noise(3.0, 32), rel=0.08)
