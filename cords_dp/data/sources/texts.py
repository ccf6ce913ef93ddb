"""``dataset.name = "text"``: texts and labels in columns of a ``.csv``, ``.tsv`` or ``.jsonl`` file.

A text becomes a row: its first bytes in UTF-8, as many as the config says. No vocabulary is needed to make one, so any
text can be kept this way; a model reads them by ``model.features = "sentence:FOLDER"``. The rows lie in a file without
a name, so that memory stays bounded. Public are the columns, the classes and how many records there are.

Formal guarantee: a line is a record, and what it becomes is a function of that line and of the header. A line that
cannot be parsed, in a CSV file one with an open quotation mark or too many fields, is an empty text without a label: it
contributes nothing, and nothing is said about it. A row depends on its text and on the public length alone.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cords_dp.config.values import path
from cords_dp.data.record_set import RecordSet, Splits
from cords_dp.data.sources.base import (
    CLASSES,
    MAX_LENGTH,
    NO_CLASS,
    OWN_SPLIT_KEYS,
    PATH,
    TARGET,
    TEXT,
    Facts,
    Source,
    check_split,
    declared_classes,
    label_numbers,
    owner_key,
    refuse_empty,
    refuse_used_column,
    split_store,
)
from cords_dp.data.store import LabelledStore
from cords_dp.errors import ConfigError, DatasetUnavailableError
from cords_dp.files import allocate

_PIECE = 4096
_SEPARATORS = {".csv": ",", ".tsv": "\t"}


class ByteStore(LabelledStore):
    """Texts as rows of bytes."""

    may_fail = False

    def __init__(self, x: np.ndarray, labels: Tensor):
        super().__init__(labels)
        self.x = x

    def records(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(np.asarray(self.x[rows]))

    def keep_range(self, start: int, stop: int) -> None:
        self.x = self.x[start:stop]

    def content(self) -> Iterator[bytes]:
        yield json.dumps(["text", self.x.shape[1]]).encode()
        for start in range(0, len(self.x), _PIECE):
            yield self.x[start : start + _PIECE].tobytes()


def byte_records(pairs: Iterator[tuple[Any, Any]], total: int, length: int, classes: tuple[str, ...]) -> RecordSet:
    """Keep (text, label) pairs in a file that has no name and ends with the process."""
    labels = np.empty(total, dtype=object)
    with tempfile.TemporaryFile(prefix="cords_dp-") as file:
        rows = np.memmap(file, dtype=np.uint8, mode="w+", shape=(max(total, 1), length))
        allocate(file.fileno(), rows.nbytes)
    for place, (words, label) in zip(range(total), pairs, strict=False):
        rows[place] = encode_texts([words], length)[0].numpy()
        labels[place] = label
    return RecordSet(ByteStore(rows[:total], label_numbers(labels, classes)))


class TextSource(Source):
    """A column of texts and a column of labels."""

    name = "text"
    keys = {
        **OWN_SPLIT_KEYS,
        "path": PATH,
        "text": TEXT,
        "target": TARGET,
        "classes": CLASSES,
        "max_length": MAX_LENGTH,
        "owner": owner_key("A column"),
    }

    def check(self, section: Mapping[str, Any], *, private: bool) -> None:
        self.facts(section)
        for key in ("path", "validation_path", "test_path"):
            if section.get(key) is not None or key == "path":
                _check_columns(f"dataset.{key}", section.get(key), _columns(section))
                if section.get("owner") is not None:
                    refuse_used_column(section["owner"], _columns(section))
                    _check_columns(f"dataset.{key}", section.get(key), (section["owner"], None))
        check_split(section)

    def facts(self, section: Mapping[str, Any]) -> Facts:
        return Facts((_length(section),), declared_classes(section), dtype=torch.uint8)

    def build(self, section: Mapping[str, Any], rng: np.random.Generator) -> Splits:
        classes = declared_classes(section)

        def records(key: str) -> RecordSet | None:
            if section.get(key) is None:
                return None
            file, columns = path(f"dataset.{key}", section[key]), _columns(section)
            made = byte_records(_pairs(file, columns), _count(file), _length(section), classes)
            refuse_empty(made, file.name)
            return made

        train = records("path")
        assert train is not None
        own = records("validation_path"), records("test_path")
        return split_store(train, *own, section, rng, len(classes), _names(section))

    def card(self, section: Mapping[str, Any]) -> dict[str, Any]:
        facts = self.facts(section)
        public = {"source": self.name, "shape": list(facts.shape), "classes": list(facts.classes)}
        return {**public, "text": _columns(section)[0]}

    def read(self, card: Mapping[str, Any], path: str) -> RecordSet:
        file = Path(path).expanduser()
        columns = (str(card["text"]), None)
        _check_columns("--input", file, columns)
        return byte_records(_pairs(file, columns), _count(file), int(card["shape"][0]), ())


def _names(section: Mapping[str, Any]) -> list[Iterator[Any]] | None:
    """Yield whose each record is, of the file and of V's and the test set's files. Private; nothing keeps them."""
    if section.get("owner") is None:
        return None
    files = (section.get(key) for key in ("path", "validation_path", "test_path"))
    columns = (section["owner"], None)
    return [
        iter(()) if file is None else (name for name, _ in _pairs(Path(file).expanduser(), columns)) for file in files
    ]


Columns = tuple[str, str | None]  # of texts, and of labels where they are wanted


def _columns(section: Mapping[str, Any]) -> Columns:
    return section.get("text") or "text", section.get("target") or "label"


def _length(section: Mapping[str, Any]) -> int:
    return section.get("max_length") or TEXT_LENGTH


def _check_columns(key: str, value: Any, columns: Columns) -> None:
    """Check that the file is there, of a known kind, and that its header has the columns; JSON lines have no header."""
    file = path(key, value if value is not None else "")
    if file.suffix not in (*_SEPARATORS, ".jsonl"):
        raise ConfigError(key, None if value is None else str(value), "must be a .csv, .tsv or .jsonl file")
    if not file.is_file():
        raise DatasetUnavailableError(f"there is no file {file.name} ({key})")
    if file.suffix == ".jsonl":
        return
    header = _fields(next(_lines(file), ""), _SEPARATORS[file.suffix])
    for column in columns:
        if column is not None and column not in header:
            raise DatasetUnavailableError(f"{file.name} has no column {column!r}; its first line must name the columns")


def _lines(file: Path) -> Iterator[str]:
    """Yield the lines of a file up to the last that is not blank: a line is a record, whatever is in it."""
    blank = 0
    with open(file, "rb") as content:
        for line in content:
            if not line.strip():
                blank += 1
                continue
            yield from [""] * blank
            blank = 0
            yield line.decode("utf-8-sig", errors="replace").rstrip("\r\n")


def _fields(line: str, separator: str) -> list[str]:
    """Return the fields of one line by itself: no quotation mark reaches into another. None if it cannot be read."""
    limit = csv.field_size_limit(sys.maxsize)
    try:
        return next(csv.reader([line], delimiter=separator, strict=True), [])
    except csv.Error:
        return []
    finally:
        csv.field_size_limit(limit)


def _records(file: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the values of each line by column. A line that cannot be read has none."""
    lines = _lines(file)
    if file.suffix == ".jsonl":
        yield from map(_parsed, lines)
        return
    separator = _SEPARATORS[file.suffix]
    header = _fields(next(lines, ""), separator)
    for fields in (_fields(line, separator) for line in lines):
        yield dict(zip(header, fields, strict=True)) if len(fields) == len(header) else {}


