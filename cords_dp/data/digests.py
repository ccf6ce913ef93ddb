"""Keyed digests of private data, which their owner, and nobody else, can make again.

A plain digest of private data lets anyone confirm a guess of it. These are keyed by random bytes in a file that is the
owner's alone: without the key they tell nothing about the records that could be computed. With it guesses can be tried,
so it is never to be shared.

Of *files*, so that their owner can tell later which data a statement speaks of: HMAC-SHA256 by one key of 32 bytes,
salted by a number of the run's own, so that they do not tell whether two runs read the same file either. The digest is
the one value of a statement that depends on exact records: what covers it is not (ε, δ), but that nobody without the
key can tell it from random bytes. The ledger has it too, so that a run is not resumed on files that were changed.

Of *records*, so that a run is resumed on the same ones only: by a key of the run's own, beside them in its folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from pathlib import Path

import numpy as np
from torch import Tensor

from cords_dp.data.record_set import Splits
from cords_dp.errors import AccountingError, OwnerKeyError
from cords_dp.files import make_owners_folder, write_durably

_SIZE = 32
_PIECE = 1 << 20


def key_file() -> Path | None:
    """Return where the owner's key lies; None where no digests are wanted.

    ``$CORDS_DP_KEY``, by default ``~/.config/cords_dp/digest.key``; ``CORDS_DP_KEY=off`` makes no digests.
    """
    given = os.environ.get("CORDS_DP_KEY")
    if given == "off":
        return None
    if given:
        return Path(given)
    try:
        return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "cords_dp" / "digest.key"
    except RuntimeError:  # nobody's home
        return None


def owner_key(*, create: bool = True) -> bytes:
    """Read the owner's key, or draw one where there is none yet. Raises where others could read it."""
    path = key_file()
    if path is None:
        raise OwnerKeyError("there is no place for the owner's key")
    try:
        if create and not path.exists():
            _draw_key(path)
        if path.stat().st_mode & 0o077:
            raise OwnerKeyError(f"{path.name}, the owner's key, can be read by others: chmod 600 it")
        key = path.read_bytes()
    except OSError as error:
        raise OwnerKeyError(f"the owner's key, {path.name}, cannot be read: {error.strerror}") from None
    if len(key) != _SIZE:
        raise OwnerKeyError(f"{path.name}, the owner's key, is damaged: it holds {_SIZE} bytes")
    return key


def _draw_key(path: Path) -> None:
    """Write a new key, whole and for its owner alone; of several processes the first one's stays."""
    if not path.parent.exists():
        make_owners_folder(path.parent)
    own = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    write_durably(own, secrets.token_bytes(_SIZE), mode=0o600)
    with contextlib.suppress(FileExistsError):
        os.link(own, path)
    own.unlink()


def owner_digest(path: Path, key: bytes, salt: str) -> str:
    """Return the digest of a file, whatever its name, or of a folder with the names and contents of its files."""
    if path.is_dir():
        inside = sorted(found for found in path.rglob("*") if found.is_file())
        contents = [[found.relative_to(path).as_posix(), _content(found)] for found in inside]
    else:
        contents = [["", _content(path)]]
    return hmac.new(key, json.dumps([salt, contents]).encode(), hashlib.sha256).hexdigest()


def key_digest(key: bytes, salt: str) -> str:
    """Return what tells whether two salted digests were made by the same key."""
    return hmac.new(key, json.dumps([salt, "key"]).encode(), hashlib.sha256).hexdigest()


def _content(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


# --- of records ------------------------------------------------------------------------------------------------------


class RecordDigests:
    """Digests of a set's records, each made when the record is first read, and their key, in one file of the owner's.

    Of sets whose records change from reading to reading only the labels count.
    """

    def __init__(self, path: Path, size: int, *, labels_only: bool, resumed: bool):
        self._path, self._labels_only = path, labels_only
        self._checked = np.zeros(size, dtype=bool)  # in this process
        if resumed:
            self._key, self._known = self._read(size)
        else:
            self._key, self._known = secrets.token_bytes(16), np.zeros(size, dtype=np.uint64)

    def check(self, indices: np.ndarray, x: Tensor, y: Tensor) -> None:
        """Raise if one of these records is another than when the run began."""
        fresh = np.flatnonzero(~self._checked[indices])
        values = [y.numpy()] if self._labels_only else [x.numpy(), y.numpy()]
        for number in fresh:
            place = indices[number]
            digest = hashlib.blake2b(key=self._key, digest_size=8)
            for value in values:
                digest.update(np.ascontiguousarray(value[number]).tobytes())
            found = np.frombuffer(digest.digest(), dtype=np.uint64)[0] | np.uint64(1)  # 0: not read yet
            if self._known[place] not in (np.uint64(0), found):
                raise AccountingError(
                    "these are other records than those that the run began with: what was charged does not cover "
                    "them; resume with that run's data, or start afresh in another folder"
                )
            self._known[place], self._checked[place] = found, True

    def save(self) -> None:
        """Write down what was read so far, for the owner's eyes only."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(self._path, self._key + self._known.tobytes(), mode=0o600)

    def _read(self, size: int) -> tuple[bytes, np.ndarray]:
        try:
            content = self._path.read_bytes()
        except OSError:
            content = b""
        if len(content) != 16 + 8 * size:
            raise AccountingError(
                f"{self._path.parent.name}/{self._path.name}, which tells the records that the run began with, is "
                "missing or damaged; start afresh in another folder"
            )
        return content[:16], np.frombuffer(content[16:], dtype=np.uint64).copy()


def bound_records(data: Splits, folder: Path, *, resumed: bool, tested: bool = False) -> list[RecordDigests]:
    """Let the records of D and V that a user handed over be the same as when the run began; ``tested``: and of T."""
    digests, sets = [], [("D", data.train), ("V", data.validation), *([("T", data.test)] if tested else [])]
    for name, part in sets:
        guard = part.store.guard()
        if guard is not None:
            path = folder / "private" / f"records-{name}"
            guard.digests = None
            guard.digests = RecordDigests(path, len(guard), labels_only=guard.changes, resumed=resumed)
            digests.append(guard.digests)
    return digests
