"""Null records: in their places, and contributing nothing."""

from __future__ import annotations

import numpy as np
import torch
from builders import CE, Net, data_of

from cords_dp.auditing.null import NullRecords, without
from cords_dp.selection import Pool, Records
from cords_dp.selection.scores import Score, score_records
from cords_dp.studies.match import uniform_gradients


def test_without_keeps_weights_and_chances():
    pool = Pool(np.array([3, 1, 2]), weights=np.array([0.1, 0.2, 0.3]), chances=np.array([0.4, 0.5, 0.6]))
    kept = without(pool, np.array([1]))
    assert (kept.indices.tolist(), kept.weights.tolist(), kept.chances.tolist()) == ([3, 2], [0.1, 0.3], [0.4, 0.6])


def test_a_null_record_has_neither_gradient_nor_prediction_nor_class_nor_cell():
    torch.manual_seed(0)
    model, data = Net(), data_of(8, seed=1)
    weights, null = model.state_dict(), np.array([2, 5])
    plain, nulled = Records(data, model, CE, "cpu"), NullRecords(data, model, CE, "cpu", null=null)
    kept = np.delete(np.arange(8), null)
    one, other = plain.at(weights), nulled.at(weights)
    assert torch.equal(one.gradients.r[kept], other.gradients.r[kept])
    assert not other.gradients.r[null].any()
    assert not other.gradients.a[null].any()
    assert other.gradients.present.numpy().nonzero()[0].tolist() == kept.tolist()
    assert (nulled.kinds(weights, 3)[0] == -1).nonzero()[0].tolist() == null.tolist()
    some = nulled.some(np.array([5, 6]), weights)
    assert not some.gradients.r[0].any()
    torch.testing.assert_close(some.gradients.r[1], one.gradients.r[6])
    assert (
        score_records(Score("one", lambda r, a, v: 1 + 0 * r.sum(), False), other.gradients, one.gradients.r).sum() == 6
    )
    phi = uniform_gradients(other.gradients.a, other.labels, 3)
    assert phi.present.numpy().nonzero()[0].tolist() == kept.tolist()
    assert not (phi.r[null][:, :, None] * phi.a[null][:, None]).any()
