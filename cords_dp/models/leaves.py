"""Features of images from random processes alone: wavelet scattering beside filters learnt from dead leaves.

Scattering sees how much of each orientation and scale there is; filters see which small patches occur, at half the
resolution, in each quarter of the image. On held-out images of CIFAR-10's training set a private linear head reads far
more from both than from either (docs/results-earlier.md).

Formal guarantee: row i is a function of image i and of public constants (wavelets, filters and whitening matrices that
come from a seed), so what is proved for a head on rows holds for images. Every operation acts on each image by itself;
an image that is not finite becomes NaN and contributes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cords_dp.models.dead_leaves import dead_leaves, other_views
from cords_dp.models.features import unit_mean_square
from cords_dp.models.leaf_filters import CHANNELS, COUNT, SIDE, contrast_patches, leaf_filters
from cords_dp.models.scattering import compile_scattering, scattering_maps
from cords_dp.models.whitening import POWER, Whitening, remembered_whitening, steady_whitening, whitening
from cords_dp.progress import shown_bar

_VERSION = 1  # of what is computed here: part of the names of files that hold it
_SCALE = 16  # pixels that an image's shorter side is brought to, about, before patches are looked at
_GRID = 2  # cells a side over which responses are averaged
_THRESHOLD = 0.25  # responses below it, either way, count as none
_AT_A_TIME = 4  # images whose responses the nearest caches hold
_SEED = 2
_LEAVES = {"scattering": 500, "filters": 2000}  # images that whitening is fitted on: 1,600 channels need many
_PAIRS = 2  # times as many are seen twice, where what two views share is what counts


class Leaves:
    """Images N×C×H×W → rows. "mirrored": of an image and its mirror image together, so that both give the same row.

    Half of the features then say the same as the other half and are left out: noise is spent on what matters. "steady":
    besides, wavelets' answers are compressed by a fourth root, and what an image shares with another view of it (moved,
    nearer, in other light) weighs more than what it does not: `steady_whitening`.
    """

    name = "leaves"
    uses_one_core = True
    batch = 64

    def __init__(self, input_shape: Sequence[int], kind: str = "plain"):
        self.input_shape, self.kind = tuple(input_shape), kind
        mirrored = kind != "plain"
        self.settings = (_VERSION, POWER, kind if kind == "steady" else mirrored, self.input_shape)
        channels, height, width = self.input_shape
        columns = width // 4
        self._sizes = (
            81 * channels * (height // 4) * (-(-columns // 2) if mirrored else columns),
            2 * COUNT * _GRID**2,
        )
        self.feature_shape = (sum(self._sizes),)

    def __deepcopy__(self, _: dict[int, Any]) -> Leaves:
        return self  # it never changes

    def prepare_for_many(self, progress: bool) -> None:
        """Compile the wavelets, which pays from a few thousand images on."""
        text = "{desc}, once on this machine … {elapsed}"
        with shown_bar(desc="compiling the wavelets", bar_format=text, shown=progress, leave=False):
            compile_scattering(*self.input_shape[1:])
            _whitenings(self.input_shape, self.kind)

    @torch.no_grad()
    def __call__(self, records: Tensor) -> Tensor:
        numbers = records.float()
        parts = []
        for family, white in zip(_FAMILIES.values(), _whitenings(self.input_shape, self.kind), strict=True):
            rows = unit_mean_square(white(family(numbers, self.kind)))
            # every family has the same share of a row's length
            parts.append(rows * (self.feature_shape[0] / len(_FAMILIES) / rows.shape[1]) ** 0.5)
        finite = torch.isfinite(numbers).flatten(1).all(dim=1, keepdim=True)
        return torch.where(finite, torch.cat(parts, dim=1), torch.nan).to(records)


# --- the two families ------------------------------------------------------------------------------------------------


def _scattering(images: Tensor, kind: str) -> Tensor:
    def maps(x: Tensor) -> Tensor:
        return scattering_maps(x, tuple(x.shape[1:]))

    both = _with_mirror_image(maps, images, kind)
    if kind == "steady":
        smooth = torch.arange(both.shape[1]) % 81 == 0  # the image itself, which has a sign
        both = torch.where(smooth.reshape(1, -1, 1, 1).to(both.device), both, both.clamp_min(0).sqrt().sqrt())
    return both if kind == "plain" else both[..., : -(-both.shape[-1] // 2)]


def _filter_responses(images: Tensor, kind: str) -> Tensor:
    return _with_mirror_image(_pooled_responses, images, kind)


_FAMILIES: dict[str, Callable[[Tensor, str], Tensor]] = {"scattering": _scattering, "filters": _filter_responses}


def _with_mirror_image(maps: Callable[[Tensor], Tensor], images: Tensor, kind: str) -> Tensor:
    return maps(images) if kind == "plain" else (maps(images) + maps(images.flip(-1))) / 2


def _pooled_responses(images: Tensor) -> Tensor:
    """Return how strongly each filter answers, either way, on average over each cell: N×(2·filters)×grid×grid."""
    small = F.avg_pool2d(images, max(1, round(min(images.shape[2:]) / _SCALE)))
    cells = _cells(small.shape[2] - SIDE + 1, small.shape[3] - SIDE + 1).to(images)
    weight, offset = (part.to(images) for part in leaf_filters(images.shape[1]))
    step = _AT_A_TIME if images.device.type == "cpu" else len(images)
    pooled = []
    for part in small.split(step):
        patches = contrast_patches(part)
        response = torch.addmm(offset, patches.flatten(0, 1), weight).view(*patches.shape[:2], COUNT)
        above = (response - _THRESHOLD).relu_()
        below = response.neg_().sub_(_THRESHOLD).relu_()
        pooled.append(torch.cat([cells @ above, cells @ below], dim=-1))
    return torch.cat(pooled).transpose(1, 2).unflatten(2, (_GRID, _GRID))


@lru_cache(maxsize=8)
def _cells(height: int, width: int) -> Tensor:
    """Return the matrix that averages positions over the cells of the grid."""
    down, across = (torch.arange(side) * _GRID // side for side in (height, width))
    cell = (down[:, None] * _GRID + across).flatten()
    member = F.one_hot(cell, _GRID**2).T.float()
    return member / member.sum(dim=1, keepdim=True)


# --- their whitening -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _whitenings(shape: tuple[int, ...], kind: str) -> tuple[Whitening, ...]:
    return tuple(_whitening(name, shape, kind) for name in _FAMILIES)


def _whitening(family: str, shape: tuple[int, ...], kind: str) -> Whitening:
    def maps(images: Tensor) -> Tensor:
        return torch.cat([_FAMILIES[family](part, kind) for part in images.split(_AT_A_TIME * 16)])

    def fitted() -> Whitening:
        if kind != "steady":
            return whitening(maps(dead_leaves(_LEAVES[family], shape, seed=_SEED)))
        images = dead_leaves(_PAIRS * _LEAVES[family], shape, seed=_SEED)
        return steady_whitening(*(maps(other_views(images, seed=_SEED + view)) for view in (1, 2)))

    channels, gains = 2 * COUNT, (_GRID, _GRID)
    if family == "scattering":
        channels, gains = 81 * shape[0], (shape[1] // 4, -(-(shape[2] // 4) // 2))
    name = f"leaves-{_VERSION}-{POWER}-{family}-{'x'.join(map(str, shape))}-{kind}"
    return remembered_whitening(name, channels, fitted, gains if kind == "steady" else ())


def readable(shape: Sequence[int]) -> bool:
    """Say whether records of this shape are images that have such features."""
    if len(shape) != 3 or shape[0] not in CHANNELS:
        return False
    side = min(shape[1:])
    return side >= 8 and side // max(1, round(side / _SCALE)) >= SIDE + _GRID - 1
