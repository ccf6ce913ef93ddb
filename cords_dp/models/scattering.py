"""Wavelet scattering: features that need no training, hence no privacy.

A scattering transform (Mallat) is a fixed function of one image. A small classifier on top of it learns far
more from a small privacy budget than a network that must learn its own features (Tramèr & Boneh, 2021). The
features are normalised with statistics of dead leaves and per image, so no statistic of the data is used.

Features are computed once and kept on disk (`datasets.features`). A model here takes images or ready features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from cords_dp.models.dead_leaves import dead_leaves
from cords_dp.models.heads import LinearHead
from cords_dp.models.whitening import POWER, Whitening, remembered_whitening

_BATCH = 256
_PRIOR_IMAGES = 500


class Scattering(nn.Module):
    """Images N×C×H×W → normalised scattering maps N×(81·C)×H/4×W/4 (J = 2, eight angles).

    They are whitened with the statistics of dead leaves, not of any data; then each image is scaled to mean square 1,
    by itself.
    """

    name = "scattering"
    uses_one_core = True

    def __init__(self, input_shape: Sequence[int]):
        super().__init__()
        self.input_shape = tuple(input_shape)
        self.settings = ("J=2, dead leaves", POWER, self.input_shape)  # names the features on disk
        channels, height, width = self.input_shape
        self.feature_shape = (81 * channels, height // 4, width // 4)

    def prepare_for_many(self, progress: bool) -> None:
        """Compile the transform, which pays from a few thousand images on."""
        text = "{desc}, once on this machine … {elapsed}"
        with tqdm(desc="compiling the wavelets", bar_format=text, disable=not progress, leave=False):
            compile_scattering(*self.input_shape[1:])
            _prior(self.input_shape)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        maps = scattering_maps(images.float(), self.input_shape)  # kymatio's filters are float32
        maps = _prior(self.input_shape)(maps)
        return (maps / maps.pow(2).mean(dim=(1, 2, 3), keepdim=True).sqrt().clamp_min(1e-6)).to(images)


def scattering_maps(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Scattering coefficients as they are, N×(81·C)×H/4×W/4."""
    channels, height, width = shape
    on_cpu = images.device.type == "cpu"
    transform = (_COMPILED.get((height, width)) if on_cpu else None) or _kymatio(height, width, str(images.device))
    return transform(images.contiguous()).reshape(len(images), 81 * channels, height // 4, width // 4)


_COMPILED: dict[tuple[int, int], Callable[[Tensor], Tensor]] = {}


def compile_scattering(height: int, width: int) -> None:
    """Use compiled code for images of this size from now on. The first time on a machine it takes half a minute."""
    from cords_dp.models.fast_scattering import fast_scattering

    if (height, width) not in _COMPILED and (function := fast_scattering(height, width)) is not None:
        function(torch.zeros(1, 1, height, width))
        _COMPILED[height, width] = function


@lru_cache(maxsize=4)
def _kymatio(height: int, width: int, device: str) -> Any:
    from kymatio.torch import Scattering2D

    return Scattering2D(J=2, shape=(height, width)).to(device)


@lru_cache(maxsize=4)
def _prior(shape: tuple[int, ...]) -> Whitening:
    def maps() -> Tensor:
        images = dead_leaves(_PRIOR_IMAGES, shape, seed=0)
        return torch.cat([scattering_maps(part, shape) for part in images.split(_BATCH)])

    return remembered_whitening(f"scattering-{POWER}-{'x'.join(map(str, shape))}", 81 * shape[0], maps)


class ScatterLinear(LinearHead):
    """``LinearHead`` with ``features="scattering"``, under its old name."""

    def __init__(self, num_classes: int, input_shape: Sequence[int]):
        super().__init__(num_classes, input_shape, Scattering(input_shape))


class ScatterCNN(nn.Module):
    """Two tanh convolutions and a linear layer on the scattering maps."""

    def __init__(self, num_classes: int, input_shape: Sequence[int], width: int = 64):
        super().__init__()
        self.input_transform = Scattering(input_shape)
        channels = self.input_transform.feature_shape[0]
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        height, breadth = (size // 2 for size in self.input_transform.feature_shape[1:])
        self.features = width * height * breadth
        self.linear = nn.Linear(self.features, num_classes)

    def forward(self, x: Tensor, last: bool = False, freeze: bool = False) -> Any:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not freeze):
            if tuple(x.shape[1:]) == self.input_transform.input_shape:
                x = self.input_transform(x)
            x = torch.tanh(self.conv1(x))
            x = F.max_pool2d(torch.tanh(self.conv2(x)), 2)
            embedding = x.flatten(1)
        out = self.linear(embedding)
        return (out, embedding) if last else out

    def get_embedding_dim(self) -> int:
        return self.features
