"""Random views of images, drawn for each record by itself."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


def augmented_views(images: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """``count`` random views of each image, one after the other: N×C×H×W → (N·count)×C×H×W.

    A view is shifted by up to an eighth of its side, the border being reflected, and colour images are mirrored by a
    coin. Which view is drawn depends on chance alone, so a view is a function of one record and its own randomness.
    """
    n, channels, height, width = images.shape
    pad = max(1, height // 8)
    padded = F.pad(images, (pad, pad, pad, pad), mode="reflect").repeat_interleave(count, dim=0)
    total = n * count

    def draw(high: int) -> Tensor:
        return torch.from_numpy(rng.integers(0, high, total)).to(images.device)

    rows = draw(2 * pad + 1)[:, None] + torch.arange(height, device=images.device)
    columns = draw(2 * pad + 1)[:, None] + torch.arange(width, device=images.device)
    if channels == 3:
        mirrored = draw(2).bool()[:, None]
        columns = torch.where(mirrored, columns.flip(1), columns)
    pick = torch.arange(total, device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[pick, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
