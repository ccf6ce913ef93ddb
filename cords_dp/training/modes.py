"""Choosing how per-example gradients are computed: try the modes on made-up numbers, keep those that are right.

Opacus' modes differ much in speed, no one is fastest for every model, and some fail or are wrong on some models. A
mode is kept if its clipped sum is that of single examples by autograd in float64: at clip norm 1 and at a clip norm far
below every gradient, where wrong norms show; for one record alone, for all, and for all four times over. What a model
does only on other inputs, or in batches of other sizes, is not found.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cords_dp.config.settings import GRADIENT_MODES
from cords_dp.errors import UnsupportedModelError
from cords_dp.training.engine import LossPerExample, PrivateEngine

_FAR_BELOW = 1e-3  # of the shortest gradient: every example is clipped, by its norm alone
_TOLERANCE = 1e-3  # of each weight's part of the gradient
_ROUNDING = 4  # times what single examples lose in the model's own precision
_FLOOR = 1e-6  # of the whole: parts that cancel to nothing leave rounding behind
_REPEATS = 4
_LAST_RESORT = ("functorch",)  # never the fastest, and it imports torch's compiler, which takes longer than a short run


def fastest_mode(
    model: nn.Module, x: Tensor, y: Tensor, criterion: LossPerExample, modes: Sequence[str] = GRADIENT_MODES
) -> str:
    """The quickest of the modes whose clipped sum is right for this model, found on made-up inputs."""
    usual = [mode for mode in modes if mode not in _LAST_RESORT]
    seconds, problems = try_modes(model, x, y, criterion, usual)
    if not seconds:
        seconds, more = try_modes(model, x, y, criterion, [mode for mode in modes if mode in _LAST_RESORT])
        problems = {**problems, **more}
    if not seconds:
        reasons = "; ".join(f"{mode}: {problem}" for mode, problem in problems.items())
        raise UnsupportedModelError(f"no way to get per-example gradients of {type(model).__name__}: {reasons}")
    if "linear" in seconds:  # two matrix products; nothing is faster, whatever a short trial on a busy machine says
        return "linear"
    return min(seconds, key=seconds.__getitem__)


def try_modes(
    model: nn.Module, x: Tensor, y: Tensor, criterion: LossPerExample, modes: Sequence[str] = GRADIENT_MODES
) -> tuple[dict[str, float], dict[str, str]]:
    """Seconds of a step in each mode that is right for this model, and what is wrong with the others.

    The model stays in training mode: one that mixes records only then must be found out too.
    """
    probe = _copied(model).train()
    with _NoDropout():
        reference = _Reference(probe, x, y, criterion)
        seconds, problems = {}, {}
        for mode in modes:
            try:
                seconds[mode] = _try_mode(mode, probe, x, y, criterion, reference)
            except Exception as error:  # Opacus raises many kinds
                problems[mode] = str(error).splitlines()[0] if str(error) else type(error).__name__
    return seconds, problems


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:  # weight_norm's tensors, locks, open files
        raise UnsupportedModelError(f"{type(model).__name__} cannot be copied, so no mode can be tried") from error


class _NoDropout(TorchFunctionMode):
    """Lets dropout do nothing, in layers and in forward methods, so that a model computes the same each time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "dropout" in getattr(func, "__name__", ""):
            return args[0] if args else kwargs["input"]
        return func(*args, **kwargs)


