"""Digests of a run's files by which their owner, and nobody else, can tell later which data a statement speaks of.

A plain digest of private data lets anyone confirm a guess of it. This one is keyed (HMAC-SHA256) by 32 random bytes in
a file that is the owner's alone, and salted by a number of the run's own: without the key it tells nothing about the
records that could be computed, nor whether two runs read the same file. With the key, guesses can be tried: the key is
never to be shared. The digest is the one value of a statement that depends on exact records: what covers it is not
(ε, δ), but that nobody without the key can tell it from random bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from pathlib import Path

from cords_dp.errors import OwnerKeyError
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


def _content(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
