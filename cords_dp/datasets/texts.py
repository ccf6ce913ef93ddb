"""Texts as records: the first bytes of each in UTF-8, in a row of one public length.

A row depends on its text and on the public length alone. No vocabulary is needed to make one, so any text can be kept
this way, and `models.sentences` reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

TEXT_LENGTH = 1024  # bytes: some 200 words of English


def encode_texts(texts: Sequence[object], length: int = TEXT_LENGTH) -> Tensor:
    """One row of bytes for each text, cut or filled up with zeros. What is no text counts as an empty one."""
    rows = np.zeros((len(texts), length), dtype=np.uint8)
    for row, text in zip(rows, texts, strict=True):
        if isinstance(text, str):
            content = np.frombuffer(text.encode(errors="replace").replace(b"\0", b" ")[:length], dtype=np.uint8)
            row[: len(content)] = content
    return torch.from_numpy(rows)


def decode_text(row: Tensor) -> str:
    """The text of a row; a character that was cut in two is left out."""
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
