"""Making a model fit for per-example gradients."""

from __future__ import annotations

import warnings

import torch
from opacus.validators import ModuleValidator
from torch import Tensor, nn

from cords_dp.errors import UnsupportedModelError
from cords_dp.models.lstm import freeze_vectors, keep_names

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def make_private_ready(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """Replace what mixes records inside a batch; return the model and a description of what was replaced.

    BatchNorm computes statistics over the batch, so one record's activations would depend on the
    others'. It becomes GroupNorm, which looks at one record at a time. The learning behaviour changes,
    so the user is told. LSTMs become Opacus' own, and in-place activations ordinary ones, which backward hooks need.
    """
    replaced = freeze_vectors(model)
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
        keep_names(fixed)
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


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Copy a model's weights and buffers, frozen ones included."""
    return {name: value.detach().clone() for name, value in _state(model)}


def refuse_changes(model: nn.Module, before: dict[str, Tensor]) -> None:
    """Refuse a model whose weights or buffers are not those of ``before``, name by name and bit by bit.

    What a model writes to them while it computes would carry records past the noise.
    """
    now = dict(_state(model))
    if now.keys() != before.keys() or not all(_same_bits(value, before[name]) for name, value in now.items()):
        raise UnsupportedModelError(
            f"{type(model).__name__} changes its own weights or buffers while it computes, past the noise"
        )


def _state(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Compare as whole numbers: NaN equals itself, and 0 differs from −0."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(one.element_size())
    if whole is None or one.dtype != other.dtype:
        return torch.equal(one, other)
    return torch.equal(one.detach().reshape(-1).view(whole), other.reshape(-1).view(whole))
