"""Wavelet scattering: features that need no training, hence no privacy.

A scattering transform (Mallat) is a fixed function of one image. A small classifier on top of it learns far
more from a small privacy budget than a network that must learn its own features (Tramèr & Boneh, 2021). The
features are normalised with statistics of dead leaves and per image, so no statistic of the data is used.

Features are computed once and kept on disk (`data.feature_cache`). A model here takes images or ready features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cords_dp.models.dead_leaves import dead_leaves
from cords_dp.models.heads import LinearHead
from cords_dp.models.whitening import POWER, Whitening, remembered_whitening, whitening
from cords_dp.progress import shown_bar

ANGLES = 8
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
        with shown_bar(desc="compiling the wavelets", bar_format=text, shown=progress, leave=False):
            compile_scattering(*self.input_shape[1:])
            _prior(self.input_shape)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        maps = scattering_maps(images.float(), self.input_shape)  # kymatio's filters are float32
        maps = _prior(self.input_shape)(maps)
        return (maps / maps.pow(2).mean(dim=(1, 2, 3), keepdim=True).sqrt().clamp_min(1e-6)).to(images)


def scattering_maps(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return scattering coefficients as they are, N×(81·C)×H/4×W/4."""
    channels, height, width = shape
    on_cpu = images.device.type == "cpu"
    transform = (_COMPILED.get((height, width)) if on_cpu else None) or _plain(height, width, str(images.device))
    return transform(images).reshape(len(images), 81 * channels, height // 4, width // 4)


_COMPILED: dict[tuple[int, int], Callable[[Tensor], Tensor]] = {}


def compile_scattering(height: int, width: int) -> None:
    """Use compiled code for images of this size from now on. The first time on a machine it takes half a minute."""
    try:
        from cords_dp.models.fast_scattering import fast_scattering
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        return  # plain torch serves

    if (height, width) not in _COMPILED and (function := fast_scattering(height, width)) is not None:
        function(torch.zeros(1, 1, height, width))
        _COMPILED[height, width] = function


# --- the transform, in plain torch ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wavelets:
    """kymatio's filters for J = 2 at the padded size, scaled for inverse transforms that are not.

    fine: of the first scale, height × width × angles. coarse: of the second, with the four frequencies that coincide
    when every second value is kept side by side: height/2 × width/2 × 4 × angles. down, across: smoothing and taking
    every fourth (second) value without the border, at full and at half size: the Gaussian that smooths is separable.
    """

    size: tuple[int, int]
    padded: tuple[int, int]
    fine: np.ndarray
    coarse: np.ndarray
    down: tuple[np.ndarray, np.ndarray]
    across: tuple[np.ndarray, np.ndarray]

    @property
    def border(self) -> tuple[int, int, int, int]:
        (height, width), (tall, wide) = self.size, self.padded
        top, side = (tall - height) // 2, (wide - width) // 2
        return side, wide - width - side, top, tall - height - top


def plain_scattering(height: int, width: int, device: str) -> Callable[[Tensor], Tensor]:
    """Return a function of images N×C×H×W to coefficients N×C×81×H/4×W/4: modulus of wavelets, smoothed, twice."""
    filters = wavelets(height, width)
    tall, wide = filters.padded
    fine = torch.from_numpy(filters.fine).to(device).permute(2, 0, 1)
    coarse = torch.from_numpy(filters.coarse).to(device).permute(2, 3, 0, 1)
    smoothing = zip(filters.down, filters.across, strict=True)
    full, half = ([torch.from_numpy(matrix).to(device) for matrix in pair] for pair in smoothing)

    def modulus(spectrum: Tensor) -> Tensor:
        return torch.fft.ifft2(spectrum, norm="forward").abs()

    def at_half_size(spectrum: Tensor) -> Tensor:
        """Filter at the second scale; add up frequencies that coincide at half the size."""
        quarters = spectrum.unflatten(-2, (2, tall // 2)).unflatten(-1, (2, wide // 2)).unsqueeze(-5)
        total = quarters[..., 0, :, 0, :] * coarse[0]
        for number in range(1, 4):
            total += quarters[..., number // 2, :, number % 2, :] * coarse[number]
        return total

    def smooth(maps: Tensor, matrices: list[Tensor]) -> Tensor:
        return matrices[0] @ maps @ matrices[1].T

    def scattering(images: Tensor) -> Tensor:
        maps = F.pad(images, filters.border, mode="reflect").flatten(0, 1)
        spectrum = torch.fft.fft2(maps)
        first = modulus(spectrum[:, None] * fine)
        second = modulus(at_half_size(torch.fft.fft2(first))).flatten(1, 2)
        parts = [smooth(maps[:, None], full), smooth(first, full), smooth(modulus(at_half_size(spectrum)), half)]
        maps = torch.cat([*parts, smooth(second, half)], dim=1)
        return maps.unflatten(0, images.shape[:2])

    return scattering


_plain = lru_cache(maxsize=4)(plain_scattering)


def padded_size(height: int, width: int) -> tuple[int, int]:
    from kymatio.scattering2d.utils import compute_padding

    return compute_padding(height, width, 2)


def wavelets(height: int, width: int) -> Wavelets:
    """Return kymatio's filters for images of this size."""
    from kymatio.scattering2d.filter_bank import filter_bank

    tall, wide = padded_size(height, width)
    bank = filter_bank(tall, wide, 2, ANGLES)
    first, second = (np.stack([p["levels"][0] for p in bank["psi"] if p["j"] == j], axis=-1) for j in (0, 1))
    halves = second.reshape(2, tall // 2, 2, wide // 2, ANGLES).transpose(1, 3, 0, 2, 4)
    coarse = halves.reshape(tall // 2, wide // 2, 4, ANGLES) / (tall * wide)  # the mean of four, and 1/(size/4)
    fine = first / (tall * wide)
    down, across = zip(*(_separated(phi, height // 4, width // 4) for phi in bank["phi"]["levels"]), strict=True)
    single = np.float32
    return Wavelets((height, width), (tall, wide), fine.astype(single), coarse.astype(single), down, across)


def _separated(phi: np.ndarray, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a low-pass filter, given by its transform, as a matrix for rows and one for columns."""
    left, sizes, right = np.linalg.svd(phi)
    if sizes[1] > 1e-7 * sizes[0]:
        raise ValueError("kymatio's low-pass filter is not separable, as a Gaussian is")
    sign = np.sign(left[0, 0])

    def matrix(spectrum: np.ndarray, kept: int) -> np.ndarray:
        kernel = np.fft.ifft(sign * spectrum * math.sqrt(sizes[0])).real
        every = len(kernel) // (kept + 2)  # a border of one value on each side is left out
        offsets = every * (np.arange(kept)[:, None] + 1) - np.arange(len(kernel))[None, :]
        return kernel[offsets % len(kernel)].astype(np.float32)

    return matrix(left[:, 0], rows), matrix(right[0], columns)


@lru_cache(maxsize=4)
def _prior(shape: tuple[int, ...]) -> Whitening:
    def maps() -> Tensor:
        images = dead_leaves(_PRIOR_IMAGES, shape, seed=0)
        return torch.cat([scattering_maps(part, shape) for part in images.split(_BATCH)])

    name = f"scattering-{POWER}-{'x'.join(map(str, shape))}"
    return remembered_whitening(name, 81 * shape[0], lambda: whitening(maps()))


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
