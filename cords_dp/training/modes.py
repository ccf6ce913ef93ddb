"""Choosing how per-example gradients are computed: try the modes on made-up numbers, keep those that are right.

Opacus' modes differ much in speed, no one is fastest for every model, and some fail or are wrong on some models.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cords_dp.errors import UnsupportedModelError
from cords_dp.mechanisms import clip_factors
from cords_dp.training.engine import MODES, LossPerExample, PrivateEngine

_PROBE_RATE = 100.0  # a long step: its rounding is small against it


def fastest_mode(
    model: nn.Module, x: Tensor, y: Tensor, criterion: LossPerExample, modes: Sequence[str] = MODES
) -> str:
    """The quickest of the modes whose clipped sum is right for this model, found on made-up inputs."""
    seconds, problems = try_modes(model, x, y, criterion, modes)
    if not seconds:
        reasons = "; ".join(f"{mode}: {problem}" for mode, problem in problems.items())
        raise UnsupportedModelError(f"no way to get per-example gradients of {type(model).__name__}: {reasons}")
    if "linear" in seconds:  # two matrix products; nothing is faster, whatever a short trial on a busy machine says
        return "linear"
    return min(seconds, key=seconds.__getitem__)


def try_modes(
    model: nn.Module, x: Tensor, y: Tensor, criterion: LossPerExample, modes: Sequence[str] = MODES
) -> tuple[dict[str, float], dict[str, str]]:
    """Seconds of a step in each mode that is right for this model, and what is wrong with the others.

    The model stays in training mode: one that mixes records only then must be found out too.
    """
    probe = copy.deepcopy(model).train()
    with _NoDropout():
        expected = _reference_sum(probe, x, y, criterion, torch.float64)
        in_float32 = _reference_sum(probe, x, y, criterion, x.dtype)  # very deep nets lose digits
        allowed = max(1e-2 * float(expected.norm()) + 1e-7, 2 * float((in_float32.double() - expected).norm()))
        seconds, problems = {}, {}
        for mode in modes:
            try:
                taken, got = _try_mode(mode, probe, x, y, criterion)
            except Exception as error:  # Opacus raises many kinds
                problems[mode] = str(error).splitlines()[0] if str(error) else type(error).__name__
                continue
            if float((got.double() - expected).norm()) <= allowed:
                seconds[mode] = taken
            else:
                problems[mode] = "wrong gradients"
    return seconds, problems


class _NoDropout(TorchFunctionMode):
    """Lets dropout do nothing, in layers and in forward methods, so that a model computes the same each time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "dropout" in getattr(func, "__name__", ""):
            return args[0] if args else kwargs["input"]
        return func(*args, **kwargs)


def _reference_sum(model: nn.Module, x: Tensor, y: Tensor, criterion: LossPerExample, dtype: torch.dtype) -> Tensor:
    """The sum of gradients clipped to norm 1, one example at a time by autograd, in the given precision."""
    exact = copy.deepcopy(model).to(dtype)
    parameters = [p for p in exact.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in parameters), device=x.device, dtype=dtype)
    for i in range(len(y)):
        outputs = exact(x[i : i + 1].to(dtype))
        if not isinstance(outputs, Tensor) or outputs.dim() != 2:
            raise UnsupportedModelError(f"{type(model).__name__} does not give one logit for each class")
        losses = criterion(outputs, y[i : i + 1])
        gradients = torch.autograd.grad(losses.sum(), parameters, allow_unused=True)
        if any(g is None for g in gradients):
            raise UnsupportedModelError(f"{type(model).__name__} has weights that take no part in its output")
        flat = torch.cat([g.reshape(-1) for g in gradients])
        total += flat * clip_factors(flat.norm(), 1.0)
    return total


def _try_mode(mode: str, probe: nn.Module, x: Tensor, y: Tensor, criterion: LossPerExample) -> tuple[float, Tensor]:
    model = copy.deepcopy(probe)
    parameters = [p for p in model.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in parameters]
    engine = PrivateEngine(
        model,
        torch.optim.SGD(parameters, lr=_PROBE_RATE),
        criterion,
        sigma=0.0,
        max_grad_norm=1.0,
        batch_size=1,
        mode=mode,
    )
    weights = torch.ones(len(y), device=x.device)
    engine.step(x, y, weights)
    total = torch.cat([(b - p.detach()).reshape(-1) for b, p in zip(before, parameters, strict=True)]) / _PROBE_RATE
    with torch.no_grad():
        for p, b in zip(parameters, before, strict=True):
            p.copy_(b)
    many_x, many_y = x.repeat(4, *[1] * (x.dim() - 1)), y.repeat(4)
    start = time.perf_counter()
    engine.step(many_x, many_y, torch.ones(len(many_y), device=x.device))
    return time.perf_counter() - start, total
