"""CORDS' LSTM classifier, made fit for per-example gradients.

CORDS fine-tunes its word vectors: 120 million weights, of which a sentence touches a handful. Under DP-SGD every one of
them would get noise in every step, and every example a gradient of that size. So the vectors stay as they were
published, which costs nothing: they take no gradient and tell nothing about the records.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class FrozenVectors(nn.Module):
    """Published word vectors. A number that is no word gets the nearest word: a bad record must not stop a run."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)

    def forward(self, words: Tensor) -> Tensor:
        return F.embedding(words.clamp(0, len(self.weight) - 1), self.weight)


def freeze_vectors(model: nn.Module) -> list[str]:
    """Freeze the word vectors of CORDS' LSTM classifier; say so. Other models are left as they are."""
    from cords_dp.toolkit import cords_models

    vectors = getattr(model, "embedding", None)
    if not isinstance(model, cords_models.LSTMClassifier) or not isinstance(vectors, nn.Embedding):
        return []
    model.embedding = FrozenVectors(vectors.weight)
    return ["trainable word vectors by frozen ones (noise on every word of the vocabulary would drown them)"]
