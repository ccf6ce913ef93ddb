"""The one noisy release of a private test set, and every metric that follows from it: pure functions, no noise here.

Formal guarantee
----------------
`classifier_sum` and `regression_sum` add up one vector a record, a function of that record and of the released model.
A null record, one without a known label and one whose outputs are not finite contribute the zero vector. Every other
record's vector has at most length 1: it is made of blocks, and block i has at most the squared length `Block.share`,
whose sum is 1. So the sum has L2 sensitivity 1 for zero-out of one record, and one Gaussian of the plan's multiplier
pays for all of it (`training.private_test` charges and draws). All else here is post-processing of the noisy sum, the
number of tested records included: it is the noisy total of the table, never the exact one.

Blocks of a classifier: the confusion matrix (a record is in one cell); for each class that is scored a histogram of its
probability, by whether the record belongs to it (one cell each: the second of two classes, else every class); right
minus confidence in bins of the confidence (one cell, at most 1); the log loss, cut at `MOST_LOSS` and divided by it.
Of a regression: 1, |error|, error², target and target², with targets and predictions cut to [−1, 1] and errors halved.
Where groups are asked for, the confusion matrix (the five numbers) of a record's own group besides, in one cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cords_dp.evaluation.metrics import CALIBRATION_BINS

# Of a probability: equal steps of its log-odds, which also resolve the scores of a rare class.
EDGES = 1 / (1 + np.exp(-np.arange(-5.5, 5.75, 0.5)))
BINS = len(EDGES) + 1
MOST_LOSS = 8.0  # −log of a probability of 0.0003
_KNOWN = 3.0  # a total is known if it exceeds so many deviations of its noise
_DRAWS, _NORMAL = 200, 1.96
_GROUP_SHARE = 1 / 4
_SHARES = frozenset({"accuracy", "balanced_accuracy", "base_rate", "auc", "average_precision", "calibration_error"})
Blocks = dict[str, np.ndarray]
Groups = tuple[np.ndarray, int]  # each record's place in a list of groups, and how many there are


class Block(NamedTuple):
    """A part of the vector: its shape, the length of a record's own part of it, and its share of squared length 1."""

    name: str
    shape: tuple[int, ...]
    length: float
    share: float

    @property
    def weight(self) -> float:
        return float(np.sqrt(self.share)) / self.length


def layout(classes: int, groups: int = 0) -> tuple[Block, ...]:
    """Return the blocks of a classifier's vector; of a regression's for 0 classes."""
    scored = 1 if classes == 2 else classes
    found: tuple[Block, ...] = (Block("sums", (5,), float(np.sqrt(5)), 1.0),)
    if classes:
        found = (
            Block("confusion", (classes, classes), 1.0, 1 / 2),
            Block("scores", (scored, 2, BINS), float(np.sqrt(scored)), 1 / 4),
            Block("gaps", (CALIBRATION_BINS,), 1.0, 1 / 8),
            Block("loss", (1,), 1.0, 1 / 8),
        )
    if not groups:
        return found
    whole = found[0]
    return (
        *(block._replace(share=block.share * (1 - _GROUP_SHARE)) for block in found),
        Block("groups", (groups, *whole.shape), whole.length, _GROUP_SHARE),
    )


def vector_size(classes: int, groups: int = 0) -> int:
    return sum(int(np.prod(block.shape)) for block in layout(classes, groups))


# --- one vector a record -------------------------------------------------------------------------------------------


