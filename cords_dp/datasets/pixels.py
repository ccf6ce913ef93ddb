"""The constants by which pixels are normalised."""

from __future__ import annotations

from typing import NamedTuple


class PixelConstants(NamedTuple):
    """Public constants by which pixels are normalised, channel by channel: (pixel / 255 − mean) / std."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
