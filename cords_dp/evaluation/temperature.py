"""One number that makes probabilities honest: what logits are divided by. Pure functions, no noise here.

Formal guarantee
----------------
`loss_steps` adds up one vector a record, a function of that record's label and of the released model's logits: by how
much its log loss, cut at `MOST_LOSS`, changes from each temperature of a public grid to the next, shortened to length
`_LONGEST` and divided by it. So it is at most 1 long, and with masses so is the mean of an owner's records; a null
record, one without a known label and one whose logits are not finite have the zero vector. The sum has L2 sensitivity 1
for zero-out of one record or owner. `chosen_temperature` reads the noisy sum alone: it is post-processing.

Steps from one temperature to the next need less noise than the losses themselves: a loss that falls from 8 to 0 in
eight equal steps is a vector of length 2.8, and its nine values are one of length 14. Temperatures far below 1 are left
out: private models were too sure wherever much was to be gained, and a wrong step that way costs most.
"""

from __future__ import annotations

import numpy as np

from cords_dp.evaluation.released import MOST_LOSS

TEMPERATURES = 2.0 ** np.arange(-1, 3.25, 0.5)
_ONE = int(np.flatnonzero(TEMPERATURES == 1)[0])
_LONGEST = 2.5  # longer are the steps of records of which the model is sure and wrong
_SURE = 3.0  # deviations of its noise that a gain has to exceed


def loss_steps(labels: np.ndarray, logits: np.ndarray, masses: np.ndarray | None = None) -> np.ndarray:
    """Add up the records' vectors; sensitivity 1. A private value. masses: by how much each record counts."""
    known = (labels >= 0) & (labels < logits.shape[1]) & np.isfinite(logits).all(axis=1)
    y, z = labels[known].astype(np.int64), logits[known].astype(np.float64)
    behind = z - z[np.arange(len(y)), y][:, None]  # of each class, how far it is above the label's
    losses = np.stack([np.minimum(_log_sum(behind / t), MOST_LOSS) for t in TEMPERATURES], axis=1)
    steps = np.diff(losses, axis=1)
    lengths = np.linalg.norm(steps, axis=1, keepdims=True)
    weights = (1.0 if masses is None else masses[known, None]) / np.maximum(lengths, _LONGEST)
    return (weights * steps).sum(axis=0)


def _log_sum(values: np.ndarray) -> np.ndarray:
    """Return log Σ e^value of each row."""
    top = values.max(axis=1, initial=-np.inf)
    return top + np.log(np.exp(values - top[:, None]).sum(axis=1))


def chosen_temperature(steps: np.ndarray, sigma: float) -> float:
    """Return the temperature with the largest gain over 1, beyond what noise explains; 1 where there is none.

    The gain at k steps from 1 is the sum of k noisy numbers. ``sigma``: their deviation.
    """
    losses = np.concatenate([[0.0], np.cumsum(steps)])
    away = np.abs(np.arange(len(losses)) - _ONE)
    gains = losses[_ONE] - losses - _SURE * sigma * np.sqrt(away)
    best = int(gains.argmax())
    return float(TEMPERATURES[best]) if gains[best] > 0 else 1.0


__all__ = ["TEMPERATURES", "chosen_temperature", "loss_steps"]
