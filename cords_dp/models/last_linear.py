"""Finds the linear layer that a model ends with, by trying: its logits are that layer's output and nothing else.

Read are released weights and made-up records alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def last_linear(model: nn.Module, made_up: Tensor) -> nn.Linear | None:
    """Return the layer, or None where no layer is sure to be it: half of its weights and bias give half the logits."""
    model.eval()
    half = model(made_up) / 2
    if not torch.isfinite(half).all() or not half.any():
        return None
    layers = [module for module in model.modules() if type(module) is nn.Linear]
    return next((layer for layer in reversed(layers) if _halves(model, layer, made_up, half)), None)


def _halves(model: nn.Module, layer: nn.Linear, made_up: Tensor, half: Tensor) -> bool:
    kept = [parameter.clone() for parameter in layer.parameters()]
    divide(layer, 2.0)
    found = torch.allclose(model(made_up), half, rtol=1e-5, atol=1e-6 * float(half.abs().max()))
    for parameter, value in zip(layer.parameters(), kept, strict=True):
        parameter.copy_(value)
    return found


@torch.no_grad()
def divide(layer: nn.Linear, number: float) -> None:
    """Divide weights and bias, and so the outputs."""
    for parameter in layer.parameters():
        parameter.div_(number)
