"""Files that are there whole or not at all, also after a crash."""

from __future__ import annotations

import errno
import os
import platform
import re
import secrets
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = [
    "allocate",
    "cache_folder",
    "caches_in",
    "make_owners_folder",
    "out_of_space",
    "remove_stale",
    "replacing",
    "sync",
    "write_durably",
]
_TEMPORARY = re.compile(r"\..+\.(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-[0-9a-f]{8}\.tmp")


def write_durably(path: Path, content: str | bytes, *, mode: int | None = None) -> None:
    """Replace the file at ``path``: after a crash the old content or the new one is there, whole.

    The content is on the device when this returns. ``mode`` sets the permissions (0o600: for the owner's eyes only)
    from the first byte on; otherwise the process' umask decides.
    """
    with replacing(path) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
        with open(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a name to write a large file under. When the block ends, the file is on the device, at ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{_host()}-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and str(error.filename) in ("None", str(temporary)):
            error.filename, error.filename2 = str(path), None  # a write knows no name, and nobody knows this one
        raise
    sync(path.parent)  # a rename is durable once its folder is


def allocate(descriptor: int, size: int) -> None:
    """Take the room for a file that is going to be mapped: a full disk is an error here, and a bus error later."""
    if hasattr(os, "posix_fallocate") and size:
        os.posix_fallocate(descriptor, 0, size)


def out_of_space(error: BaseException | None) -> OSError | None:
    """Return the error, or the one that it came from, if it says that a disk is full, a quota or a limit used up."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return error
        error = error.__cause__
    return None


def cache_folder(what: str) -> Path | None:
    """Return the folder for what can be made again and tells nothing of data; None where nothing is kept.

    ``$CORDS_DP_CACHE/what``, by default below ``~/.cache/cords_dp``; ``CORDS_DP_CACHE=off`` keeps nothing.
    """
    given = os.environ.get("CORDS_DP_CACHE")
    if given == "off":
        return None
    if given:
        return Path(given) / what
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cords_dp" / what
    except RuntimeError:  # nobody's home
        return None


@contextmanager
def caches_in(folder: Path) -> Iterator[None]:
    """Keep what `cache_folder` is asked for below ``folder`` meanwhile, here and in processes that begin meanwhile."""
    before = os.environ.get("CORDS_DP_CACHE")
    if before != "off":
        os.environ["CORDS_DP_CACHE"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("CORDS_DP_CACHE", None)
        else:
            os.environ["CORDS_DP_CACHE"] = before


def make_owners_folder(path: Path) -> Path:
    """Make ``path``, or what is there already, a folder that its owner alone can look into."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)
    return path


def remove_stale(folder: Path) -> list[Path]:
    """Remove the temporary files that writers on this machine left in ``folder`` when they were killed; name them."""
    removed = []
    for path in sorted(folder.glob(".*.tmp")):
        name = _TEMPORARY.fullmatch(path.name)
        # Whether a process on another machine is still writing cannot be seen from here.
        if name is not None and name["host"] == _host() and not _alive(int(name["pid"])):
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the device."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _host() -> str:
    return f"{zlib.crc32(platform.node().encode()):08x}"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True  # somebody else's process, or no process id at all: not ours to judge
    return True
