"""Whitening of feature maps with the statistics of made-up images, hence of no data.

Features differ in size and are correlated, which slows noisy training down: gradients spend their signal on the few
directions in which all images vary, while the noise is the same in every direction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cords_dp.files import cache_folder, replacing

# 0: channels are only standardised; 0.5: they are decorrelated altogether. From 0.35 to 0.5 nothing changed on images
# that were held out of the training sets; 0.25 was worse.
POWER = 0.4
_FLOOR = 0.01  # added to the variances of standardised channels' principal directions
_LEAST = 0.003  # of a direction's or a frequency's share that two views have in common: no feature is lost altogether


class Whitening(NamedTuple):
    """``matrix · (maps − mean)``, everywhere alike. ``gain``: of spatial frequencies, which replace positions."""

    mean: Tensor
    matrix: Tensor
    gain: Tensor | None = None

    def __call__(self, maps: Tensor) -> Tensor:
        centred = maps - self.mean.to(maps).reshape(1, -1, 1, 1)
        if self.gain is not None:
            centred = frequencies(centred) * self.gain.to(maps)
        return torch.einsum("ij,njhw->nihw", self.matrix.to(maps), centred)


def whitening(maps: Tensor) -> Whitening:
    """Fit the whitening of maps N×channels×H×W of made-up images; their positions count as samples."""
    samples = maps.permute(0, 2, 3, 1).flatten(0, 2).double()
    mean, std = samples.mean(dim=0), samples.std(dim=0).clamp_min(1e-6)
    standardised = (samples - mean) / std
    values, vectors = torch.linalg.eigh(standardised.T @ standardised / len(standardised))
    matrix = (vectors * (values.clamp_min(0) + _FLOOR) ** -POWER) @ vectors.T / std
    return Whitening(mean.float(), matrix.float())


def steady_whitening(one: Tensor, other: Tensor) -> Whitening:
    """Fit a whitening on two views of the same made-up images: what both views share weighs most.

    A direction in which two views of one image agree tells of the image, one in which they do not tells of the view.
    White directions are scaled by the root of their correlation between views, and so are spatial frequencies. Both are
    functions of symmetric matrices, so another machine's eigenvectors give the same features.
    """
    both = torch.cat([one, other]).transpose(0, 1).flatten(1)
    mean, std = both.mean(dim=1), both.std(dim=1).clamp_min(1e-6)
    centre, size = (part.reshape(1, -1, 1, 1) for part in (mean, std))
    views = [frequencies((maps - centre) / size).permute(2, 3, 0, 1) for maps in (one, other)]
    a, b = (view.flatten(0, 2) for view in views)
    values, vectors = torch.linalg.eigh((a.T @ a + b.T @ b).double() / (2 * len(a)))
    white = (vectors * (values.clamp_min(0) + _FLOOR) ** -0.5) @ vectors.T
    common = white @ (a.T @ b).double() @ white / len(a)
    values, vectors = torch.linalg.eigh((common + common.T) / 2)
    matrix = (vectors * values.clamp_min(_LEAST) ** 0.5) @ vectors.T @ white / std
    a, b = (view @ white.float() for view in views)
    shared = (a * b).sum(dim=(2, 3)) / ((a * a + b * b) / 2).sum(dim=(2, 3))
    gain = (shared / shared.max()).clamp_min(_LEAST) ** 0.5
    return Whitening(mean.float(), matrix.float(), gain.float())


def frequencies(maps: Tensor) -> Tensor:
    """Return maps N×C×H×W as sums of cosines along height and width: an orthogonal change of coordinates."""
    down, across = (_cosines(side).to(maps) for side in maps.shape[2:])
    return down @ maps @ across.T


@lru_cache(maxsize=8)
def _cosines(side: int) -> Tensor:
    place = torch.arange(side, dtype=torch.float64)
    rows = torch.cos(torch.pi * place[:, None] * (place + 0.5) / side)
    return rows / rows.norm(dim=1, keepdim=True)


def remembered_whitening(
    name: str, channels: int, fitted: Callable[[], Whitening], gains: Sequence[int] = ()
) -> Whitening:
    """Return the whitening of that name from this machine's cache, or fit it, which takes seconds.

    What is kept follows from public constants. A forged file costs accuracy only: whatever the matrix, a row is a
    function of one image, and a head clips by the lengths that rows really have.
    """
    folder = cache_folder("features")
    path = None if folder is None else folder / f"{name}.npz"
    if path is not None and (kept := _kept(path, channels, tuple(gains))) is not None:
        return kept
    white = fitted()
    if path is not None:
        with contextlib.suppress(OSError), replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **{key: part.numpy() for key, part in white._asdict().items() if part is not None})
    return white


def _kept(path: Path, channels: int, gains: tuple[int, ...]) -> Whitening | None:
    """Read a kept whitening; None for a file that is not one of these shapes, which is then made again."""
    shapes = {"mean": (channels,), "matrix": (channels, channels), **({"gain": gains} if gains else {})}
    try:
        with np.load(path, allow_pickle=False) as stored:
            parts = {key: stored[key] for key in shapes}
        right = all(
            part.dtype == np.float32 and part.shape == shapes[key] and np.isfinite(part).all()
            for key, part in parts.items()
        )
    except Exception:  # numpy raises many kinds for what it did not write
        return None
    return Whitening(**{key: torch.from_numpy(part) for key, part in parts.items()}) if right else None
