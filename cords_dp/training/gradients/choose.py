"""The choice of a gradient mode: the first that is right for a model, tried on made-up numbers.

A mode is right if it computes what autograd computes for single records, which is tried in float64, where nothing but
a mistake can differ: a ReLU that flips between float32 and float64 once made right modes look wrong. Compared are, on
four made-up records,

* each record alone, clipped far below its gradient: the direction of its gradient, at most C long;
* all of them together: the sum of what each gave alone (a model that mixes records fails here);
* all of them four times over, without clipping: four times the sum of their gradients.

In the model's own precision the bound is tried again, and the sum roughly. Errors: a right mode differs by some 1e-12
of the whole and is refused from `_EXACT` on; a wrong one differs by its mistake, which is of the order of the gradients
themselves. `benchmarks/probe.py` counts both kinds of error over every model of CORDS. What a model does only on other
inputs, or in batches of other sizes, is not found.

A model that cannot compute in float64 is tried in its own precision alone, on up to `_TRIES` batches: a wrong mode is
wrong on each of them, a right one fails on one only where a kink falls between two roundings.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cords_dp.errors import UnsupportedModelError
from cords_dp.models.unchanged import refuse_changes, state_of
from cords_dp.noise.clipping import rounding_slack
from cords_dp.training.gradients.mode import (
    Clipping,
    GradientMode,
    LossPerExample,
    Piece,
    gradient_mode,
    gradient_modes,
)

_FAR_BELOW = 1e-3  # of the shortest gradient: every record is clipped, by its norm alone
_EXACT = 1e-6  # of each weight's part of the gradient, in float64
_FLOOR = 1e-9  # of the whole: parts that cancel to nothing leave rounding behind
_OWN = 1e-3  # the same in the model's own precision, where float64 cannot be had
_ROUNDING = 4  # times what single records lose in the model's own precision
_ROUGH = 0.1  # of the whole, in the model's own precision
_REPEATS = 4
_TRIES = 5
Say = Callable[[str], None]


def choose_mode(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    criterion: LossPerExample,
    modes: Sequence[GradientMode | str] | None = None,
    *,
    say: Say = lambda text: None,
) -> GradientMode:
    """Return the mode to train this model with, tried on the made-up batch (x, y).

    Modes are tried by their rank. Measured seconds decide only between right ones of the same rank. A mode without a
    proof is taken only where no other was asked for.
    """
    asked = _named(modes)
    candidates = [mode for mode in asked if mode.proved] or list(asked)
    probe = Probe(model, x, y, criterion)
    problems: dict[str, str] = {}
    for _, equals in groupby(sorted(candidates, key=lambda mode: mode.rank), key=lambda mode: mode.rank):
        right = []
        for mode in equals:
            say(f"Trying per-example gradients by mode {mode} on made-up records.")
            problem = probe.problem(mode)
            if problem is None:
                right.append(mode)
            else:
                problems[mode.name] = problem
        if right:
            return right[0] if len(right) == 1 else min(right, key=probe.seconds)
    reasons = "; ".join(f"{mode}: {problem}" for mode, problem in problems.items())
    raise UnsupportedModelError(f"no way to get per-example gradients of {type(model).__name__}: {reasons}")


def try_modes(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    criterion: LossPerExample,
    modes: Sequence[GradientMode | str] | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Return the names of the modes that are right for this model, and what is wrong with the others."""
    probe = Probe(model, x, y, criterion)
    found = {mode.name: probe.problem(mode) for mode in _named(modes)}
    return [name for name, why in found.items() if why is None], {name: why for name, why in found.items() if why}


def refuse_mixing(model: nn.Module, x: Tensor) -> None:
    """Refuse a model whose outputs for a record, outside of training, depend on the others of its batch.

    Selections see records that way, and promise that one record moves its own score alone.
    """
    try:
        mixed = _mixed(copy.deepcopy(model).double().eval(), _in_precision(x, torch.float64), _EXACT)
    except Exception:  # a layer that insists on float32
        mixed = _mixed(copy.deepcopy(model).eval(), x, _OWN)
    if mixed:
        raise UnsupportedModelError(f"{type(model).__name__} mixes the records of a batch outside of training")


