"""Arrays in ``.npz`` and ``.npy`` files, mapped into memory and read a few rows at a time.

What is read before training is public: the names of the arrays, their shapes and types. Objects, whose unpickling could
run code, are refused.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cords_dp.errors import DatasetUnavailableError


def open_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` file, of a folder of ``.npy`` files, or of one such file, by name."""
    if path.is_dir():
        arrays = {file.stem: _mapped(file) for file in sorted(path.glob("*.npy"))}
    elif path.suffix == ".npz" and path.is_file():
        arrays = _members(path)
    elif path.suffix == ".npy" and path.is_file():
        arrays = {path.stem: _mapped(path)}
    else:
        raise DatasetUnavailableError(f"{path.name} is no .npz file, .npy file or folder of .npy files")
    return arrays


def _mapped(path: Path) -> np.ndarray:
    try:
        return _plain(np.load(path, mmap_mode="c", allow_pickle=False))
    except Exception:  # numpy and pickle raise many kinds, some of which show what they read
        pass
    raise DatasetUnavailableError(f"{path.name} is damaged, or holds objects instead of numbers or short texts")


def _members(path: Path) -> dict[str, np.ndarray]:
    """Members as ``np.savez`` writes them are mapped; compressed ones are read into memory."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            stored = {info.filename[:-4]: _at(path, info) for info in infos}
        with np.load(path, allow_pickle=False) as loaded:
            return {name: _plain(loaded[name] if array is None else array) for name, array in stored.items()}
    except Exception:
        pass
    raise DatasetUnavailableError(f"{path.name} is damaged, or holds objects instead of numbers or short texts")


def _at(path: Path, info: zipfile.ZipInfo) -> np.ndarray | None:
    """An uncompressed member, mapped where it lies in the archive."""
    if info.compress_type != zipfile.ZIP_STORED:
        return None
    with open(path, "rb") as file:
        file.seek(info.header_offset + 26)  # the lengths of the name and of the extra field in the member's own header
        name, extra = np.frombuffer(file.read(4), dtype="<u2")
        file.seek(info.header_offset + 30 + int(name) + int(extra))
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = header(file)
        if fortran or dtype.hasobject or 0 in shape or not shape:
            return None
        return np.memmap(path, dtype=dtype, mode="c", offset=file.tell(), shape=shape)


def _plain(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "iufbU":
        raise ValueError
    return array


def pick(arrays: Mapping[str, np.ndarray], names: tuple[str, ...]) -> np.ndarray | None:
    """The first of these that is there."""
    return next((arrays[name] for name in names if name in arrays), None)
