"""How good a classifier's probabilities are: AUC, log loss and expected calibration error, of a public test set."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import nn
from torch.utils.data import Dataset

from cords_dp.extend import sequential_batches

SCORES = {"auc": "AUC", "log_loss": "log loss", "calibration_error": "calibration error"}
_BATCH, _BINS = 4096, 15


@torch.no_grad()
def predicted_probabilities(model: nn.Module, dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities of all classes and the labels, of records whose class is known."""
    model.eval()
    batches = [(model(x).double().softmax(dim=1), y) for x, y in sequential_batches(dataset, _BATCH)]
    given, labels = (torch.cat(part).numpy() for part in zip(*batches, strict=True))
    return given[labels >= 0], labels[labels >= 0]


def probability_scores(given: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return the scores by their names in `SCORES`; an AUC is that of the second of two classes.

    The calibration error compares the probability of the second class, or with more than two that of the predicted
    one, with how often it was right, in 15 bins of one width, weighted by their records.
    """
    two = given.shape[1] == 2
    right = labels == 1 if two else given.argmax(axis=1) == labels
    said = given[:, 1] if two else given.max(axis=1)
    chances = np.maximum(given[np.arange(len(labels)), labels], np.finfo(np.float64).tiny)
    scores = {"log_loss": float(-np.log(chances).mean()), "calibration_error": _calibration_error(said, right)}
    return {"auc": _auc(said, right), **scores} if two else scores


def _auc(said: np.ndarray, right: np.ndarray) -> float:
    """Return how likely a positive record stands above a negative one; ties count half."""
    positive = int(right.sum())
    pairs = positive * (len(right) - positive)
    above = stats.rankdata(said)[right].sum() - positive * (positive + 1) / 2
    return float(above / pairs) if pairs else float("nan")


def _calibration_error(said: np.ndarray, right: np.ndarray) -> float:
    bins = np.minimum((said * _BINS).astype(int), _BINS - 1)
    return float(np.abs(np.bincount(bins, weights=said - right, minlength=_BINS)).sum() / len(said))


def probability_tables(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return methods × scenario and score, means over seeds, one table for each dataset and budget."""
    known = [name for name in SCORES if name in frame]
    tables = {}
    for (dataset, budget), part in frame.groupby(["dataset", "budget"], sort=False) if known else ():
        means = part.groupby(["method", "scenario"], sort=False)[known].mean()
        cells = pd.DataFrame(means.map("{:.3f}".format).unstack("scenario", sort=False))
        cells.columns = [f"{scenario}: {SCORES[name]}" for name, scenario in cells.columns]
        tables[f"{dataset}, ε = {budget:g}: probabilities"] = cells.rename_axis("method").reset_index()
    return tables
