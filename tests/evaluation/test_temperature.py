"""The sum by which a temperature is fitted: nobody moves it by more than 1, and what is chosen of it is no guess."""

from __future__ import annotations

import numpy as np
import pytest

from cords_dp.evaluation.released import MOST_LOSS
from cords_dp.evaluation.temperature import TEMPERATURES, chosen_temperature, loss_steps

ONE = TEMPERATURES.tolist().index(1.0)


def people(n: int, classes: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels drawn from the probabilities of logits, which are therefore calibrated."""
    rng = np.random.default_rng(seed)
    logits = 2.0 * rng.normal(size=(n, classes))
    return (logits + rng.gumbel(size=logits.shape)).argmax(axis=1), logits


def mean_loss(labels: np.ndarray, logits: np.ndarray, temperature: float) -> float:
    z = logits / temperature
    return float((np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(z)), labels]).mean())


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_no_record_is_longer_than_one(classes):
    rng = np.random.default_rng(1)
    worst = 0.0
    for sharpness in (0.01, 1.0, 10.0, 1e3, 1e30):  # unsure and sure, right and wrong
        logits = sharpness * rng.normal(size=(200, classes))
        lengths = [np.linalg.norm(loss_steps(np.array([i % classes]), logits[i : i + 1])) for i in range(200)]
        assert np.isfinite(lengths).all()
        worst = max(worst, *lengths)
    assert 0.999 < worst <= 1 + 1e-12


def test_without_one_owner_the_sum_moves_by_one_at_most():
    labels, logits = people(60)
    logits[:5] *= 100  # as sure as can be, and some of them wrong
    codes = np.arange(60) // 5
    masses = np.full(60, 1 / 5)
    whole = loss_steps(labels, logits, masses)
    moved = [np.linalg.norm(whole - loss_steps(labels[codes != c], logits[codes != c], masses[codes != c]))
             for c in range(12)]  # fmt: skip
    assert 0 < max(moved) <= 1 + 1e-12


@pytest.mark.parametrize("null", [(-1, 0.0), (4, 0.0), (0, np.nan), (0, np.inf)])
def test_a_null_record_contributes_nothing(null):
    labels, logits = people(30)
    whole = loss_steps(labels, logits)
    label, value = null
    more = loss_steps(np.append(labels, label), np.vstack([logits, np.full(4, value)]))
    np.testing.assert_array_equal(whole, more)
    assert not loss_steps(np.array([label]), np.full((1, 4), value)).any()
    assert loss_steps(np.zeros(0, dtype=np.int64), np.zeros((0, 4))).shape == (len(TEMPERATURES) - 1,)


def test_the_sum_is_of_losses_where_nobody_is_cut():
    labels, logits = people(2000)
    steps = loss_steps(labels, logits / 2)
    losses = [mean_loss(labels, logits / 2, t) for t in TEMPERATURES[ONE:]]
    np.testing.assert_allclose(2.5 * np.cumsum(steps[ONE:]) / 2000, np.diff(losses).cumsum(), atol=0.02)
    assert max(losses) < MOST_LOSS


@pytest.mark.parametrize("wanted", [0.5, 1.0, 2.0, 4.0])
def test_it_finds_the_temperature_of_many_records_within_a_step_and_none_where_none_is_needed(wanted):
    labels, logits = people(4000)
    steps = loss_steps(labels, logits * wanted)
    assert chosen_temperature(steps, 0.0) == pytest.approx(wanted)
    rng = np.random.default_rng(2)
    found = [chosen_temperature(steps + 6.0 * rng.normal(size=steps.shape), 6.0) for _ in range(200)]
    assert np.abs(np.log2(np.array(found) / wanted)).max() <= 0.5
    assert np.mean(np.isclose(found, wanted)) > 0.9
    assert wanted != 1 or set(found) == {1.0}


@pytest.mark.parametrize("size", [0, 20, 100, 400])
def test_with_few_records_it_hardly_ever_makes_the_loss_worse(size):
    labels, logits = people(size)
    true_labels, true_logits = people(20_000, seed=3)
    rng = np.random.default_rng(4)
    for scale in (1.0, 1.3):
        steps = loss_steps(labels, scale * logits)
        found = [chosen_temperature(steps + 6.0 * rng.normal(size=steps.shape), 6.0) for _ in range(300)]
        loss = {t: mean_loss(true_labels, scale * true_logits, t) for t in {1.0, *found}}
        assert np.mean([loss[t] > loss[1.0] + 0.02 for t in found]) <= 0.02


def test_without_anything_to_read_it_stays_at_one():
    assert chosen_temperature(np.zeros(len(TEMPERATURES) - 1), 0.0) == 1.0
