"""Lines of a CSV file, brought to one form, each by itself.

A CSV parser that reads ahead lets one record decide about others: a quotation mark that is not closed swallows the
lines after it, and a line that is too short ends the run with a message that quotes it. So here a line is a record,
whatever is in it.

Formal guarantee: the fields of a line are a function of that line, of the delimiter and of the public number of
columns. A line that has another number of fields, or that cannot be read, has empty fields only (a record that
contributes nothing, since its label is missing). As many records come out as there are lines up to the last one that is
not blank; how many that are is public.

The owner of a file, who imports it or predicts its records, reads it as RFC 4180 has it (`quoted_records`): a value in
quotation marks may hold line breaks. A run does not: there a broken record can decide about the lines after it.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

SEPARATOR = "\x1f"  # ASCII's unit separator, between the fields of a line in its one form
_SEPARATOR = SEPARATOR.encode()
_BYTE_ORDER = "\ufeff".encode()
_BLOCK = 1 << 24
_LONGEST_LINE = 1 << 24


def clean_blocks(
    file: BinaryIO, width: int, delimiter: str, *, block: int = _BLOCK, start: int = 0, stop: int | None = None
) -> Iterator[bytes]:
    """Yield the lines of a file from ``start`` up to ``stop``, ``width`` fields each, many at a time."""
    place = 0
    for part in _whole_lines(file, block):
        if stop is not None and place >= stop:
            return
        lines = part.count(b"\n")
        wanted = _lines_of(part, start - place, lines if stop is None else stop - place, lines)
        place += lines
        if wanted:
            yield _clean(wanted, width, delimiter)


def count_lines(file: BinaryIO) -> int:
    """Count as many lines as `clean_blocks` yields."""
    return sum(part.count(b"\n") for part in _whole_lines(file, _BLOCK))


def _lines_of(part: bytes, first: int, last: int, lines: int) -> bytes:
    """Return some of the lines; fast where all of them, or none, are wanted."""
    if first <= 0 and last >= lines:
        return part
    if first >= lines or last <= 0:
        return b""
    ends = np.flatnonzero(np.frombuffer(part, dtype=np.uint8) == ord("\n")) + 1
    return part[0 if first <= 0 else int(ends[first - 1]) : int(ends[min(last, lines) - 1])]


def _whole_lines(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield pieces that end with a line. Blank lines at the end of the file are left out; a line that is longer than
    any record counts as blank."""
    rest, too_long, blank = b"", False, b""
    while chunk := file.read(size):
        data = rest + chunk
        cut = data.rfind(b"\n") + 1
        if not cut:
            too_long = too_long or len(data) > _LONGEST_LINE
            rest = b"" if too_long else data
            continue
        first = data.find(b"\n")
        if too_long or first > _LONGEST_LINE:
            data, cut = data[first:], cut - first
        rest, data, too_long = data[cut:], data[:cut], len(data) - cut > _LONGEST_LINE
        rest = b"" if too_long else rest
        kept = data.rstrip(b" \r\n")
        end = data.find(b"\n", len(kept)) + 1
        if kept:
            yield blank + data[:end]
            blank = data[end:]
        else:
            blank += data
    if rest.strip() and not too_long:
        yield blank + rest + b"\n"


def _clean(block: bytes, width: int, delimiter: str) -> bytes:
    if not block.isascii():
        block = block.decode("utf-8", errors="replace").encode()  # a bad byte spoils its own value only
        block = block.replace(_BYTE_ORDER, b"")  # the parser drops one at the beginning of what it is given
    block = block.replace(b"\r\n", b"\n")
    mark = delimiter.encode()
    if not _special(block) and _even(block, width, mark):
        return block.replace(mark, _SEPARATOR)
    lines = block.split(b"\n")[:-1]
    return b"".join(_clean_line(line, width, delimiter, mark) + b"\n" for line in lines)


def _special(text: bytes) -> bool:
    """Say whether there is anything but fields and delimiters."""
    return b'"' in text or b"\r" in text or _SEPARATOR in text


def _even(block: bytes, width: int, mark: bytes) -> bool:
    """Say whether every line has as many fields as there are columns."""
    characters = np.frombuffer(block, dtype=np.uint8)
    ends = np.flatnonzero(characters == ord("\n"))
    marks = np.flatnonzero(characters == ord(mark))
    if len(marks) != len(ends) * (width - 1):
        return False
    before = np.searchsorted(marks, ends)
    return bool((np.diff(before, prepend=0) == width - 1).all())


def _clean_line(line: bytes, width: int, delimiter: str, mark: bytes) -> bytes:
    """Clean one line by itself, so that no quotation mark reaches into another."""
    if not _special(line):
        return line.replace(mark, _SEPARATOR) if line.count(mark) == width - 1 else _SEPARATOR * (width - 1)
    try:
        fields = next(csv.reader([line.decode()], delimiter=delimiter, strict=True, skipinitialspace=True))
    except (csv.Error, StopIteration):
        fields = []
    if len(fields) != width:
        return _SEPARATOR * (width - 1)
    return SEPARATOR.join(field.translate(_TO_SPACES) for field in fields).encode()


_TO_SPACES = {ord(c): " " for c in f"\r\n{SEPARATOR}"}


class Record(NamedTuple):
    """fields: None where a record cannot be read. line: where it begins, counted from 1."""

    fields: list[str] | None
    line: int


def quoted_records(lines: Iterable[str], width: int, delimiter: str) -> Iterator[Record]:
    """Read records of ``width`` fields. Those with broken quotation marks or another number of fields are refused.

    After broken marks reading goes on at the record's second line, so that a mark which is never closed costs one
    record and not all that follow; lines with another number of fields are then taken as the rest of it. Blank lines
    between records are none. A value may have as many characters as the csv module allows (131,072).
    """
    source, broken = _Lines(lines), False
    reader = _reader(source, delimiter)
    while True:
        line = source.begin()
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error:
            source.hand_back()
            reader, broken = _reader(source, delimiter), True
            yield Record(None, line)
            continue
        if len(fields) == width:
            broken = False
            yield Record(fields, line)
        elif fields and not broken:
            yield Record(None, line)


def _reader(lines: Iterable[str], delimiter: str) -> Iterator[list[str]]:
    return csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=True)


class _Lines:
    """Lines of a file that can be handed back. ``number``: of the last one that was taken."""

    def __init__(self, lines: Iterable[str]):
        self._lines, self._again, self._taken = iter(lines), deque[str](), list[str]()
        self.number = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._lines)
        self._taken.append(line)
        self.number += 1
        return line

    def begin(self) -> int:
        """Begin a record; return the number of its first line."""
        self._taken.clear()
        return self.number + 1

    def hand_back(self) -> None:
        """Hand back all lines of the record but its first."""
        again = self._taken[1:]
        self._again.extendleft(reversed(again))
        self.number -= len(again)
