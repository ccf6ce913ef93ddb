"""A threshold from a histogram of scores: exact against all thresholds, noisy against its interval, and refusals."""

import json

import numpy as np
import pytest

from cords_dp import choose_threshold
from cords_dp.errors import ConfigError, ResultsError
from cords_dp.evaluation.threshold import ScoreHistogram, released_scores


@pytest.fixture
def scored():
    rng = np.random.default_rng(0)
    labels = (rng.random(4000) < 0.1).astype(np.int64)
    return labels, np.clip(rng.beta(2, 8, 4000) + 0.25 * labels, 0, 1)


def histogram(scored, **options):
    return ScoreHistogram.of(*scored, positive="yes", **options)


@pytest.mark.parametrize("recall", [0.3, 0.8, 1.0])
def test_the_highest_threshold_that_reaches_the_recall(scored, recall):
    labels, scores = scored
    found = choose_threshold(histogram(scored), recall=recall)
    predicted = scores >= found.threshold
    assert found.recall == pytest.approx(predicted[labels == 1].mean())
    assert found.precision == pytest.approx(labels[predicted].mean())
    assert found.predicted_positive == pytest.approx(predicted.mean())
    assert found.recall >= recall
    edges = histogram(scored).edges
    higher = edges[edges > found.threshold]
    assert all((scores >= edge)[labels == 1].mean() < recall for edge in higher)


@pytest.mark.parametrize(("missed", "alarm"), [(1, 1), (10, 1), (1, 0), (0, 1)])
def test_the_threshold_with_the_least_cost(scored, missed, alarm):
    labels, scores = scored

    def total(threshold):
        predicted = scores >= threshold
        return missed * (labels[~predicted] == 1).sum() + alarm * (labels[predicted] == 0).sum()

    counted = histogram(scored)
    found = choose_threshold(counted.to_dict(), cost=(missed, alarm))
    if found.threshold < 1:  # the last bin holds its upper edge
        assert total(found.threshold) == min(total(edge) for edge in counted.edges[:-1])


def test_the_interval_holds_the_exact_recall_nineteen_times_in_twenty(scored):
    """Of a histogram with noise: at the threshold that it chooses, against the recall of all records."""
    labels, scores = scored
    exact, rng, inside, noise = histogram(scored, bins=40), np.random.default_rng(1), 0, 6.0
    for _ in range(300):
        noisy = ScoreHistogram("yes", exact.edges, exact.counts + rng.normal(0, noise, exact.counts.shape), noise)
        found = choose_threshold(noisy, recall=0.8)
        inside += found.recall_low <= (scores >= found.threshold)[labels == 1].mean() <= found.recall_high
    assert inside >= 0.93 * 300


def test_noisy_sums_fall_from_edge_to_edge():
    counts = np.array([[5.0, -3.0, 4.0, -1.0], [1.0, 2.0, -2.0, 3.0]])
    above = ScoreHistogram("yes", np.linspace(0, 1, 5), counts, 1.0).above()
    assert (np.diff(above, axis=1) <= 0).all()
    assert (above >= 0).all()


def test_a_histogram_survives_its_file(scored, tmp_path):
    (tmp_path / "result.json").write_text(json.dumps({"metrics": {"scores": histogram(scored).to_dict()}}))
    found = released_scores(tmp_path)
    assert np.array_equal(found.counts, histogram(scored).counts)
    assert choose_threshold(found, recall=0.8) == choose_threshold(histogram(scored), recall=0.8)


@pytest.mark.parametrize(
    "wanted",
    [{}, {"recall": 0.8, "cost": (1, 1)}, {"recall": 0.0}, {"recall": 1.1}, {"cost": (0, 0)}, {"cost": (-1, 2)}],
)
def test_what_cannot_be_wanted_is_refused(scored, wanted):
    with pytest.raises(ConfigError):
        choose_threshold(histogram(scored), **wanted)


def test_what_has_no_histogram_is_refused(tmp_path):
    with pytest.raises(ResultsError, match=r"no result\.json"):
        released_scores(tmp_path)
    (tmp_path / "result.json").write_text('{"metrics": {"auc": 0.5}}')
    with pytest.raises(ResultsError, match="no histogram"):
        released_scores(tmp_path)
    with pytest.raises(ResultsError, match="damaged"):
        choose_threshold({"positive": "yes", "edges": [0, 1], "counts": [[1]]}, recall=0.5)
    with pytest.raises(ResultsError, match="no record"):
        choose_threshold({"positive": "yes", "edges": [0, 1], "counts": [[1], [0]]}, recall=0.5)
