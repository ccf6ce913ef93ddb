"""Records of different lengths, brought to one public length, each by itself.

CORDS pads a batch to its longest record, so a record's logits depend on who else is in the batch. Here every record is
cut or filled up to the same length, which the config says and no data decides. A collate function of the user's is
given one record at a time, so whatever it does, it cannot carry anything from one record to another.

Formal guarantee: row i of a batch is a function of record i, of the public length and of nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cords_dp.data.handed_over import as_records
from cords_dp.data.record_set import RecordSet, Splits, collated
from cords_dp.data.sources.base import find_source
from cords_dp.data.store import Store, StoreAround
from cords_dp.data.text_sets import TEXT_SETS
from cords_dp.errors import DataError

_FILLER = 0  # as in CORDS: the first word of GloVe's vocabulary
_DEFAULT_LENGTH = 64

Collate = Callable[[list[Any]], Any]


def padded_splits(data: Splits, config: Mapping[str, Any]) -> Splits:
    """Bring records to one length, where they are text or the config names a collate function."""
    collate = config["dataloader"].get("collate_fn") or None
    if not (is_text(config) or collate):
        return data
    length = public_length(config) if is_text(config) else None
    return data.each(lambda part: padded(part, length, collate))


def padded(dataset: Any, length: int | None, collate: Collate | None = None) -> RecordSet:
    records = as_records(dataset)
    return records.with_store(PaddedStore(records.store, length, collate))


def is_text(config: Mapping[str, Any]) -> bool:
    """Say whether records are rows of words. Texts of one's own are read by a source, which gives them their length."""
    name = config["dataset"].get("name")
    return name in TEXT_SETS or (config["dataset"].get("type") == "text" and find_source(name) is None)


def public_length(config: Mapping[str, Any]) -> int:
    section = config["dataset"]
    usual = TEXT_SETS[section["name"]].max_length if section.get("name") in TEXT_SETS else _DEFAULT_LENGTH
    return section.get("max_length") or usual


class PaddedStore(StoreAround):
    """Records of one length: words stand at the end, so that a recurrent net ends on the last of them.

    length: None leaves records as long as they are.
    """

    def __init__(self, source: Store, length: int | None, collate: Collate | None = None):
        super().__init__(source)
        self.length, self.collate = length, collate

    def read(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        return collated([self.record(int(row)) for row in rows], lambda: self.record(0))

    def record(self, row: int) -> tuple[Tensor, Tensor]:
        problem = ""
        try:
            x, y = self._alone(row)
            return (x if self.length is None else _filled(x, self.length)), y
        except Exception:  # what it says might tell what is in the record
            problem = "the dataset or its collate_fn cannot make a record: a row of whole numbers and its label"
        raise DataError(problem)

    def _alone(self, row: int) -> tuple[Tensor, Tensor]:
        record = self.source.record(row)
        if self.collate is None:
            return torch.as_tensor(record[0]), torch.as_tensor(record[1])
        x, y = self.collate([record])
        (x,), (y,) = x, y  # a batch of one
        return x, y


def _filled(words: Tensor, length: int) -> Tensor:
    kept = words[:length]
    return torch.cat([kept.new_full((length - len(kept),), _FILLER), kept])
