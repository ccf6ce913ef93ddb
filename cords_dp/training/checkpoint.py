"""Checkpoints with CORDS' keys, written whole or not at all, read without running code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cords_dp.errors import CordsDPError

_SAFE_CLASSES: list[Any] = [nn.CrossEntropyLoss, nn.MSELoss, set]


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint at ``path`` in one rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    os.replace(temporary, path)


def load_checkpoint(path: Path, device: str) -> dict[str, Any]:
    try:
        with torch.serialization.safe_globals(_SAFE_CLASSES):
            return torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise CordsDPError(f"the checkpoint {path.name} cannot be read: {error}") from error
