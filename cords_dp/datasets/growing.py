"""A large array on disk that is written from its first row on; after a kill the next writer goes on where it ended."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cords_dp.files import sync, write_durably

_SECONDS = 5.0  # between notes of how far the file has grown: what a kill can cost


class GrowingFile:
    """``features``: the array, in half precision. ``rows``: how many of its rows are on the device for sure."""

    def __init__(self, path: Path, shape: tuple[int, ...]):
        self._path = path
        self._part, self._count = path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.rows")
        self.rows, self.features = self._found(shape)
        self._noted = time.monotonic()

    def _found(self, shape: tuple[int, ...]) -> tuple[int, np.memmap]:
        try:
            rows = int(self._count.read_text())
            features = np.lib.format.open_memmap(self._part, mode="r+")
            if features.shape == shape and features.dtype == np.float16 and 0 <= rows <= shape[0]:
                return rows, features
        except (OSError, ValueError, EOFError):
            pass  # nothing there, or not whole: begin again
        self._count.unlink(missing_ok=True)
        self._part.unlink(missing_ok=True)
        os.close(os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        return 0, np.lib.format.open_memmap(self._part, mode="w+", dtype=np.float16, shape=shape)

    def note(self, rows: int) -> None:
        """Say that so many rows are written. The device is waited for now and then only."""
        if time.monotonic() - self._noted > _SECONDS:
            self.features.flush()  # rows first: the count must never be ahead of them
            write_durably(self._count, str(rows), mode=0o600)
            self._noted = time.monotonic()

    def finish(self) -> None:
        """All rows are written: the file takes its name."""
        self.features.flush()
        sync(self._part)
        os.replace(self._part, self._path)
        self._count.unlink(missing_ok=True)
        sync(self._path.parent)


@contextlib.contextmanager
def growing(path: Path, shape: tuple[int, ...]) -> Iterator[GrowingFile]:
    """A file that gets the name ``path`` when the block ends, and is kept unfinished if it fails."""
    file = GrowingFile(path, shape)
    yield file
    file.finish()
