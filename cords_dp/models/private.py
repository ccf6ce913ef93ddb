"""Making a model fit for per-example gradients."""

from __future__ import annotations

import warnings

from opacus.validators import ModuleValidator
from torch import nn

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
