"""Images: the constants that normalise pixels, and files that are decoded one by one.

One image file → pixels of a public size, by itself, whatever is in the file.

A file that cannot be decoded gives None and no message: its record contributes nothing, and what a decoder says about
it stays here. Formats are those that Pillow decodes without libraries that write to the terminal.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np


class PixelConstants(NamedTuple):
    """Public constants by which pixels are normalised, channel by channel: (pixel / 255 − mean) / std."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm"})
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "PPM")


def decode_image(file: Path | bytes, size: int, channels: int) -> np.ndarray | None:
    """C×size×size pixels of 0…255: turned as the camera says, cut to a square around the middle, resized."""
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = file if isinstance(file, bytes) else file.read_bytes()
            with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
                mode = "RGB" if channels == 3 else "L"
                image.draft(mode, (2 * size, 2 * size))  # a large JPEG is decoded at a fraction of its size
                upright = ImageOps.exif_transpose(image).convert(mode)
                square = ImageOps.fit(upright, (size, size), method=Image.Resampling.BILINEAR)
        return np.asarray(square, dtype=np.uint8).reshape(size, size, channels).transpose(2, 0, 1)
    except Exception:  # a decoder raises anything, and its words could tell what is in the file
        return None


def image_files(folder: Path) -> list[Path]:
    """Every image below a folder, by name."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