def classifier_sum(
    labels: np.ndarray,
    probabilities: np.ndarray,
    masses: np.ndarray | None = None,
    groups: Groups | None = None,
) -> np.ndarray:
    """Add up the records' vectors; sensitivity 1. A private value.

    masses: by how much each record counts, where those of one owner count 1 together: its part is a mean of vectors.
    groups: a record whose place is no group's has no cell there.
    """
    classes = probabilities.shape[1]
    known = (labels >= 0) & (labels < classes) & np.isfinite(probabilities).all(axis=1)
    y, p = labels[known].astype(np.int64), np.clip(probabilities[known].astype(np.float64), 0.0, 1.0)
    m = np.ones(len(y)) if masses is None else masses[known]
    predicted, confidence = p.argmax(axis=1), p.max(axis=1)
    scored = np.array([1]) if classes == 2 else np.arange(classes)
    cells = np.searchsorted(EDGES, p[:, scored], side="right") + BINS * (y[:, None] == scored)
    loss = -np.log(np.clip(p[np.arange(len(y)), y], np.exp(-MOST_LOSS), 1.0)) / MOST_LOSS
    bins = np.minimum((confidence * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    found = {
        "confusion": np.bincount(y * classes + predicted, weights=m, minlength=classes**2),
        "scores": np.concatenate([np.bincount(column, weights=m, minlength=2 * BINS) for column in cells.T]),
        "gaps": np.bincount(bins, weights=m * ((predicted == y) - confidence), minlength=CALIBRATION_BINS),
        "loss": np.array([(m * loss).sum()]),
    }
    return _joined(found, classes, y * classes + predicted, m, groups, known)


def regression_sum(
    targets: np.ndarray,
    predictions: np.ndarray,
    masses: np.ndarray | None = None,
    groups: Groups | None = None,
) -> np.ndarray:
    """Add up the records' vectors, of numbers whose public range is [−1, 1]; sensitivity 1. A private value.

    masses, groups: as for `classifier_sum`.
    """
    known = np.isfinite(targets) & np.isfinite(predictions)
    y, guess = (np.clip(values[known].astype(np.float64), -1.0, 1.0) for values in (targets, predictions))
    error = np.abs(y - guess) / 2
    m = np.ones(len(y)) if masses is None else masses[known]
    own = np.stack([np.ones(len(y)), error, error**2, y, y**2], axis=1)
    return _joined({"sums": m @ own}, 0, own, m, groups, known)


def _joined(
    found: Blocks, classes: int, own: np.ndarray, masses: np.ndarray, groups: Groups | None, known: np.ndarray
) -> np.ndarray:
    """Scale the blocks and put them behind each other. ``own``: each record's cell, or numbers, for its group."""
    count = 0
    if groups is not None:
        codes, count = groups[0][known], groups[1]
        member = (codes >= 0) & (codes < count)
        block = np.zeros((count, classes**2 if classes else own.shape[1]))
        if classes:
            np.add.at(block, (codes[member], own[member]), masses[member])
        else:
            np.add.at(block, codes[member], masses[member, None] * own[member])
        found = {**found, "groups": block.ravel()}
    return np.concatenate([block.weight * found[block.name] for block in layout(classes, count)])


# --- what was released ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReleasedTest:
    """What a run has released of its test set: public. classes: 0 for a regression. vector: with its noise."""

    classes: int
    sigma: float
    vector: np.ndarray
    groups: tuple[str, ...] = ()
    unit: float = 1.0  # of a regression: half of the target's public range, in its own unit

    @property
    def blocks(self) -> Blocks:
        """The noisy parts in their own units: counts of records, sums over records."""
        return _cut(self.vector, self.classes, len(self.groups))

    def deviation(self, name: str) -> float:
        """Return the deviation of the noise on every cell of a block."""
        return self.sigma / next(b.weight for b in layout(self.classes, len(self.groups)) if b.name == name)

    def to_json(self) -> dict[str, Any]:
        """Return what result.json holds of it: all that metrics, thresholds and reports need."""
        found: dict[str, Any] = {
            "classes": self.classes,
            "sigma": self.sigma,
            "unit": self.unit,
            "groups": list(self.groups),
            "vector": self.vector.tolist(),
        }
        return found if not self.classes else {**found, "edges": EDGES.tolist()}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> ReleasedTest:
        vector, groups = np.array(found["vector"], dtype=np.float64), tuple(found.get("groups") or ())
        return cls(int(found["classes"]), float(found["sigma"]), vector, groups, float(found["unit"]))

    def metrics(self) -> dict[str, Any]:
        """Return each metric as value, low and high: 95 % intervals of the noise and of the draw of test records.

        AUC and average precision also have ``binning``: how far the histogram's cells can put them off, which is part
        of their intervals.
        """
        values, drawn = self._numbers(self.blocks), [self._numbers(blocks) for blocks in self._redrawn()]
        centre = self._numbers(self._truth())
        found: dict[str, Any] = {}
        for name, value in values.items():
            if name.endswith("/binning"):
                continue
            spread, bias = _spread([numbers[name] for numbers in drawn], centre[name])
            value = value if np.isfinite(spread) else np.nan  # what noise may have made of nothing is not told
            off = values.get(f"{name}/binning", 0.0)
            low, high = value - max(bias, 0.0) - spread - off, value + max(-bias, 0.0) + spread + off
            if name.partition("/")[0] in (*_SHARES, "recall", "precision", "r2"):
                high = min(high, 1.0)
            row = {"value": value, "low": low if name == "r2" else max(low, 0.0), "high": high}
            if f"{name}/binning" in values:
                row["binning"] = values[f"{name}/binning"]
            found[name] = {key: float(number) if np.isfinite(number) else None for key, number in row.items()}
        return self._with_tables(found)

    def _with_tables(self, found: dict[str, Any]) -> dict[str, Any]:
        """Put recall and precision into a table by class, groups into one, and add the noisy confusion matrix."""
        single = {name: row for name, row in found.items() if "/" not in name}
        if self.groups:
            single["by_group"] = [self._of_group(found, g) for g in range(len(self.groups))]
        if not self.classes:
            return single
        counts = self.blocks["confusion"]
        single["by_class"] = [
            {
                "class": c,
                "records": round(float(counts[c].sum())),
                **{
                    f"{kind}{end}": found[f"{kind}/{c}"][key]
                    for kind in ("precision", "recall")
                    for end, key in (("", "value"), (" from", "low"), (" to", "high"))
                },
            }
            for c in range(self.classes)
        ]
        single["confusion_matrix"] = np.round(counts).astype(int).tolist()
        return single

    def _of_group(self, found: dict[str, Any], group: int) -> dict[str, Any]:
        block, ending = self.blocks["groups"][group], f"/group {group}"
        rows = {name.removesuffix(ending): row for name, row in found.items() if name.endswith(ending)}
        records = float(block.sum() if self.classes else block[0])
        return {
            "group": self.groups[group],
            "records": round(records),
            **{
                f"{name}{end}": row[key]
                for name, row in rows.items()
                for end, key in (("", "value"), (" from", "low"), (" to", "high"))
            },
        }

    # -- numbers of blocks ------------------------------------------------------------------------------------

    def _numbers(self, blocks: Blocks) -> dict[str, float]:
        found = self._classifier(blocks) if self.classes else self._regression(blocks["sums"], "sums")
        for group, block in enumerate(blocks.get("groups", ())):
            own = self._of_counts(block, "groups") if self.classes else self._regression(block, "groups")
            found |= {f"{name}/group {group}": value for name, value in own.items()}
        return found

    def _of_counts(self, counts: np.ndarray, block: str) -> dict[str, float]:
        """Return what follows from a confusion matrix alone."""
        noise, right, rows, total = self.deviation(block), np.diag(counts), counts.sum(axis=1), counts.sum()
        known = total if total > _KNOWN * noise * self.classes else np.nan
        return {
            "accuracy": float(np.clip(right.sum() / known, 0.0, 1.0)),
            "base_rate": float(np.clip(rows.max() / known, 0.0, 1.0)),
            "balanced_accuracy": _mean(_ratios(right, rows, _KNOWN * noise * np.sqrt(self.classes))),
        }

    def _classifier(self, blocks: Blocks) -> dict[str, float]:
        counts, noise = blocks["confusion"], self.deviation("confusion")
        right, rows, columns, total = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0), counts.sum()
        least = _KNOWN * noise * np.sqrt(self.classes)
        recall, precision = _ratios(right, rows, least), _ratios(right, columns, least)
        known = total if total > _KNOWN * noise * self.classes else np.nan
        loss, gaps = float(blocks["loss"][0]), blocks["gaps"]
        gap = np.sqrt(np.maximum(gaps**2 - self.deviation("gaps") ** 2, 0.0)).sum()
        curves = [self._curve(histogram) for histogram in blocks["scores"]]
        area, precise, area_off, precise_off = (float(_mean(np.array(column))) for column in zip(*curves, strict=True))
        return {
            **self._of_counts(counts, "confusion"),
            "auc": area,
            "auc/binning": area_off,
            "average_precision": precise,
            "average_precision/binning": precise_off,
            "log_loss": max(0.0, MOST_LOSS * loss / known),
            "calibration_error": float(np.clip(gap / known, 0.0, 1.0)),
            **{f"recall/{c}": float(recall[c]) for c in range(self.classes)},
            **{f"precision/{c}": float(precision[c]) for c in range(self.classes)},
        }

    def _curve(self, histogram: np.ndarray) -> tuple[float, float, float, float]:
        """Return AUC and average precision of a score, and by how much its cells can put each off."""
        negative, positive = histogram
        ones, zeros = positive.sum(), negative.sum()
        if min(ones, zeros) <= _KNOWN * self.deviation("scores") * np.sqrt(BINS):
            return (np.nan,) * 4
        below = np.cumsum(negative) - negative
        area = (positive * (below + negative / 2)).sum() / (ones * zeros)
        p, q = positive[::-1], negative[::-1]  # from the highest score; noise stays in: it cancels in sums
        before, others = np.cumsum(p) - p / 2, np.cumsum(q) - q
        first, middle, last = (
            float((p * np.clip(before / np.maximum(before + others + part * q, 1.0), 0.0, 1.0)).sum() / ones)
            for part in (0, 0.5, 1)
        )
        off = float((_not_negative(p) * _not_negative(q)).sum() / (2 * ones * zeros)), max(0.0, first - last) / 2
        return float(np.clip(area, 0.0, 1.0)), float(np.clip(middle, 0.0, 1.0)), *off

    def _regression(self, sums: np.ndarray, block: str) -> dict[str, float]:
        count = sums[0] if sums[0] > _KNOWN * self.deviation(block) else np.nan
        error, square, mean, spread = sums[1:] / count
        error = max(error, 0.0)
        square = max(square, error**2)  # no mean square is less than the square of the mean
        variance = spread - mean**2
        explained = 1 - 4 * square / variance if variance > 0 else np.nan
        return {
            "rmse": 2 * self.unit * float(np.sqrt(square)),
            "mae": 2 * self.unit * float(error),
            "r2": float(explained),
        }

    # -- how far off they may be --------------------------------------------------------------------------------

    def _truth(self) -> Blocks:
        """Return counts that could be true: none is negative."""
        blocks = self.blocks
        counts = ("confusion", "scores", *(["groups"] if self.classes else []))
        return {n: _not_negative(v) if n in counts else v for n, v in blocks.items()}

    def _redrawn(self) -> Iterator[Blocks]:
        """Draw other test records like these, and other noise. No secret: the seed is public, as is what is drawn."""
        rng, truth = np.random.default_rng(0), self._truth()
        variances = self._variances(truth)
        for _ in range(_DRAWS):
            drawn = {}
            for name, values in truth.items():
                deviation = np.sqrt(variances[name] + self.deviation(name) ** 2)
                drawn[name] = values + rng.normal(size=values.shape) * deviation
            yield drawn

    def _variances(self, truth: Blocks) -> Blocks:
        """Bound the variance of each cell over the draw of test records; a count's is that of a Poisson number."""
        if not self.classes:
            return {name: _most_variance(sums) for name, sums in truth.items()}
        total = truth["confusion"].sum()
        loss = max(float(truth["loss"][0]), 0.0)
        return {
            "confusion": truth["confusion"],
            "scores": truth["scores"],
            "gaps": np.full(CALIBRATION_BINS, total / (4 * CALIBRATION_BINS)),
            "loss": np.array([loss]),  # of numbers in [0, 1] the square is at most the number
            **({"groups": truth["groups"]} if self.groups else {}),
        }


def _most_variance(sums: np.ndarray) -> np.ndarray:
    """Bound the variances of a regression's sums: of numbers up to 1 no power is larger."""
    square, second = np.maximum(sums[..., 2], 0.0), np.maximum(sums[..., 4], 0.0)
    return np.stack([np.zeros_like(square), square, square, second, second], axis=-1)


def _cut(vector: np.ndarray, classes: int, groups: int) -> Blocks:
    found, start = {}, 0
    for block in layout(classes, groups):
        stop = start + int(np.prod(block.shape))
        found[block.name] = vector[start:stop].reshape(block.shape) / block.weight
        start = stop
    return found


def _not_negative(counts: np.ndarray) -> np.ndarray:
    """Return the nearest counts with the same total of which none is negative."""
    total = max(float(counts.sum()), 1e-9)
    ordered = np.sort(counts, axis=None)[::-1]
    excess = (np.cumsum(ordered) - total) / np.arange(1, len(ordered) + 1)
    return np.maximum(counts - excess[np.flatnonzero(ordered > excess)[-1]], 0.0)


def _spread(drawn: list[float], centre: float) -> tuple[float, float]:
    """Return the half-width of a 95 % interval, and by how much the estimate is off on average."""
    known = np.array([value for value in drawn if np.isfinite(value)])
    if len(known) < _DRAWS / 2:
        return float("nan"), 0.0
    return _NORMAL * float(known.std()), float(known.mean() - centre) if np.isfinite(centre) else 0.0


def _ratios(parts: np.ndarray, wholes: np.ndarray, least: float) -> np.ndarray:
    """Return parts of wholes; NaN where the whole is lost in the noise."""
    known = wholes > least
    return np.where(known, np.clip(parts / np.where(known, wholes, 1.0), 0.0, 1.0), np.nan)


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


__all__ = [
    "BINS",
    "EDGES",
    "MOST_LOSS",
    "ReleasedTest",
    "classifier_sum",
    "layout",
    "regression_sum",
    "vector_size",
]
