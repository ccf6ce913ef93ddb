"""Dead leaves: random images with the statistics of natural ones, made of nothing but a public seed.

Leaves of random size, shape, colour and shade fall on each other. Sizes follow a power law
(a density that falls as r⁻³), so edges and flat places occur at every scale as they do in photographs (Lee, Mumford &
Huang, 2001). What is fitted on such images - filters, means, covariances - is fitted on no data, hence free of privacy
cost, and suits photographs far better than noise does.

Everyone gets the same images: the random numbers are numpy's PCG64 as raw uniform numbers, the arithmetic is float64
without shortcuts, and the result is rounded to multiples of 2⁻¹⁰, which hides the last digits of other machines' sines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor
from torch.nn import functional as F

_LEAVES = 120  # for each image; the first one is the ground
_FINER = 2  # leaves fall on a finer grid, whose pixels are averaged: edges get soft as in a camera
_RADII = (1.0, 0.625)  # the smallest in pixels, the largest as a part of the image's side
_LIGHT, _COLOUR, _SHADE, _TEXTURE = 0.9, 0.35, 0.25, 0.15
_STEP = 2.0**-10
_NUMBERS = 8  # random ones for each leaf, besides its colours
_GROUP = 250


def dead_leaves(count: int, shape: Sequence[int], *, seed: int) -> Tensor:
    """Draw ``count`` images of ``shape`` (channels, height, width) in float32, each with standard deviation 1."""
    channels, height, width = shape
    random = np.random.Generator(np.random.PCG64(seed))
    images = np.empty((count, channels, height, width))
    for start in range(0, count, _GROUP):
        some = images[start : start + _GROUP]
        draws = random.random((len(some), _LEAVES, _NUMBERS + channels))
        _compiled_fall()(_leaves(draws[..., :_NUMBERS], height, width), _colours(draws[..., _NUMBERS - 1 :]), some)
        some += _texture(random, some.shape)
    images /= images.std(axis=(1, 2, 3), keepdims=True)
    return torch.from_numpy((np.round(images / _STEP) * _STEP).astype(np.float32))


def other_views(images: Tensor, *, seed: int) -> Tensor:
    """The images as seen again: moved, nearer, turned a little, in other light, each in its own way."""
    count, channels = images.shape[:2]
    draws = np.random.Generator(np.random.PCG64(seed)).random((count, 7 + 2 * channels))
    uniform, normal = torch.from_numpy(2 * draws[:, :5] - 1).float(), torch.from_numpy(ndtri(draws[:, 5:])).float()
    nearness, turn = 0.85 + 0.2 * uniform[:, 0], 0.2 * uniform[:, 1]
    cosine, sine = nearness * turn.cos(), nearness * turn.sin()
    places = torch.stack([cosine, -sine, 0.25 * uniform[:, 2], sine, cosine, 0.25 * uniform[:, 3]], dim=1)
    grid = F.affine_grid(places.view(-1, 2, 3), list(images.shape), align_corners=False)
    seen = F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
    light, gain, shift, *_ = normal[:, :, None, None].split([2, channels, channels], dim=1)
    grey = seen.mean(dim=1, keepdim=True)
    seen = grey + (seen - grey) * (1 + 0.6 * uniform[:, 4, None, None, None])
    return (seen * (0.15 * gain).exp() + 0.15 * shift) * (0.2 * light[:, :1]).exp() + 0.3 * light[:, 1:]


def _leaves(draws: np.ndarray, height: int, width: int) -> np.ndarray:
    """Draw place, half axes, direction, kind and shade of each leaf, on the finer grid."""
    smallest, largest = _FINER * _RADII[0], _FINER * _RADII[1] * min(height, width)
    size, down, across, angle, longer, kind, shade, _ = np.moveaxis(draws, -1, 0)
    radius = (smallest**-2 + size * (largest**-2 - smallest**-2)) ** -0.5
    stretch = np.exp(0.25 * ndtri(longer))
    margin = 0.15
    place = [(_FINER * side * ((1 + 2 * margin) * u - margin)) for side, u in ((height, down), (width, across))]
    return np.stack(
        [*place, radius * stretch, radius / stretch, np.cos(np.pi * angle), np.sin(np.pi * angle), kind,
         _SHADE * ndtri(shade)], axis=-1,
    )  # fmt: skip


def _colours(draws: np.ndarray) -> np.ndarray:
    """Draw colours: mostly light and dark, a little colour, as in photographs."""
    normal = ndtri(draws)
    return _LIGHT * normal[..., :1] + _COLOUR * normal[..., 1:]


@lru_cache(maxsize=1)
def _compiled_fall() -> Callable[..., None]:
    try:
        from numba import njit  # here: only images need a compiler
    except ImportError:
        return _fall  # the same numbers, in minutes
    return njit(nogil=True)(_fall)  # no fastmath: the same numbers everywhere


def _fall(leaves: np.ndarray, colours: np.ndarray, images: np.ndarray) -> None:
    count, channels, height, width = images.shape
    fine = np.empty((channels, _FINER * height, _FINER * width))
    for image in range(count):
        for channel in range(channels):
            fine[channel] = colours[image, 0, channel]
        for leaf in range(1, leaves.shape[1]):
            y, x, long, short, cosine, sine, kind, shade = leaves[image, leaf]
            reach = 1.5 * max(long, short)
            for row in range(max(0, int(y - reach)), min(fine.shape[1], int(y + reach) + 1)):
                for column in range(max(0, int(x - reach)), min(fine.shape[2], int(x + reach) + 1)):
                    dy, dx = row + 0.5 - y, column + 0.5 - x
                    p, q = (cosine * dx + sine * dy) / long, (cosine * dy - sine * dx) / short
                    inside = p * p + q * q < 1 if kind < 0.5 else max(abs(p), abs(q)) < 0.9
                    if inside:
                        for channel in range(channels):
                            fine[channel, row, column] = colours[image, leaf, channel] + shade * p
        for channel in range(channels):
            for row in range(height):
                for column in range(width):
                    total = 0.0
                    for dy_ in range(_FINER):
                        for dx_ in range(_FINER):
                            total += fine[channel, _FINER * row + dy_, _FINER * column + dx_]
                    images[image, channel, row, column] = total / _FINER**2


def _texture(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Noise whose amplitude falls as 1/f, of another strength in each image."""
    count, _, height, width = shape
    frequency = np.sqrt(np.fft.fftfreq(height)[:, None] ** 2 + np.fft.fftfreq(width) ** 2)
    frequency[0, 0] = 1 / max(height, width)
    noise = np.fft.ifft2(np.fft.fft2(ndtri(random.random(shape))) / frequency).real
    strength = 2 * _TEXTURE * random.random((count, 1, 1, 1))
    return strength * noise / noise.std(axis=(1, 2, 3), keepdims=True)
