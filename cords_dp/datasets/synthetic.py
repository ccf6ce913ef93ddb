"""The paper's synthetic set with a shift between training, validation and test classes."""

from __future__ import annotations

import numpy as np

FEATURES = 10
# share of class 0 in training, validation and test: 1:9, 6:4, 9:1
CLASS_SHARES = (0.1, 0.6, 0.9)


def shift_set(num_samples: int, separation: float, rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """(x, y) of training, validation and test: 80 %, 10 % and 10 % of ``num_samples``.

    Two Gaussian classes in ten dimensions whose means lie ``separation`` apart, so that they overlap
    and the class shares of the training set decide where a model puts its border.
    """
    direction = rng.normal(size=FEATURES)
    direction *= separation / 2 / np.linalg.norm(direction)
    validation = test = num_samples // 10
    parts = []
    for size, share in zip((num_samples - validation - test, validation, test), CLASS_SHARES, strict=True):
        y = np.ones(size, dtype=np.int64)
        y[: round(size * share)] = 0
        rng.shuffle(y)
        x = rng.normal(size=(size, FEATURES)) + np.where(y[:, None] == 1, direction, -direction)
        parts.append((x.astype(np.float32), y))
    return parts
