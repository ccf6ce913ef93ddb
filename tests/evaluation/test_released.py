"""The release of a private test set: no record's vector is longer than 1, and metrics follow within intervals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cords_dp.accounting import calibrate, epsilon_bound, gaussian
from cords_dp.evaluation import metrics as exact
from cords_dp.evaluation.released import (
    BINS,
    EDGES,
    ReleasedTest,
    classifier_sum,
    layout,
    regression_sum,
    vector_size,
)


def _people(n: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and probabilities that know something about them."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, size=n, p=np.arange(1, classes + 1) / sum(range(1, classes + 1)))
    logits = rng.normal(size=(n, classes)) + 2.0 * np.eye(classes)[labels]
    powers = np.exp(logits)
    return labels, powers / powers.sum(axis=1, keepdims=True)


def _sigma(epsilon: float, delta: float) -> float:
    return calibrate(lambda s: epsilon_bound([gaussian(s)], delta, "auto").epsilon, epsilon, start=4.0, rising=False)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_no_record_of_a_classifier_is_longer_than_one(classes):
    rng = np.random.default_rng(1)
    worst = 0.0
    for sharpness in (0.1, 1.0, 30.0):  # sure and unsure, right and wrong
        powers = np.exp(sharpness * rng.normal(size=(200, classes)))
        p = powers / powers.sum(axis=1, keepdims=True)
        lengths = [np.linalg.norm(classifier_sum(np.array([c % classes]), p[c : c + 1])) for c in range(200)]
        worst = max(worst, *lengths)
    sure = np.eye(classes)[:1]
    worst = max(worst, np.linalg.norm(classifier_sum(np.array([1]), sure)))  # surely wrong: every block at its most
    assert 0.999 < worst <= 1 + 1e-12


def test_no_record_of_a_regression_is_longer_than_one():
    ends = np.array([-np.inf, -1e9, -1.0, 0.0, 1.0, 1e9, np.nan])
    lengths = [np.linalg.norm(regression_sum(np.array([y]), np.array([g]))) for y in ends for g in ends]
    assert max(lengths) == pytest.approx(1.0)
    assert max(lengths) <= 1 + 1e-12


@pytest.mark.parametrize("classes", [2, 5])
def test_a_null_record_and_one_without_a_label_contribute_nothing(classes):
    labels, p = _people(50, classes)
    whole = classifier_sum(labels, p)
    p_bad, y_bad = p.copy(), labels.copy()
    p_bad[7], y_bad[8] = np.nan, -1
    left = np.delete(np.arange(50), [7, 8])
    np.testing.assert_allclose(classifier_sum(y_bad, p_bad), classifier_sum(labels[left], p[left]), atol=1e-12)
    apart = sum(classifier_sum(labels[i : i + 1], p[i : i + 1]) for i in range(50))
    np.testing.assert_allclose(whole, apart, atol=1e-9)  # a sum over records: nothing couples them
    assert not classifier_sum(labels[:0], p[:0]).any()
    assert len(whole) == vector_size(classes)


@pytest.mark.parametrize("classes", [2, 4])
def test_without_noise_the_metrics_are_the_exact_ones_up_to_the_stated_binning(classes):
    labels, p = _people(3000, classes)
    found = ReleasedTest(classes, 1e-9, classifier_sum(labels, p)).metrics()
    true = exact.classifier_metrics(labels, p)
    for name in ("accuracy", "balanced_accuracy", "log_loss", "calibration_error"):
        assert found[name]["value"] == pytest.approx(true[name], abs=1e-6), name
    for name in ("auc", "average_precision"):
        assert abs(found[name]["value"] - true[name]) <= found[name]["binning"] < 0.06, name
        assert found[name]["value"] == pytest.approx(true[name], abs=0.01), name
    confusion = exact.confusion_matrix(labels, p.argmax(axis=1), classes)
    assert found["confusion_matrix"] == confusion.astype(int).tolist()
    assert found["by_class"][1]["recall"] == pytest.approx(exact.recall(confusion)[1])


def test_accuracy_of_4000_records_at_epsilon_1_is_off_by_about_a_tenth_of_a_point():
    labels, p = _people(4000, 2)
    total, true = classifier_sum(labels, p), exact.classifier_metrics(labels, p)["accuracy"]
    rng, sigma = np.random.default_rng(2), _sigma(1.0, 1e-5)
    off = []
    for _ in range(200):
        noisy = ReleasedTest(2, sigma, total + sigma * rng.normal(size=total.shape))
        off.append(abs(noisy._classifier(noisy.blocks)["accuracy"] - true))
    assert 0.0005 < np.mean(off) < 0.0016


@pytest.mark.parametrize(("classes", "n"), [(2, 4000), (5, 8000)])
def test_intervals_hold_the_truth_of_all_people(classes, n):
    true = exact.classifier_metrics(*_people(200_000, classes, seed=99))
    rng, sigma, rounds = np.random.default_rng(3), _sigma(1.0, 1e-5), 20
    inside = dict.fromkeys(("accuracy", "balanced_accuracy", "auc", "average_precision", "log_loss"), 0)
    for seed in range(rounds):
        total = classifier_sum(*_people(n, classes, seed=seed))
        found = ReleasedTest(classes, sigma, total + sigma * rng.normal(size=total.shape)).metrics()
        for name in inside:
            row = found[name]
            inside[name] += row["low"] <= true[name] <= row["high"]
    assert all(count >= 0.85 * rounds for count in inside.values()), inside


def test_a_regression_follows_from_clipped_sums():
    rng = np.random.default_rng(4)
    y = rng.uniform(-1, 1, 4000)
    guess = np.clip(y + 0.2 * rng.normal(size=4000), -1, 1)
    true, total, sigma = exact.regression_metrics(y, guess), regression_sum(y, guess), _sigma(1.0, 1e-5)
    plain = ReleasedTest(0, 1e-9, total, unit=3.0).metrics()
    assert plain["rmse"]["value"] == pytest.approx(3 * true["rmse"])
    assert plain["mae"]["value"] == pytest.approx(3 * true["mae"])
    assert plain["r2"]["value"] == pytest.approx(true["r2"])
    noisy = ReleasedTest(0, sigma, total + sigma * rng.normal(size=5)).metrics()
    for name in ("rmse", "mae", "r2"):
        assert noisy[name]["low"] <= true[name] <= noisy[name]["high"]
        assert noisy[name]["low"] < noisy[name]["value"] < noisy[name]["high"]


def test_what_is_lost_in_the_noise_is_not_said():
    labels, p = _people(12, 3)
    total = classifier_sum(labels, p)
    found = ReleasedTest(3, 20.0, total).metrics()
    assert found["accuracy"]["value"] is None
    assert found["auc"]["value"] is None
    assert found["by_class"][0]["recall"] is None


def test_a_release_survives_json():
    labels, p = _people(100, 2)
    release = ReleasedTest(2, 1.5, classifier_sum(labels, p))
    again = ReleasedTest.from_json(json.loads(json.dumps(release.to_json())))
    assert again.metrics() == release.metrics()
    assert again.to_json()["edges"] == EDGES.tolist()
    assert len(EDGES) + 1 == BINS == layout(2)[1].shape[2]


def test_a_number_is_told_with_its_interval_or_not_at_all():
    """Little is left of 60 records at ε = 1; what is told has both ends."""
    labels, p = _people(60, 2)
    sigma, rng = _sigma(1.0, 1e-5), np.random.default_rng(5)
    total = classifier_sum(labels, p)
    for _ in range(20):
        found = ReleasedTest(2, sigma, total + rng.normal(scale=sigma, size=len(total))).metrics()
        rows = [row for row in found.values() if isinstance(row, dict)]
        assert all((row["value"] is None) >= (row["low"] is None) for row in rows)
        assert all(row["low"] is not None and row["high"] is not None for row in rows if row["value"] is not None)


def test_no_root_mean_square_is_less_than_the_mean():
    y, guess = np.zeros(400), np.full(400, 0.1)
    total, rng = regression_sum(y, guess), np.random.default_rng(1)
    for _ in range(20):
        found = ReleasedTest(0, 4.0, total + rng.normal(scale=4.0, size=5)).metrics()
        assert found["rmse"]["value"] >= found["mae"]["value"] - 1e-9


# --- groups ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 4])
def test_a_record_is_in_one_group_and_still_no_longer_than_one(classes):
    labels, p = _people(400, classes)
    codes = np.random.default_rng(3).integers(-1, 3, size=len(labels))  # -1: no group's
    lengths = [
        np.linalg.norm(classifier_sum(labels[i : i + 1], p[i : i + 1], groups=(codes[i : i + 1], 3)))
        for i in range(len(labels))
    ]
    assert max(lengths) <= 1 + 1e-12
    sums = sum(classifier_sum(labels[i : i + 1], p[i : i + 1], groups=(codes[i : i + 1], 3)) for i in range(50))
    assert sums == pytest.approx(classifier_sum(labels[:50], p[:50], groups=(codes[:50], 3)))
    assert len(sums) == vector_size(classes, 3)


def test_groups_of_a_regression_are_no_longer_than_one_either():
    ends = np.array([-np.inf, -1e9, -1.0, 0.0, 1.0, 1e9, np.nan])
    one = np.array([1])
    lengths = [
        np.linalg.norm(regression_sum(np.array([y]), np.array([g]), groups=(one, 2))) for y in ends for g in ends
    ]
    assert max(lengths) == pytest.approx(1.0)


def test_metrics_of_groups_are_those_of_their_records():
    labels, p = _people(4000, 2)
    codes = (np.arange(4000) % 4 == 0).astype(np.int64)
    total = classifier_sum(labels, p, groups=(codes, 2))
    rows = ReleasedTest(2, 1e-9, total, ("many", "few")).metrics()["by_group"]
    assert [row["records"] for row in rows] == [3000, 1000]
    for code, row in enumerate(rows):
        own = exact.classifier_metrics(labels[codes == code], p[codes == code])
        assert row["accuracy"] == pytest.approx(own["accuracy"], abs=1e-6)
        assert row["balanced_accuracy from"] < own["balanced_accuracy"] < row["balanced_accuracy to"]


def test_masses_make_the_records_of_an_owner_one():
    labels, p = _people(30, 3)
    masses = np.full(30, 1 / 30)  # all of one owner
    assert np.linalg.norm(classifier_sum(labels, p, masses)) <= 1 + 1e-12
    y, guess = np.linspace(-1, 1, 30), np.linspace(1, -1, 30)
    assert np.linalg.norm(regression_sum(y, guess, masses)) <= 1 + 1e-12
