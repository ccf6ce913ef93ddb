"""Records of a user's dataset that cannot be read, or that a model cannot: no record ends a run or shows in a message.

A record that is not finite contributes zero, by the same steps as any other. One that cannot be read, whose shape or
type is another than that of the first readable one, or that holds a word outside of the model's vocabulary is one
without a label (words of a text keep what they are, and the label becomes one without a loss).
`handed_over.unreadable_records` tells the owner which cannot be read.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cords_dp.data.digests import RecordDigests
from cords_dp.data.record_set import RecordSet, Splits
from cords_dp.data.store import Store, StoreAround
from cords_dp.errors import DataError

_TRIED_TWICE = 8  # records, to see whether they change from one reading to the next


def with_guard(records: RecordSet) -> RecordSet:
    """Return the set, guarded against records that cannot be read. Stores of our own read every record."""
    guarded = records.store.may_fail and len(records.store)  # a part may have none
    return records.with_store(ReadableStore(records.store)) if guarded else records


class ReadableStore(StoreAround):
    """A dataset of the user's, of which no record ends a run: one that cannot be read has zeros and no label.

    Formal guarantee: what is given for record i is a function of record i and of the public shape and type of a record,
    which are those of the first record that can be read. A null record and one that cannot be read look alike.
    """

    may_fail = False  # type: ignore[assignment]
    vocabulary: Tensor | None = None  # how many words the model knows at each place of a record; 0: any number will do
    digests: RecordDigests | None = None

    def __init__(self, source: Store):
        super().__init__(source)
        for row in range(len(self)):
            first = self._alone(row)
            if first is not None:
                self._null = torch.zeros_like(first[0]), torch.full_like(first[1], -1)
                if first[1].is_floating_point():
                    self._null[1].fill_(torch.nan)
                return
        raise DataError("no record of the dataset can be read: each must be (x, y), tensors or numbers")

    def guard(self) -> ReadableStore:
        return self

    def read(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        found = self._found(rows)
        x, y = found if found is not None and self._fits(*found) else self._each_alone(rows)
        if self.digests is not None:
            self.digests.check(rows, x, y)
        return (x, y) if self.vocabulary is None else self._without_strange_words(x, y, self.vocabulary)

    def unreadable(self) -> list[int]:
        """Return the rows that contribute nothing because they cannot be read, or have another shape."""
        found = ((row, self._alone(row)) for row in range(len(self)))
        return [row for row, record in found if record is None or not self._fits(*record)]

    @property
    def changes(self) -> bool:
        """Does a record change from one reading to the next, as with random transforms? Tried on the first few."""
        few = np.arange(min(len(self), _TRIED_TWICE))
        return not torch.equal(self.read(few)[0].nan_to_num(), self.read(few)[0].nan_to_num())

    def _each_alone(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Read the records one by one, those that cannot be read or do not fit as null."""
        alone = [self._alone(int(row)) for row in rows]
        records = [record if record is not None and self._fits(*record) else self._null for record in alone]
        of_x, of_y = self._null
        x = torch.cat([of_x[:0], *(record[0] for record in records)])
        return x, torch.cat([of_y[:0], *(record[1] for record in records)])

    def _without_strange_words(self, x: Tensor, y: Tensor, vocabulary: Tensor) -> tuple[Tensor, Tensor]:
        strange = ((vocabulary > 0) & ((x < 0) | (x >= vocabulary))).flatten(1).any(dim=1)
        x = torch.where(strange.reshape(-1, *[1] * (x.dim() - 1)), torch.zeros_like(x), x)
        return x, torch.where(strange.reshape(-1, *[1] * (y.dim() - 1)), self._null[1].expand_as(y), y)

    def _fits(self, x: Tensor, y: Tensor) -> bool:
        (of_x, of_y), found = self._null, (x, y)
        return all(
            (part.shape[1:], part.dtype, part.device) == (wanted.shape[1:], wanted.dtype, wanted.device)
            for part, wanted in zip(found, (of_x, of_y), strict=True)
        )

    def _alone(self, row: int) -> tuple[Tensor, Tensor] | None:
        return self._found(np.array([row]))

    def _found(self, rows: np.ndarray) -> tuple[Tensor, Tensor] | None:
        """Read records, with labels as signed whole numbers; None if any cannot be read."""
        try:
            x, y = self.source.read(rows)
        except (Exception, SystemExit, GeneratorExit):  # what it says might tell what is in a record
            return None
        x, y = x.detach(), y.detach()
        return x, y if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool else y.long()


# --- words that a model does not know --------------------------------------------------------------------------------


def limit_words(data: Splits, model: nn.Module) -> None:
    """Let records with words that the model does not know contribute nothing."""
    guards = [guard for part in data[:3] if (guard := part.store.guard()) is not None]
    if guards and not (words := data.train.no_records()[0]).is_floating_point():
        vocabulary = known_words(model, words.new_zeros(words.shape[1:]))
        for guard in guards:
            guard.vocabulary = vocabulary


def known_words(model: nn.Module, record: Tensor) -> Tensor | None:
    """Return how many words the model knows at each place, tried on made-up records; 0 where any number will do.

    None if the model looks nothing up.
    """
    tried = copy.deepcopy(model).cpu().eval()
    with _TableSizes() as tables:
        _reads(tried, torch.zeros_like(record, device="cpu"))
    if not tables.found or record.is_floating_point():
        return None
    highest = torch.iinfo(record.dtype).max  # a byte cannot lie outside of a longer table
    sizes = sorted(size for size in tables.found if size <= highest)
    limits = torch.zeros(record.shape, dtype=torch.int64)
    # with one table all places are tried at once
    places = [slice(None)] if len(sizes) == 1 else list(range(record.numel()))
    for place in places:
        for size in sizes:
            words = torch.zeros_like(record, device="cpu")
            words.view(-1)[place] = size
            if not _reads(tried, words):
                limits.view(-1)[place] = size
                break
    return limits


class _TableSizes(TorchFunctionMode):
    """Notes the lengths of all tensors that are used together with whole numbers: tables of words are among them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [value for value in (*args, *(kwargs or {}).values()) if isinstance(value, Tensor) and value.dim()]
        if any(not value.is_floating_point() for value in given):
            self.found |= {len(value) for value in given if value.is_floating_point()}
        return func(*args, **(kwargs or {}))


def _reads(model: nn.Module, record: Tensor) -> bool:
    try:
        with torch.no_grad():
            model(record[None])
    except Exception:
        return False
    return True
