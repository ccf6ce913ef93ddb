"""Makes models fit for per-example gradients, CORDS' LSTM classifier among them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from opacus.layers import DPLSTM
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.nn import functional as F

from cords_dp.errors import UnsupportedModelError

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def make_private_ready(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """Replace what mixes records inside a batch; return the model and a description of what was replaced.

    BatchNorm computes statistics over the batch, so one record's activations would depend on the
    others'. It becomes GroupNorm, which looks at one record at a time. The learning behaviour changes,
    so the user is told. LSTMs become Opacus' own, and in-place activations ordinary ones, which backward hooks need.
    """
    replaced = _freeze_vectors(model)
    recurrent = sum(isinstance(m, nn.LSTM) for m in model.modules())
    batch_norms = sum(isinstance(m, _BATCH_NORMS) for m in model.modules())
    fixed = model
    if ModuleValidator.validate(model, strict=False):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fixed = ModuleValidator.fix(model)
    if batch_norms:
        replaced.append(f"{batch_norms} BatchNorm layers by GroupNorm (BatchNorm mixes the records of a batch)")
    if recurrent:
        _keep_names(fixed)
        replaced.append(f"{recurrent} LSTM by Opacus' DPLSTM (the same net, with per-example gradients)")
    for module in fixed.modules():
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]
    problems = ModuleValidator.validate(fixed, strict=False)
    if problems:
        reasons = "; ".join(str(p).splitlines()[0] for p in problems)
        raise UnsupportedModelError(f"{type(model).__name__} cannot be trained with per-example gradients: {reasons}")
    for name, module in fixed.named_modules():
        if getattr(module, "max_norm", None) is not None:  # nn.Embedding and nn.EmbeddingBag
            raise UnsupportedModelError(
                f"{type(model).__name__} has the layer {name!r} with max_norm, which rewrites the weights of the words "
                "that it looks up, past the noise; leave max_norm out"
            )
    for name, _ in fixed.named_buffers():
        raise UnsupportedModelError(
            f"{type(model).__name__} has the buffer {name!r}, which could carry statistics of the records it has seen "
            "past the noise; make it a constant that is not registered as a buffer"
        )
    return fixed, replaced


# --- CORDS' LSTM classifier ------------------------------------------------------------------------------------------


class FrozenVectors(nn.Module):
    """Published word vectors. A number that is no word gets the nearest word: a bad record must not stop a run."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)

    def forward(self, words: Tensor) -> Tensor:
        return F.embedding(words.clamp(0, len(self.weight) - 1), self.weight)


def _freeze_vectors(model: nn.Module) -> list[str]:
    """Freeze the word vectors of CORDS' LSTM classifier; say so. Other models are left as they are.

    CORDS fine-tunes them: 120 million weights, of which a sentence touches a handful. Under DP-SGD every one of them
    would get noise in every step, and every example a gradient of that size. So the vectors stay as they were
    published, which costs nothing: they take no gradient and tell nothing about the records.
    """
    vectors = getattr(model, "embedding", None)
    if not isinstance(vectors, nn.Embedding):
        return []
    from cords_dp.cords import cords_models  # late: other models are loaded where CORDS is not installed

    if not isinstance(model, cords_models.LSTMClassifier):
        return []
    model.embedding = FrozenVectors(vectors.weight)
    return ["trainable word vectors by frozen ones (noise on every word of the vocabulary would drown them)"]


def _keep_names(model: nn.Module) -> None:
    """Let the weights of Opacus' LSTMs be saved and loaded under torch's names, so that they fit CORDS' own model.

    Inside another model Opacus' layer lists each of its weights twice, under its own name and under torch's.
    """
    model._register_state_dict_hook(_drop_own_names)
    model._register_load_state_dict_pre_hook(_add_own_names, with_module=True)


def _twice_named(model: nn.Module, prefix: str) -> list[tuple[str, str]]:
    """List (Opacus' name, torch's name) of each weight that has both."""
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
