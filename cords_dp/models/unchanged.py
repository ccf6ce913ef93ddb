"""Notices a model that changes its weights or buffers while it computes: what it writes would bypass the noise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cords_dp.errors import UnsupportedModelError


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Copy a model's weights and buffers, frozen ones included."""
    return {name: value.detach().clone() for name, value in _state(model)}


def refuse_changes(model: nn.Module, before: dict[str, Tensor]) -> None:
    """Refuse a model whose weights or buffers are not those of ``before``, name by name and bit by bit.

    What a model writes to them while it computes would carry records past the noise.
    """
    now = dict(_state(model))
    if now.keys() != before.keys() or not all(_same_bits(value, before[name]) for name, value in now.items()):
        raise UnsupportedModelError(
            f"{type(model).__name__} changes its own weights or buffers while it computes, past the noise"
        )


def _state(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Compare as whole numbers: NaN equals itself, and 0 differs from −0."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(one.element_size())
    if whole is None or one.dtype != other.dtype:
        return torch.equal(one, other)
    return torch.equal(one.detach().reshape(-1).view(whole), other.reshape(-1).view(whole))
