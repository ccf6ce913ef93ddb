"""Features that a kill interrupted go on where they stopped."""

from __future__ import annotations

import errno
import stat

import numpy as np
import pytest
import torch

from cords_dp.data import feature_cache as growing_module
from cords_dp.data.feature_cache import with_features
from cords_dp.data.record_set import array_set


class Doubled:
    """A transform that counts its records and can be killed."""

    name, settings, feature_shape, batch = "doubled", ("test",), (2, 3), 4

    def __init__(self, fail_after: int | None = None):
        self.seen, self._fail_after = 0, fail_after

    def __call__(self, records: torch.Tensor) -> torch.Tensor:
        if self._fail_after is not None and self.seen >= self._fail_after:
            raise KeyboardInterrupt
        self.seen += len(records)
        return records.repeat(1, 2).reshape(-1, 2, 3) * 2


@pytest.fixture
def dataset(monkeypatch):
    monkeypatch.setattr(growing_module, "_SECONDS", -1.0)  # a note after every batch
    x = np.arange(60, dtype=np.float32).reshape(20, 3)
    return array_set(x, np.zeros(20))


def test_an_interrupted_extraction_goes_on(dataset, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        with_features(dataset, Doubled(fail_after=8), tmp_path, progress=False)
    assert [stat.S_IMODE(p.stat().st_mode) for p in tmp_path.glob("doubled*") if p.suffix != ".lock"] == [0o600] * 2
    again = Doubled()
    features = with_features(dataset, again, tmp_path, progress=False)
    assert again.seen == 12, "eight records were there already"
    x, _ = features.batch(range(20))
    torch.testing.assert_close(x, Doubled()(dataset.batch(range(20))[0]))
    assert not list(tmp_path.glob("*.part"))
    assert not list(tmp_path.glob("*.rows"))


@pytest.mark.parametrize("kept", [True, False])
def test_a_full_disk_is_an_error_before_the_first_row_and_no_bus_error_later(dataset, tmp_path, monkeypatch, kept):
    """A mapped file has holes until it is written to: its room is taken at once."""
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("os.posix_fallocate", lambda *_: (_ for _ in ()).throw(full))
    with pytest.raises(OSError, match="No space left"):
        with_features(dataset, Doubled(fail_after=0), tmp_path if kept else None, progress=False)
    assert not list(tmp_path.glob("*.part"))
    monkeypatch.undo()
    assert with_features(dataset, Doubled(), tmp_path, progress=False).batch([19])[0].shape == (1, 2, 3)


def test_the_room_of_a_mapped_file_is_taken(dataset, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        with_features(dataset, Doubled(fail_after=0), tmp_path, progress=False)
    (part,) = tmp_path.glob("*.part")
    assert part.stat().st_blocks * 512 >= part.stat().st_size


@pytest.mark.parametrize("damage", ["rows", "part", "short"])
def test_what_is_damaged_is_begun_again(dataset, tmp_path, damage):
    with pytest.raises(KeyboardInterrupt):
        with_features(dataset, Doubled(fail_after=8), tmp_path, progress=False)
    (part,), (rows,) = tmp_path.glob("*.part"), tmp_path.glob("*.rows")
    if damage == "rows":
        rows.write_text("-3")
    elif damage == "part":
        part.write_bytes(b"no array")
    else:
        part.write_bytes(part.read_bytes()[:100])
    again = Doubled()
    features = with_features(dataset, again, tmp_path, progress=False)
    assert again.seen == 20
    torch.testing.assert_close(features.batch([19])[0], Doubled()(dataset.batch([19])[0]))
