"""Owners: whose records these are, where one person has several.

Formal guarantee: what the package keeps of an owner's name is a number, in memory. Names are turned into numbers as
they are read and are never written, logged or quoted. A record without a name is an owner of one record. The numbers
say which records belong together and nothing else: D, V and the test set are made of owners by a permutation that looks
at how many owners there are, which is public. How many records an owner has is private.

One person under two names is two owners, each with the promised ε: names have to be made equal beforehand. Spaces
around a name do not count.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from cords_dp.errors import DataError


@dataclass(frozen=True)
class Owners:
    """Whose each record of a set is: ``codes`` from 0 to ``count`` − 1. An owner may have no record here.

    count: how many owners the set has, in all processes together: public.
    """

    codes: np.ndarray
    count: int

    def at(self, indices: np.ndarray) -> Owners:
        return Owners(self.codes[indices], self.count)

    @cached_property
    def masses(self) -> np.ndarray:
        """Each record's share of its owner: those of one owner's records here add up to 1.

        So a table in which every record counts with its mass gives an owner what it gave a record, and a sum of vectors
        gives it the mean of its records'.
        """
        return 1.0 / np.bincount(self.codes, minlength=1)[self.codes]


class Numbered:
    """Turns names into numbers, the same for all files of a run, and is forgotten once the sets are made."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self.count = 0

    def codes(self, names: Iterable[Any]) -> np.ndarray:
        """Number each record's owner; one without a name is new every time."""
        known = self._codes
        found = []
        for name in names:
            key = plain_name(name)
            code = self.count if key is None else known.setdefault(key, self.count)
            self.count += code == self.count
            found.append(code)
        return np.array(found, dtype=np.int64)


def plain_name(name: Any) -> str | None:
    """Return the name as a text, in one form; None for none: an empty text, None, or no number.

    A column of whole numbers in which some are missing is read, and written, as one of fractions: 7.0 and "7.0" are 7.
    """
    if isinstance(name, np.generic):
        name = name.item()
    if name is None or type(name).__name__ in ("NAType", "NaTType"):  # pandas' names for what is missing
        return None
    if isinstance(name, bytes):
        name = name.decode("utf-8", "replace")
    if isinstance(name, float):
        if math.isnan(name):
            return None
        name = int(name) if name.is_integer() else name
    text = unicodedata.normalize("NFC", str(name)).strip()
    return re.sub(r"^([+-]?\d+)\.0+$", r"\1", text) or None


class OwnerSplit(NamedTuple):
    """Which rows are in each set, and whose they are there."""

    train: tuple[np.ndarray, Owners]
    validation: tuple[np.ndarray, Owners]
    test: tuple[np.ndarray, Owners]


def owner_rows(codes: np.ndarray, held_out: float, testing: float, rng: np.random.Generator) -> OwnerSplit:
    """Deal whole owners to the training, validation and test sets, by their number and the seed alone."""
    owners, dense = np.unique(codes, return_inverse=True)
    total = len(owners)
    order = rng.permutation(total)
    first, second = int(total * held_out), int(total * held_out) + int(total * testing)
    places = np.empty(total, dtype=np.int64)
    places[order] = np.arange(total)
    of_record = places[dense]  # an owner's place in the permutation

    def between(start: int, stop: int) -> tuple[np.ndarray, Owners]:
        rows = np.flatnonzero((of_record >= start) & (of_record < stop))
        return rows, Owners(of_record[rows] - start, stop - start)

    return OwnerSplit(between(second, total), between(0, first), between(first, second))


def own_file(codes: np.ndarray, elsewhere: np.ndarray) -> tuple[np.ndarray, Owners]:
    """Return all rows of a set with a file of its own, without the records of owners who are in another set already.

    They count as owners here, without a record: how many owners the file has does not tell who is elsewhere.
    """
    owners, dense = np.unique(codes, return_inverse=True)
    rows = np.flatnonzero(~np.isin(codes, elsewhere))
    return rows, Owners(dense[rows].astype(np.int64), len(owners))


def named_owners(names: Any, count: int, numbered: Numbered) -> np.ndarray:
    """Number the owners of a set that a program hands over. ``count``: of its records."""
    names = list(names)
    if len(names) != count:
        raise DataError("owners= must have one name for each record of the set")
    return numbered.codes(names)


def refuse_no_owners(split: Iterable[tuple[Any, Owners]], wanted: Iterable[bool]) -> None:
    if any(needed and not owners.count for needed, (_, owners) in zip(wanted, split, strict=True)):
        raise DataError("there are too few owners for a training, a validation and a test set, each of whole owners")