def _mixed(model: nn.Module, x: Tensor, tolerance: float) -> bool:
    with torch.no_grad():
        together, alone = model(x), torch.cat([model(x[i : i + 1]) for i in range(len(x))])
    return not float((together - alone).norm()) <= tolerance * float(alone.norm())


class Probe:
    """Tries modes on copies of a model, in training mode: one that mixes records only then must be found out too."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, criterion: LossPerExample):
        self._model, self._batch, self._criterion = _copied(model).train(), (x, y), criterion
        self._own = next((p.dtype for p in model.parameters() if p.requires_grad), torch.float32)
        with _NoDropout():
            self._rough = _Reference.of(self._model, x, y, criterion, self._own)
            try:
                self._exact: _Reference | None = _Reference.of(self._model, x, y, criterion, torch.float64)
            except UnsupportedModelError:
                raise
            except Exception:  # a layer that insists on float32
                self._exact = None
        reference = self._exact or self._rough
        if not bool((reference.norms > 0).any()):
            raise UnsupportedModelError(f"{type(model).__name__} has no gradient on made-up inputs to try modes on")

    def problem(self, mode: GradientMode) -> str | None:
        """Return what is wrong with a mode for this model, or None."""
        with _NoDropout():
            try:
                if self._exact is None:
                    self._try_in_own_precision(mode)
                else:
                    self._try_exactly(mode, self._exact)
            except Exception as error:  # Opacus raises many kinds
                return str(error).splitlines()[0] if str(error) else type(error).__name__
        return None

    def seconds(self, mode: GradientMode) -> float:
        """Return the seconds of one clipped sum over the batch, repeated; the least of three."""
        trial, seconds = _Trial(mode, self._model, self._criterion, self._own, clip=1.0), []
        for _ in range(3):
            start = time.perf_counter()
            trial.sum(*_repeated(*self._batch))
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    def _try_exactly(self, mode: GradientMode, reference: _Reference) -> None:
        x, y = self._batch
        _check(mode, self._model, x, y, self._criterion, reference, _EXACT, torch.float64)
        self._check_bound(mode, x, y, reference)
        got = _Trial(mode, self._model, self._criterion, self._own).sum(x, y)
        rounding = self._rough.rows - reference.rows
        allowed = _ROUGH * float(reference.norms.sum()) + _ROUNDING * float(rounding.norm(dim=1).sum())
        if not float((got - reference.rows.sum(dim=0)).norm()) <= allowed:
            raise UnsupportedModelError("wrong gradients")

    def _check_bound(self, mode: GradientMode, x: Tensor, y: Tensor, reference: _Reference) -> None:
        """Check that a record contributes no more than the clip norm in the model's own precision."""
        trial = _Trial(mode, self._model, self._criterion, self._own, clip=reference.low)
        for i in range(len(y)):
            if not float(trial.sum(x[i : i + 1], y[i : i + 1]).norm()) <= reference.low:
                raise UnsupportedModelError("a record contributes more than the clip norm")

    def _try_in_own_precision(self, mode: GradientMode) -> None:
        """Accept a mode that is right on one of several batches; one that breaks the bound on any is refused."""
        generator, refusal = torch.Generator().manual_seed(1), None
        x, y = self._batch
        for _ in range(_TRIES):
            reference = _Reference.of(self._model, x, y, self._criterion, self._own)
            self._check_bound(mode, x, y, reference)
            try:
                return _check(mode, self._model, x, y, self._criterion, reference, _OWN, self._own)
            except UnsupportedModelError as error:
                refusal = error
            if not x.is_floating_point():
                break
            x = torch.randn(x.shape, generator=generator).to(x)
        assert refusal is not None
        raise refusal


