"""An append-only file of records: appending costs the same however long the file is, and records stay.

Each line is ``{"chain":"…","record":{…}}``. ``chain`` is a SHA-256 over the previous line's chain and this record, so a
line that was edited, removed or moved breaks every line after it. The first line also says how many bytes were
*committed*, i.e. appended by calls that returned; it is written after the line is on the device. So a file that was
cut short differs from one whose last append was interrupted, also where the cut falls between two lines.

Formal guarantee: `append` returns only after the record is on the device. `open` yields every record whose append
returned, or raises. An append that did not return may be there or not. The mark of the very last append reaches the
device with the next one, with `close`, or when the system writes its cache back: a cut right after a power failure
can hide that one record. The chain has no key: it finds accidents and careless edits, not a forger.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from filelock import FileLock, Timeout

from cords_dp.errors import AccountingError
from cords_dp.files import write_durably

Parse = Callable[[bytes], dict[str, Any]]
_MARK = b'{"committed":"%016d",'  # a fixed width, so that it can be overwritten in place
_MARK_SIZE = len(_MARK % 0)
_DIGITS_AT = _MARK.index(b"%")
_CHAIN_AT = slice(len('{"chain":"'), len('{"chain":"') + 32)
_RECORD_AT = slice(_CHAIN_AT.stop + len('","record":'), -len("}\n"))


class Journal:
    """One open journal. This process holds its lock until `close`; a process that was forked off cannot write."""

    def __init__(self, path: Path, descriptor: int, lock: FileLock):
        self.path = path
        self._descriptor, self._lock, self._process = descriptor, lock, os.getpid()
        self._size, self._chain, self._before = 0, "", ""
        self._usable = False

    @property
    def heads(self) -> tuple[str, str]:
        """The chain of the last record but one, and of the last. They name everything that was ever written."""
        return self._before, self._chain

    # -- open and close ---------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: Path, header: dict[str, Any], *, wait: float = 0.0) -> Journal:
        """Create a journal whose first record is ``header``. A file that is there already belongs to another run."""
        lock = _lock(path, wait)
        try:
            if path.exists():
                raise AccountingError(f"another run writes to {path.name} in the same folder; use separate folders")
            line, chain = _encode("", header)
            size = _MARK_SIZE + len(line) - 1
            write_durably(path, _MARK % size + line[1:])
            journal = cls(path, os.open(path, os.O_RDWR), lock)
        except OSError as error:
            lock.release()
            raise AccountingError(f"cannot write {path.name}: {error.strerror or error}") from error
        except BaseException:
            lock.release()
            raise
        journal._size, journal._chain, journal._usable = size, chain, True
        return journal

    @classmethod
    def open(cls, path: Path, *, wait: float = 0.0) -> Journal:
        """Open the journal at ``path``. Read `records` to the end before you append."""
        lock = _lock(path, wait)
        try:
            return cls(path, os.open(path, os.O_RDWR), lock)
        except OSError as error:
            lock.release()
            raise AccountingError(f"cannot read {path.name}: {error.strerror or error}") from error

    def close(self) -> None:
        """Release the file and its lock. Closing twice is fine."""
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
        os.close(descriptor)
        if os.getpid() == self._process:
            self._lock.release()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    # -- read -------------------------------------------------------------------------------------------

    def records(self, parse: Parse = json.loads) -> Iterator[dict[str, Any]]:
        """Yield every record, header first, each checked before it is handed out. ``parse`` reads a record's JSON."""
        end = os.fstat(self._descriptor).st_size
        committed = self._committed()
        if end < committed:
            self._damaged(f"{committed} bytes were written to it and {end} are there: its end was cut off")
        size, chain, before = 0, "", ""
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(0)
            for number, line in enumerate(file, start=1):
                torn = not line.endswith(b"\n")
                if torn and size + len(line) <= committed:
                    self._damaged(f"line {number} has no end")
                link = _checked(chain, _without_mark(line) if number == 1 else line, torn)
                if link is None and torn and number > 1 and size >= committed:
                    os.ftruncate(self._descriptor, size)  # an append that was interrupted and never returned
                    break
                if link is None:
                    self._damaged(f"line {number} was edited, or is missing or damaged")
                before, chain, size = chain, link[0], size + len(line) + torn
                yield parse(link[1])
                if torn:  # only the newline was missing: count the record rather than lose it
                    os.pwrite(self._descriptor, b"\n", size - 1)
                    break
        if size < committed or size == 0:
            self._damaged("its first line does not fit the rest")
        self._size, self._chain, self._before, self._usable = size, chain, before, True

    def _committed(self) -> int:
        mark = os.pread(self._descriptor, _MARK_SIZE, 0)
        digits = mark[_DIGITS_AT : _DIGITS_AT + 16]
        if not digits.isdigit() or mark != _MARK % int(digits):
            self._damaged("it is damaged, or was written by another version of cords_dp")
        return int(digits)

    def _damaged(self, reason: str) -> NoReturn:
        raise AccountingError(
            f"cannot read {self.path.name}: {reason}. What was spent is unknown, so nothing more may be spent under it"
        )

    # -- write ------------------------------------------------------------------------------------------

    def append(self, record: dict[str, Any]) -> None:
        """Add ``record``; it is on the device when this returns, and not in the journal when this raises."""
        self._refuse_other_writers()
        line, chain = _encode(self._chain, record)
        self._usable = False
        try:
            _write_whole(self._descriptor, line, self._size)
            os.fsync(self._descriptor)
        except BaseException as error:
            # Whether a failed write or fsync reached the device is unknown: take it back and write no more.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            if isinstance(error, OSError):
                reason = str(error.strerror or error)
                error.filename = str(self.path)  # a write knows its file by a number
                raise AccountingError(f"cannot write {self.path.name}: {reason}") from error
            raise
        self._size, self._chain, self._before, self._usable = self._size + len(line), chain, self._chain, True
        with contextlib.suppress(OSError):  # the mark is a lower bound: an older one is not wrong
            os.pwrite(self._descriptor, b"%016d" % self._size, _DIGITS_AT)

    def _refuse_other_writers(self) -> None:
        if not self._usable or self._descriptor < 0 or os.getpid() != self._process:
            raise AccountingError(f"{self.path.name} cannot be written any more; resume the run to open it again")
        ours = os.fstat(self._descriptor)
        try:
            there = os.stat(self.path)
        except OSError as error:
            raise AccountingError(f"{self.path.name} is gone: {error.strerror or error}") from error
        if not os.path.samestat(ours, there) or ours.st_size != self._size:
            raise AccountingError(f"another run writes to {self.path.name} in the same folder; use separate folders")


