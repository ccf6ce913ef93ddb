"""Filters for small patches of images, learnt from dead leaves, that is from nothing.

A patch is scaled to one contrast and whitened; k-means finds the patches that occur most (Coates & Ng, 2011). All
statistics are those of `dead_leaves`. The result is shipped (``leaf_filters.npz``), so that everyone has the same;
``python -m cords_dp.models.leaf_filters`` builds it again, bit by bit: k-means runs on whole numbers that float32 holds
exactly, so no library and no processor adds them up differently, and what is not whole is rounded in the end.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cords_dp.models.dead_leaves import dead_leaves
from cords_dp.progress import shown_bar

SIDE = 6  # of a patch
COUNT = 800
CHANNELS = (1, 3)
_FILE = Path(__file__).with_name("leaf_filters.npz")
_IMAGES, _PATCHES, _ROUNDS, _SEED = 4000, 200_000, 8, 1
_CONTRAST = 0.1  # variance below which a patch is rather noise than structure; images have variance 1
_WHITENING = 0.1  # added to the variances of whitened directions
_LENGTH = 2048  # of patches and filters in k-means: products stay below 2²⁴, which float32 counts exactly


class Filters(NamedTuple):
    """``weight``: pixels of a patch × filters; ``offset``: of each filter. A response varies by about 1 on leaves."""

    weight: Tensor
    offset: Tensor


@lru_cache(maxsize=2)
def leaf_filters(channels: int) -> Filters:
    """Return the shipped filters for grey (1) or colour (3) images."""
    with np.load(_FILE, allow_pickle=False) as stored:
        weight, offset = (torch.from_numpy(stored[f"{part}_{channels}"]).float() for part in ("weight", "offset"))
    return Filters(weight, offset)


def contrast_patches(images: Tensor) -> Tensor:
    """Cut all patches of images, N × positions × pixels: minus their mean, scaled to one contrast, each by itself."""
    patches = F.unfold(images, SIDE).transpose(1, 2)
    patches = patches - patches.mean(dim=-1, keepdim=True)
    return patches / (patches.var(dim=-1, keepdim=True) + _CONTRAST).sqrt()


def build_filters(channels: int) -> tuple[np.ndarray, np.ndarray]:
    """Build weight and offset in half precision, from dead leaves."""
    random = np.random.Generator(np.random.PCG64(_SEED))
    patches = _sample(random, channels)
    mean = patches.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(patches, rowvar=False))
    whitening = vectors / np.sqrt(values + _WHITENING) @ vectors.T
    white = (patches - mean) @ whitening
    filters = _to_length(_k_means(_to_length(white), random).astype(np.float64), 1.0)
    weight = whitening @ filters.T
    weight /= (white[:10_000] @ filters.T).std()
    return weight.astype(np.float16), (-mean @ weight).astype(np.float16)


def _sample(random: np.random.Generator, channels: int) -> np.ndarray:
    """Cut patches at random places of dead leaves of half the size that images mostly have."""
    images = F.avg_pool2d(dead_leaves(_IMAGES, (channels, 32, 32), seed=_SEED).double(), 2)
    per_image = _PATCHES // _IMAGES
    places = random.random((_IMAGES, (16 - SIDE + 1) ** 2)).argsort(axis=1)[:, :per_image]
    patches = contrast_patches(images)
    return np.take_along_axis(patches.numpy(), places[:, :, None], axis=1).reshape(_PATCHES, -1)


def _k_means(patches: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Run spherical k-means on whole numbers: nothing depends on the order in which a library adds."""
    data = torch.from_numpy(patches)
    filters = patches[random.random(len(patches)).argsort()[:COUNT]]
    for _ in shown_bar(range(_ROUNDS), desc="k-means", unit="round", leave=False):
        transposed = torch.from_numpy(filters.T.copy())
        nearest = np.concatenate([(part @ transposed).numpy().argmax(axis=1) for part in data.split(20_000)])
        sums = np.zeros(filters.shape)  # whole numbers below 2⁵³
        np.add.at(sums, nearest, patches)
        filters = np.where(np.bincount(nearest, minlength=COUNT)[:, None] > 0, _to_length(sums), filters)
    return filters


def _to_length(rows: np.ndarray, length: float = _LENGTH) -> np.ndarray:
    """Bring rows to one length; rounded to whole numbers unless the length is 1."""
    scaled = rows * (length / np.maximum(np.sqrt((rows * rows).sum(axis=1, keepdims=True)), 1e-12))
    return scaled if length == 1.0 else np.round(scaled).astype(np.float32)


def _build_all() -> dict[str, np.ndarray]:
    parts = {}
    for channels in CHANNELS:
        parts[f"weight_{channels}"], parts[f"offset_{channels}"] = build_filters(channels)
    return parts


def main() -> int:
    """Build the filters again and compare them with the shipped ones; ``--write`` puts them in their place."""
    built = _build_all()
    if "--write" in sys.argv[1:]:
        np.savez_compressed(_FILE, **built)  # type: ignore[arg-type]
        print(f"written: {_FILE.name}")
        return 0
    with np.load(_FILE, allow_pickle=False) as stored:
        same = all(np.array_equal(stored[key], value) for key, value in built.items())
    print("the same, bit by bit" if same else "DIFFERENT from the shipped filters")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
