"""Pieces are worked on side by side and come back in order."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from cords_dp.processes import in_order


@pytest.mark.parametrize("workers", [1, 3])
def test_results_are_in_order_and_few_pieces_are_ahead(workers):
    drawn, done = [], []

    def pieces():
        for i in range(20):
            drawn.append(i)
            yield i

    def slow(i):
        time.sleep(0.01 if i % 3 == 0 else 0.0)
        return i * i

    threads = torch.get_num_threads()
    with in_order(slow, pieces(), workers) as results:
        for result in results:
            done.append(result)
            assert len(drawn) - len(done) <= 2 * workers
    assert done == [i * i for i in range(20)]
    assert torch.get_num_threads() == threads


def test_a_failure_ends_the_work():
    started = []

    def fails(i):
        started.append(i)
        if i == 2:
            raise RuntimeError("two")
        return i

    with pytest.raises(RuntimeError, match="two"), in_order(fails, iter(range(1000)), 2) as results:
        for _ in results:
            pass
    assert len(started) < 20
    assert threading.active_count() < 20