class _Reference:
    """Each example's gradient, one at a time by autograd: in float64, and in the model's own precision."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, criterion: LossPerExample):
        self.exact = _gradients(model, x, y, criterion, torch.float64)
        own = next(p.dtype for p in model.parameters() if p.requires_grad)
        self.rough = _gradients(model, x, y, criterion, own).double()  # very deep nets lose digits
        self.sizes = [p.numel() for p in model.parameters() if p.requires_grad]
        norms = self.exact.norm(dim=1)
        if not bool((norms > 0).any()):
            raise UnsupportedModelError(f"{type(model).__name__} has no gradient on made-up inputs to try modes on")
        self.shortest = float(norms[norms > 0].min())

    def check(self, got: Tensor, rows: slice, clip: float, repeats: int = 1) -> None:
        """Raise unless each weight's part of ``got`` is the clipped sum of these rows, so many times over."""
        expected = _clipped(self.exact[rows], clip).sum(dim=0)
        rounding = _clipped(self.rough[rows], clip).sum(dim=0) - expected
        whole = float(expected.norm())
        tolerance = max(_TOLERANCE, _ROUNDING * float(rounding.norm()) / max(whole, 1e-300))
        parts = ((got / repeats - expected).split(self.sizes), expected.split(self.sizes), rounding.split(self.sizes))
        for wrong, part, rounded in zip(*parts, strict=True):
            allowed = tolerance * float(part.norm()) + _ROUNDING * float(rounded.norm()) + _FLOOR * whole
            if not float(wrong.norm()) <= allowed:
                raise UnsupportedModelError("wrong gradients")


def _gradients(model: nn.Module, x: Tensor, y: Tensor, criterion: LossPerExample, dtype: torch.dtype) -> Tensor:
    """One row for each example."""
    exact = copy.deepcopy(model).to(dtype)
    parameters = [p for p in exact.parameters() if p.requires_grad]
    rows = []
    for i in range(len(y)):
        outputs = exact(_in_precision(x[i : i + 1], dtype))
        if not isinstance(outputs, Tensor) or (outputs.dim() != 2 and not y.is_floating_point()):
            raise UnsupportedModelError(f"{type(model).__name__} does not give one logit for each class")
        losses = criterion(outputs, _in_precision(y[i : i + 1], dtype))
        gradients = torch.autograd.grad(losses.sum(), parameters, allow_unused=True)
        if any(g is None for g in gradients):
            raise UnsupportedModelError(f"{type(model).__name__} has weights that take no part in its output")
        rows.append(torch.cat([g.reshape(-1) for g in gradients]))
    return torch.stack(rows)


def _in_precision(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.to(dtype) if values.is_floating_point() else values  # words and classes are whole numbers


def _clipped(rows: Tensor, clip: float) -> Tensor:
    return rows * (clip / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)).clamp(max=1.0)


def _try_mode(
    mode: str, probe: nn.Module, x: Tensor, y: Tensor, criterion: LossPerExample, reference: _Reference
) -> float:
    """Seconds of a step in this mode. Raises if the mode is wrong in any of the trials."""
    everyone = slice(0, len(y))
    low = _FAR_BELOW * reference.shortest
    trial = _Trial(mode, probe, criterion, low)
    for i in range(len(y)):
        one = slice(i, i + 1)
        got = trial.sum(x[one], y[one])
        if not float(got.norm()) <= low:
            raise UnsupportedModelError("a record contributes more than the clip norm")
        reference.check(got, one, low)
    reference.check(trial.sum(x, y), everyone, low)
    trial = _Trial(mode, probe, criterion, 1.0)
    reference.check(trial.sum(x, y), everyone, 1.0)
    many_x, many_y = (part.repeat(_REPEATS, *[1] * (part.dim() - 1)) for part in (x, y))
    start = time.perf_counter()
    got = trial.sum(many_x, many_y)
    taken = time.perf_counter() - start
    reference.check(got, everyone, 1.0, _REPEATS)
    return taken


class _Trial:
    """An engine without noise on a copy of the model, whose steps are recorded and not taken."""

    def __init__(self, mode: str, probe: nn.Module, criterion: LossPerExample, clip: float):
        model = copy.deepcopy(probe)
        self._recorder = _Recorder([p for p in model.parameters() if p.requires_grad], lr=0.0)
        self._engine = PrivateEngine(
            model, self._recorder, criterion, sigma=0.0, max_grad_norm=clip, batch_size=1, mode=mode
        )

    def sum(self, x: Tensor, y: Tensor) -> Tensor:
        """The clipped sum of a batch, in float64."""
        self._engine.step(x, y, torch.ones(len(y), device=x.device))
        return self._recorder.seen


class _Recorder(torch.optim.SGD):
    seen: Tensor

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        self.seen = torch.cat([g.detach().reshape(-1) for g in gradients]).double()