def _parsed(line: str) -> Mapping[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _pairs(file: Path, columns: Columns) -> Iterator[tuple[Any, Any]]:
    words, label = columns
    return ((record.get(words), record.get(label) if label is not None else NO_CLASS) for record in _records(file))


def _count(file: Path) -> int:
    return sum(1 for _ in _records(file))


TEXT_LENGTH = 1024  # bytes: some 200 words of English


def encode_texts(texts: Sequence[object], length: int = TEXT_LENGTH) -> Tensor:
    """Make one row of bytes of each text, cut or filled up with zeros. What is no text counts as an empty one."""
    rows = np.zeros((len(texts), length), dtype=np.uint8)
    for row, given in zip(rows, texts, strict=True):
        if isinstance(given, str):
            content = np.frombuffer(given.encode(errors="replace").replace(b"\0", b" ")[:length], dtype=np.uint8)
            row[: len(content)] = content
    return torch.from_numpy(rows)


def decode_text(row: Tensor) -> str:
    """Return the text of a row; a character that was cut in two is left out."""
    return row.cpu().numpy().tobytes().rstrip(b"\0").decode(errors="ignore")


class TextRecords(Dataset):
    """Texts with labels, to be handed to ``TrainClassifier.train`` or made by a source."""

    def __init__(self, texts: Sequence[str], labels: Sequence[int], length: int = TEXT_LENGTH):
        self.x, self.targets = encode_texts(texts, length), torch.as_tensor(np.asarray(labels), dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.targets[index]

    def batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.as_tensor(indices, dtype=torch.int64)
        return self.x[rows], self.targets[rows]
