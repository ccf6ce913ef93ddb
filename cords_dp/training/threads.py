"""How many threads the steps of a run take.

Steps of a small net on short vectors take less than a millisecond. Torch's threads then spend more time waiting for
each other than computing, on a busy machine many times more: the first line of `make demo` said 18.3 s with two threads
and 3.9 s with one, on two cores that others used too. So such runs take one thread. Which runs these are depends on the
model and on the batch size, which are public.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

_SMALL = 20_000_000  # multiplications of a step's forward pass


def steps_are_small(model: nn.Module, record: Tensor, batch_size: int | None) -> bool:
    """Records are vectors, nothing heavy is computed of them beforehand, and a batch is little work."""
    if record.dim() != 1 or getattr(model, "input_transform", None) is not None:
        return False
    return (batch_size or 1) * sum(weight.numel() for weight in model.parameters()) <= _SMALL


@contextlib.contextmanager
def threads_for_steps(model: nn.Module, record: Tensor, batch_size: int | None) -> Iterator[None]:
    """One thread for a run whose steps are small, and as many as before for others."""
    before = torch.get_num_threads()
    if steps_are_small(model, record, batch_size):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
