"""Changed published sets (fewer records of some classes, wrong labels, other images) and the paper's made-up one.

They *define* the private dataset of an experiment, to study selection; they are not mechanisms and are not charged.
Real private data comes as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

CUT_SHARE = 0.1
SYNTHETIC_FEATURES = 10
# share of class 0 in training, validation and test: 1:9, 6:4, 9:1
CLASS_SHARES = (0.1, 0.6, 0.9)


def mild_imbalance(labels: np.ndarray, keep_range: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
    """Return indices of a variant in which each class keeps a share drawn uniformly from ``keep_range``."""
    kept = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        size = round(len(members) * rng.uniform(*keep_range))
        kept.append(rng.choice(members, size=max(1, size), replace=False))
    return np.sort(np.concatenate(kept))


def cut_classes(labels: np.ndarray, ratio: float, rng: np.random.Generator) -> np.ndarray:
    """Cut classes as CORDS' ``classimb`` does: a share ``ratio`` of them to a tenth of the smallest class."""
    classes, counts = np.unique(labels, return_counts=True)
    remaining = max(1, int(counts.min() * CUT_SHARE))
    cut = rng.choice(classes, size=int(ratio * len(classes)), replace=False)
    kept = []
    for label in classes:
        members = np.flatnonzero(labels == label)
        kept.append(rng.choice(members, size=remaining, replace=False) if label in cut else members)
    return np.sort(np.concatenate(kept))


def keep_share(labels: np.ndarray, classes: Sequence[int], share: float, rng: np.random.Generator) -> np.ndarray:
    """Return indices of a variant in which some classes keep a share of their records."""
    dropped = [
        rng.choice(members, size=len(members) - max(1, round(share * len(members))), replace=False)
        for members in (np.flatnonzero(labels == label) for label in classes)
        if len(members)
    ]
    return np.setdiff1d(np.arange(len(labels)), np.concatenate(dropped)) if dropped else np.arange(len(labels))


def wrong_labels(labels: np.ndarray, share: float, kind: str, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Move a share of the labels to the next class (``pair``) or draw them anew (``random``)."""
    moved = rng.random(len(labels)) < share
    other = (labels + 1) % classes if kind == "pair" else rng.integers(0, classes, len(labels))
    return np.where(moved, other, labels)


def inverted(images: np.ndarray) -> np.ndarray:
    """Turn black into white: the same classes from another source."""
    return 255 - images if images.dtype == np.uint8 else images.max() + images.min() - images


def turned(images: np.ndarray) -> np.ndarray:
    """Turn square images by a quarter, given as (n, C, H, W) or as flat rows."""
    side = round(images.shape[1] ** 0.5) if images.ndim == 2 else images.shape[-1]
    return np.rot90(images.reshape(len(images), -1, side, side), axes=(2, 3)).reshape(images.shape)


def shift_set(num_samples: int, separation: float, rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw (x, y) of the training, validation and test sets: 80 %, 10 % and 10 % of ``num_samples``.

    Two Gaussian classes in ten dimensions whose means lie ``separation`` apart, so that they overlap
    and the class shares of the training set decide where a model puts its border.
    """
    direction = rng.normal(size=SYNTHETIC_FEATURES)
    direction *= separation / 2 / np.linalg.norm(direction)
    validation = test = num_samples // 10
    parts = []
    for size, share in zip((num_samples - validation - test, validation, test), CLASS_SHARES, strict=True):
        y = np.ones(size, dtype=np.int64)
        y[: round(size * share)] = 0
        rng.shuffle(y)
        x = rng.normal(size=(size, SYNTHETIC_FEATURES)) + np.where(y[:, None] == 1, direction, -direction)
        parts.append((x.astype(np.float32), y))
    return parts
