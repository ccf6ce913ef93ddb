"""Poisson batches: rates, independence, empty batches; the loaders follow the plan."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import TensorDataset

from cords_dp.data.record_set import array_set, records_at
from cords_dp.selection import Pool
from cords_dp.training.poisson import poisson_batches

ALPHA = 1e-6


def dataset_of(n):
    return array_set(np.arange(n, dtype=np.float32)[:, None], np.zeros(n, dtype=np.int64))


def inclusion_matrix(n, rate, steps, seed=0):
    """steps × n, who was in which batch (each record's feature is its index)."""
    batches = poisson_batches(
        dataset_of(n), Pool.everything(n), rate=rate, steps=steps, rng=np.random.default_rng(seed)
    )
    matrix = np.zeros((steps, n), dtype=bool)
    for step, (x, _, _) in enumerate(batches):
        matrix[step, x[:, 0].long().numpy()] = True
    return matrix


@pytest.mark.parametrize("rate", [0.02, 0.3, 1.0])
def test_every_record_falls_into_batches_at_the_rate(rate):
    steps, n = 2000, 50
    counts = inclusion_matrix(n, rate, steps).sum(axis=0)
    if rate == 1.0:
        assert (counts == steps).all()
    else:
        p = [stats.binomtest(int(c), steps, rate).pvalue for c in counts]
        assert min(p) > ALPHA
        # and the counts spread as independent coins do
        chi2 = ((counts - steps * rate) ** 2).sum() / (steps * rate * (1 - rate))
        assert stats.chi2.sf(chi2, n) > ALPHA
        assert stats.chi2.cdf(chi2, n) > ALPHA


def test_batch_sizes_vary_as_sums_of_independent_coins():
    """A fixed batch size, or shuffling, would have a far smaller variance."""
    n, rate, steps = 200, 0.1, 3000
    sizes = inclusion_matrix(n, rate, steps).sum(axis=1)
    ratio = sizes.var(ddof=1) / (n * rate * (1 - rate))
    assert stats.chi2.sf(ratio * (steps - 1), steps - 1) > ALPHA
    assert stats.chi2.cdf(ratio * (steps - 1), steps - 1) > ALPHA


def test_two_records_are_included_independently():
    together = inclusion_matrix(2, 0.4, 20_000)
    table = np.array([[np.sum(together[:, 0] == a) for a in (0, 1)], [np.sum(together[:, 1] == a) for a in (0, 1)]])
    assert table.sum() == 40_000
    joint = np.array([[np.sum((together[:, 0] == a) & (together[:, 1] == b)) for b in (0, 1)] for a in (0, 1)])
    assert stats.chi2_contingency(joint).pvalue > ALPHA


def test_the_number_of_batches_is_public_even_when_all_are_empty():
    batches = list(
        poisson_batches(dataset_of(3), Pool(np.array([], dtype=int)), rate=0.5, steps=7, rng=np.random.default_rng(0))
    )
    assert len(batches) == 7
    assert all(x.shape == (0, 1) and y.shape == (0,) and w.shape == (0,) for x, y, w in batches)


def test_records_from_a_plain_torch_dataset():
    plain = TensorDataset(torch.arange(10.0)[:, None], torch.arange(10))
    x, y = records_at(plain, np.array([3, 1]))
    assert y.tolist() == [3, 1]
    assert x[:, 0].tolist() == [3.0, 1.0]
    assert records_at(plain, np.array([], dtype=int))[0].shape == (0, 1)
