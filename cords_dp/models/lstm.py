"""CORDS' LSTM classifier, made fit for per-example gradients.

CORDS fine-tunes its word vectors: 120 million weights, of which a sentence touches a handful. Under DP-SGD every one of
them would get noise in every step, and every example a gradient of that size. So the vectors stay as they were
published, which costs nothing: they take no gradient and tell nothing about the records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opacus.layers import DPLSTM
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
    vectors = getattr(model, "embedding", None)
    if not isinstance(vectors, nn.Embedding):
        return []
    from cords_dp.cords import cords_models  # late: other models are loaded where CORDS is not installed

    if not isinstance(model, cords_models.LSTMClassifier):
        return []
    model.embedding = FrozenVectors(vectors.weight)
    return ["trainable word vectors by frozen ones (noise on every word of the vocabulary would drown them)"]


def keep_names(model: nn.Module) -> None:
    """Let the weights of Opacus' LSTMs be saved and loaded under torch's names, so that they fit CORDS' own model.

    Inside another model Opacus' layer lists each of its weights twice, under its own name and under torch's.
    """
    model._register_state_dict_hook(_drop_own_names)
    model._register_load_state_dict_pre_hook(_add_own_names, with_module=True)


def _twice_named(model: nn.Module, prefix: str) -> list[tuple[str, str]]:
    """(Opacus' name, torch's name) of each weight that has both."""
    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, DPLSTM)]
    starts = [(f"{prefix}{name}." if name else prefix, layer) for name, layer in layers]
    return [(start + own, start + usual) for start, layer in starts for own, usual in layer.old_to_new.items()]


def _drop_own_names(model: nn.Module, state: dict[str, Any], prefix: str, _: Mapping[str, Any]) -> None:
    for own, _name in _twice_named(model, prefix):
        state.pop(own, None)


def _add_own_names(model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for own, name in _twice_named(model, prefix):
        if name in state:
            state.setdefault(own, state[name])