# --- lines -----------------------------------------------------------------------------------------------


def _encode(chain: str, record: dict[str, Any]) -> tuple[bytes, str]:
    body = json.dumps(record, separators=(",", ":"), allow_nan=False).encode()
    link = _link(chain, body)
    return b'{"chain":"%s","record":%s}\n' % (link.encode(), body), link


def _checked(chain: str, line: bytes, torn: bool) -> tuple[str, bytes] | None:
    """Return a line's own chain and its record's JSON; None where the line does not follow from ``chain``."""
    line = line + b"\n" if torn else line
    link, body = line[_CHAIN_AT].decode(errors="replace"), line[_RECORD_AT]
    if link != _link(chain, body) or line != b'{"chain":"%s","record":%s}\n' % (link.encode(), body):
        return None
    return link, body


def _link(chain: str, body: bytes) -> str:
    return hashlib.sha256(chain.encode() + body).hexdigest()[:32]


def _without_mark(line: bytes) -> bytes:
    return b"{" + line[_MARK_SIZE:]


def _write_whole(descriptor: int, content: bytes, offset: int) -> None:
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written


@contextlib.contextmanager
def locked(path: Path, wait: float = 0.0) -> Iterator[None]:
    """Keep other processes from writing the file meanwhile; wait at most so many seconds for one that does."""
    lock = _lock(path, wait)
    try:
        yield
    finally:
        lock.release()


def _lock(path: Path, wait: float) -> FileLock:
    """Lock this journal for this process. Journals of one process share the lock: `append` tells them apart."""
    lock = FileLock(path.with_name(path.name + ".lock"), is_singleton=True, thread_local=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=wait)
    except Timeout:
        raise AccountingError(
            f"another process uses {path.name}; wait for it to end, or use separate folders"
        ) from None
    except OSError as error:
        raise AccountingError(f"cannot lock {path.name}: {error.strerror or error}") from error
    return lock