@dataclass(frozen=True)
class _Reference:
    """Each record's gradient, one at a time by autograd; rows in float64, whatever they were computed in."""

    rows: Tensor
    sizes: list[int]

    @property
    def norms(self) -> Tensor:
        return self.rows.norm(dim=1)

    @property
    def low(self) -> float:
        """A clip norm far below every gradient but those that are zero."""
        norms = self.norms
        return _FAR_BELOW * float(norms[norms > 0].min())

    @classmethod
    def of(cls, model: nn.Module, x: Tensor, y: Tensor, criterion: LossPerExample, dtype: torch.dtype) -> _Reference:
        exact = copy.deepcopy(model).to(dtype)
        parameters = [p for p in exact.parameters() if p.requires_grad]
        before = state_of(exact)
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
        refuse_changes(exact, before)
        return cls(torch.stack(rows).double(), [p.numel() for p in parameters])

    def check(self, got: Tensor, expected: Tensor, tolerance: float) -> None:
        """Raise unless each weight's part of ``got`` is as expected."""
        whole = float(expected.norm())
        for wrong, part in zip((got - expected).split(self.sizes), expected.split(self.sizes), strict=True):
            floor = _FLOOR if tolerance <= _EXACT else tolerance / 100
            if not float(wrong.norm()) <= tolerance * float(part.norm()) + floor * whole:
                raise UnsupportedModelError("wrong gradients")


def _check(
    mode: GradientMode,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    criterion: LossPerExample,
    reference: _Reference,
    tolerance: float,
    dtype: torch.dtype,
) -> None:
    """Raise unless the mode's clipped sums are those of the reference's rows: see the module."""
    clipped = _Trial(mode, model, criterion, dtype, clip=reference.low)
    singles = [clipped.sum(x[i : i + 1], y[i : i + 1]) for i in range(len(y))]
    for got, row, norm in zip(singles, reference.rows, reference.norms.tolist(), strict=True):
        length = float(got.norm())
        if length > reference.low:
            raise UnsupportedModelError("a record contributes more than the clip norm")
        if norm and length < reference.low / 2:
            raise UnsupportedModelError("wrong gradients")
        reference.check(got, row * (length / norm if norm else 0.0), tolerance)
    reference.check(clipped.sum(x, y), sum(singles[1:], singles[0]), tolerance)
    whole = _Trial(mode, model, criterion, dtype).sum(*_repeated(x, y))
    reference.check(whole / _REPEATS, reference.rows.sum(dim=0), tolerance)


class _Trial:
    """Clipped sums of one mode on a copy of the model, in one precision; without ``clip`` nothing is clipped."""

    def __init__(
        self,
        mode: GradientMode,
        model: nn.Module,
        criterion: LossPerExample,
        dtype: torch.dtype,
        clip: float = 1e30,
    ):
        copied = copy.deepcopy(model).to(dtype)
        self._mode, self._criterion, self._dtype = mode, criterion, dtype
        self._parameters = [p for p in copied.parameters() if p.requires_grad]
        self._model = mode.prepare(copied)
        elements = sum(p.numel() for p in self._parameters)
        self._clipping = Clipping(clip, slack=rounding_slack(elements, dtype) + mode.extra_slack)

    def sum(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the clipped sum of a batch, flat and in float64."""
        piece = Piece(_in_precision(x, self._dtype), _in_precision(y, self._dtype), torch.ones(len(y), device=x.device))
        sums = self._mode.clipped_sums(self._model, self._parameters, self._criterion, piece, self._clipping)
        return torch.cat([s.detach().reshape(-1).double() for s in sums])


class _NoDropout(TorchFunctionMode):
    """Lets dropout do nothing, in layers and in forward methods, so that a model computes the same each time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "dropout" in getattr(func, "__name__", ""):
            return args[0] if args else kwargs["input"]
        return func(*args, **kwargs)


def _named(modes: Sequence[GradientMode | str] | None) -> list[GradientMode]:
    every = gradient_modes() if modes is None else modes
    return [gradient_mode(mode) if isinstance(mode, str) else mode for mode in every]


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:  # weight_norm's tensors, locks, open files
        raise UnsupportedModelError(f"{type(model).__name__} cannot be copied, so no mode can be tried") from error


def _repeated(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.repeat(_REPEATS, *[1] * (x.dim() - 1)), y.repeat(_REPEATS, *[1] * (y.dim() - 1))


def _in_precision(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return numbers in float64 where that is tried, and as they are otherwise: some models read half precision."""
    return values.double() if dtype == torch.float64 and values.is_floating_point() else values
