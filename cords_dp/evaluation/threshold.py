"""Chooses the probability from which a record counts as positive: for a wanted recall, or for costs of mistakes.

The choice is a function of a histogram of scores by class. Of a public test set that is exact; of a private one it is
released with noise and paid for (``noise``: the standard deviation of a cell's). The choice itself costs nothing: it is
post-processing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cords_dp.errors import ConfigError, ResultsError

BINS = 200  # of an exact histogram: a threshold in steps of half a percent
_Z = 1.96  # intervals of 95 %


@dataclass(frozen=True)
class ScoreHistogram:
    """How many records have a probability of the positive class in each bin.

    counts: a row for the records of the other class, and one for those of the positive class. edges: public, from 0 to
    1; a bin has its lower edge and not its upper one, but for the last.
    """

    positive: str
    edges: np.ndarray
    counts: np.ndarray
    noise: float = 0.0

    @classmethod
    def of(cls, labels: np.ndarray, scores: np.ndarray, *, positive: str, bins: int = BINS) -> ScoreHistogram:
        """Count records; exact, so of public records only. A record is in one cell."""
        edges = np.round(np.linspace(0.0, 1.0, bins + 1), 6)
        counts = [np.histogram(scores[labels == label], edges)[0] for label in (0, 1)]
        return cls(positive, edges, np.array(counts, dtype=np.float64))

    def to_dict(self) -> dict[str, Any]:
        return {
            "positive": self.positive,
            "edges": [float(edge) for edge in self.edges],
            "counts": [[int(c) if float(c).is_integer() else float(c) for c in row] for row in self.counts],
            "noise": self.noise,
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> ScoreHistogram:
        try:
            counts, edges = np.array(found["counts"], dtype=np.float64), np.array(found["edges"], dtype=np.float64)
            if counts.shape == (2, len(edges) - 1) and np.isfinite(counts).all() and (np.diff(edges) > 0).all():
                return cls(str(found["positive"]), edges, counts, float(found.get("noise") or 0.0))
        except (KeyError, TypeError, ValueError):
            pass
        raise ResultsError("the histogram of scores is damaged: it needs positive, edges and two rows of counts")

    def above(self) -> np.ndarray:
        """Return how many records of each class have at least each edge's probability; falling from edge to edge.

        Noise makes sums that rise from edge to edge. The mean of the lowest and the highest falling curve around them
        takes their place; exact sums stay as they are.
        """
        sums = np.concatenate([np.cumsum(self.counts[:, ::-1], axis=1)[:, ::-1], np.zeros((2, 1))], axis=1)
        highest = np.maximum.accumulate(sums[:, ::-1], axis=1)[:, ::-1]
        lowest = np.minimum.accumulate(sums, axis=1)
        return np.clip((highest + lowest) / 2, 0.0, None)


def released_scores(run: str | Path) -> ScoreHistogram:
    """Read the histogram of scores that a run has left in ``result.json``."""
    path = Path(run).expanduser() / "result.json"
    if not path.is_file():
        raise ResultsError(f"{path.parent.name} holds no {path.name}: name the output folder of a run")
    scores = (json.loads(path.read_text()).get("metrics") or {}).get("scores")
    if not isinstance(scores, dict):
        raise ResultsError(
            f"{path.parent.name} has no histogram of its test set's scores: only a classifier of two classes has one, "
            "trained in one process"
        )
    return ScoreHistogram.from_dict(scores)


@dataclass(frozen=True)
class Threshold:
    """A threshold and what to expect of it: estimates from the histogram, recall with a 95 % interval.

    The interval holds the noise of the histogram and the chance of the test records; the bins' width adds nothing, for
    the threshold is one of their edges.
    """

    threshold: float
    positive: str
    recall: float
    recall_low: float
    recall_high: float
    precision: float
    predicted_positive: float

    def text(self) -> str:
        interval = f"{100 * self.recall_low:.1f} % to {100 * self.recall_high:.1f} %"
        rows = [
            ("threshold", f"{self.threshold:g}: a record with at least this probability is {self.positive!r}"),
            ("recall", f"{100 * self.recall:.1f} % ({interval}) of the records that are {self.positive!r}"),
            ("precision", f"{100 * self.precision:.1f} % of those that are predicted so"),
            ("predicted so", f"{100 * self.predicted_positive:.1f} % of all records"),
        ]
        return "\n".join(f"{name:<14}{value}" for name, value in rows)


def choose_threshold(
    histogram: ScoreHistogram | Mapping[str, Any],
    *,
    recall: float | None = None,
    cost: tuple[float, float] | None = None,
) -> Threshold:
    """Choose a threshold for the positive class, from released values alone.

    recall: the highest threshold that finds this share of the positive records. cost: what a positive record that is
    missed costs, and what a false alarm does; the threshold with the least total is chosen.
    """
    if (recall is None) == (cost is None):
        raise ConfigError("threshold", None, "give a wanted recall or the costs of mistakes: --recall 0.8, --cost 5:1")
    if not isinstance(histogram, ScoreHistogram):
        histogram = ScoreHistogram.from_dict(histogram)
    negatives, positives = above = histogram.above()
    if not positives[0] > 0:
        fix = "if there are any, they are lost in the noise: measure on more records, or with a larger epsilon"
        raise ResultsError(f"the histogram shows no record of the class {histogram.positive!r}; {fix}")
    if recall is not None:
        if not 0 < recall <= 1:
            raise ConfigError("--recall", recall, "must be a share above 0 and at most 1")
        place = int(np.flatnonzero(positives >= recall * positives[0] * (1 - 1e-12))[-1])
    else:
        assert cost is not None
        missed, alarm = cost
        if not (missed >= 0 and alarm >= 0 and 0 < missed + alarm < float("inf")):
            raise ConfigError("--cost", f"{missed:g}:{alarm:g}", "must be two costs of at least 0, such as 5:1")
        place = int(np.argmin(missed * (positives[0] - positives) + alarm * negatives))
    return _at(histogram, above, place)


def _at(histogram: ScoreHistogram, above: np.ndarray, place: int) -> Threshold:
    total, found = above[1, 0], above[1, place]
    share, bins = found / total, len(histogram.edges) - 1
    # of the ratio found/total: noise of the cells above and below, and the chance of which records were tested
    noise = histogram.noise**2 * ((bins - place) * (1 - share) ** 2 + place * share**2) / total**2
    error = _Z * float(np.sqrt(noise + share * (1 - share) / max(total, 1.0)))
    predicted = above[:, place].sum()
    return Threshold(
        threshold=float(histogram.edges[place]),
        positive=histogram.positive,
        recall=float(share),
        recall_low=max(0.0, float(share) - error),
        recall_high=min(1.0, float(share) + error),
        precision=float(found / predicted) if predicted > 0 else float("nan"),
        predicted_positive=float(predicted / above[:, 0].sum()),
    )
