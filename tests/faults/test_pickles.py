"""Files that someone replaced by a malicious pickle are refused, and nothing in them runs."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from cords_dp.config import load_config
from cords_dp.data.feature_cache import with_features
from cords_dp.data.fetch import image_arrays
from cords_dp.data.record_set import array_set
from cords_dp.errors import ConfigFileError, CordsDPError, DatasetUnavailableError
from cords_dp.training.checkpoint import load_checkpoint


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return (os.mkdir, (str(self.marker),))


@pytest.fixture
def marker(tmp_path):
    yield tmp_path / "ran"
    assert not (tmp_path / "ran").exists(), "the payload ran"


def test_the_payload_would_run(tmp_path):
    pickle.loads(pickle.dumps(Payload(tmp_path / "proof")))
    assert (tmp_path / "proof").exists()


@pytest.mark.parametrize("form", ["pickle", "torch", "zip", "old torch"])
def test_a_checkpoint(tmp_path, marker, form):
    path = tmp_path / "model.pt"
    if form == "pickle":
        path.write_bytes(pickle.dumps(Payload(marker)))
    else:
        torch.save(
            {"epoch": 1, "state_dict": Payload(marker)}, path, _use_new_zipfile_serialization=form != "old torch"
        )
    if form == "zip":
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("model/extra.pkl", pickle.dumps(Payload(marker)))
    with pytest.raises(CordsDPError, match="cannot be read"):
        load_checkpoint(path, "cpu")


@pytest.mark.parametrize("form", ["objects", "pickle", "text", "empty", "missing", "wrong"])
def test_a_cache_of_images(tmp_path, marker, form):
    good = np.zeros((3, 1, 28, 28), dtype=np.uint8)
    labels = np.zeros(3, dtype=np.int64)
    arrays = {"x_train": good, "y_train": labels, "x_test": good, "y_test": labels}
    path = tmp_path / "mnist.npz"
    if form == "objects":
        np.savez(path, **{**arrays, "x_test": np.array([Payload(marker)], dtype=object)}, allow_pickle=True)
    elif form == "missing":
        np.savez(path, x_train=good)
    elif form == "wrong":
        np.savez(path, **{**arrays, "y_train": labels[:2]})
    else:
        path.write_bytes({"pickle": pickle.dumps(Payload(marker)), "text": b"hello", "empty": b""}[form])
    with pytest.raises(DatasetUnavailableError, match="damaged"):
        image_arrays("mnist", tmp_path)


class Doubled:
    name, settings, feature_shape = "doubled", (1,), (4,)

    def __call__(self, records):
        return records * 2


@pytest.mark.parametrize("form", ["objects", "pickle", "empty", "shape", "type"])
def test_a_cache_of_features(tmp_path, marker, form):
    dataset = array_set(np.ones((5, 4), dtype=np.float32), np.zeros(5))
    made = with_features(dataset, Doubled(), tmp_path, progress=False)
    assert torch.equal(made[0][0], torch.full((4,), 2.0))
    (path,) = tmp_path.glob("*.npy")
    if form == "objects":
        np.save(path, np.array([Payload(marker)], dtype=object), allow_pickle=True)
    elif form in ("shape", "type"):
        np.save(path, np.ones((5, 3), np.float16) if form == "shape" else np.ones((5, 4), np.float64))
    else:
        path.write_bytes(pickle.dumps(Payload(marker)) if form == "pickle" else b"")
    with pytest.raises(DatasetUnavailableError, match="remove the file"):
        with_features(dataset, Doubled(), tmp_path, progress=False)


@pytest.mark.parametrize("suffix", [".yaml", ".yml"])
@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.mkdir", "!!python/object/new:os.mkdir", "!!python/object:os.mkdir"]
)
def test_a_config(tmp_path, marker, suffix, tag):
    path = tmp_path / f"config{suffix}"
    path.write_text(f"setting: {tag} [{marker}]\n")
    with pytest.raises(ConfigFileError):
        load_config(path)


def test_a_name_in_a_config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("setting: !!python/name:os.system\n")
    with pytest.raises(ConfigFileError):
        load_config(path)
