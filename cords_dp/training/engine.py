"""One DP-SGD step, behind Opacus' interfaces.

``θ ← θ − η · ( Σ_{j∈batch} w_j clip_C(∇ℓ_j) + N(0, σ²C²I) ) / b̄``, with weights
in [0, 1] and ``b̄`` the *expected* batch size, a public constant.

Formal guarantees
-----------------
Unit: one record, zero-out. Each step is one Poisson-subsampled Gaussian event (q, σ), provided the batch
holds each record independently with probability at most q. A record's part of the sum has L2 norm at most C: weights
are brought into [0, 1] before they multiply the clipped gradient, and a record whose gradient is not finite contributes
nothing. Norms are float64. In every mode but ghost the bound is proved for the numbers as they are in memory
(`clipping.rounding_slack`; for book-keeping see `pairs`, for ghost clipping `ghost`). An empty batch still takes a step
and adds noise. Noise is float64 from a source that the caller hands over (`noisy_sum`). The event is charged by the
caller before the step.

What one record moves the *sum* by includes the rounding of every other record's part, which may fall differently
without it. On stored rows (float32 linear heads on half-precision features) that is proved as well: without a record
the sum, as it is in memory before its noise, is at most C away, for batches of up to `PROVED_BATCH` records. Proof: the
parts of others are the same numbers, bit for bit (this is tested, for it rests on torch's kernels); their sum errs by
at most e = `half_rows.sum_error(B)` of B·C, with the record and without; a clipped part is rounded once, by 2⁻²⁴; the
slack is 2⁻²¹ at least, so that C·(1 + 2⁻²⁴)/(1 + slack) + 2·e·B·C ≤ C.

Not proved: in all other modes, the rounding of float32 while the parts of one piece are added up.

Per-example gradients are computed in several ways ("modes"), Opacus' and ours; `modes.fastest_mode` chooses one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from cords_dp.distributed import World, current_world
from cords_dp.errors import MechanismError, UnsupportedModelError
from cords_dp.lazy_compiler import compiler_deferred
from cords_dp.mechanisms.clipping import (
    clip_factors,
    finite_or_zero,
    keep_rows,
    rounded_down,
    rounding_slack,
    row_norms,
)
from cords_dp.mechanisms.noise import Noise
from cords_dp.opacus_parts import prepare_module
from cords_dp.training.augment import augmented_views
from cords_dp.training.bookkeeping import recorded
from cords_dp.training.ghost import TWO_PASSES, GhostModule, refuse_weights_used_twice
from cords_dp.training.noisy_sum import ClippedSumOptimizer, PerExampleOptimizer, build_optimizer

LossPerExample = Callable[[Tensor, Tensor], Tensor]
_SUMMED = ("linear", "bookkeeping", "ghost")  # modes that leave a clipped sum
PROVED_BATCH = 2**19  # of stored rows; beyond it rounding in float64 may be more than the slack leaves room for
_HUGE = 1e20  # r · C/‖r‖‖a‖ has to stay far above float32's smallest numbers, where rounding is no longer relative


class PlainEngine:
    """A step without clipping and noise: ε = ∞, on the same batches and with the same normaliser."""

    mode = "none"

    def __init__(self, model: nn.Module, optimizer: Optimizer, criterion: LossPerExample, *, batch_size: int):
        self.model, self.optimizer, self.criterion, self.batch_size = model, optimizer, criterion, batch_size
        self.world = current_world()

    def step(self, x: Tensor, y: Tensor, weights: Tensor) -> None:
        self.optimizer.zero_grad()
        if len(y):
            losses = self.criterion(self.model(x), y) * weights
            (losses.sum() / self.batch_size).backward()
        if self._add_up(len(y)):
            with compiler_deferred():
                self.optimizer.step()

    def _add_up(self, records: int) -> bool:
        """Let every process have the sum of all gradients. Is there any record in the batch?"""
        if self.world.size == 1:
            return records > 0
        for p in self.model.parameters():
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                self.world.add_up(p.grad)
        return bool(self.world.total(np.array([records])).item())


@dataclass(frozen=True)
class Views:
    """Random views of each image, averaged before clipping ("augmentation multiplicity", De et al. 2022)."""

    count: int
    rng: np.random.Generator

    def draw(self, x: Tensor) -> Tensor:
        return augmented_views(x, self.count, self.rng)


class PrivateEngine:
    """Clipped, noisy steps on one model. Wraps the model once, for the whole run.

    ``noise`` gives standard normals (`mechanisms.noise.noise_source`). It may be left out where ``sigma`` is 0, and
    must be: an engine that adds no noise has to be meant.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        criterion: LossPerExample,
        *,
        sigma: float,
        max_grad_norm: float,
        batch_size: int,
        mode: str,
        noise: Noise | None = None,
        normalise: bool = False,
        max_physical_batch_size: int = 512,
        views: Views | None = None,
        distributed: bool = False,
    ):
        _check_noise(sigma, max_grad_norm, noise)
        self.mode, self.criterion, self.views = mode, criterion, views
        self.piece = max(1, max_physical_batch_size // (views.count if views else 1))
        if views and mode in ("linear", "ghost"):
            raise UnsupportedModelError(f"mode {mode} cannot average views before clipping; use another one")
        self.max_grad_norm, self.normalise = max_grad_norm, normalise
        self.model = _prepared(model, mode)
        self.optimizer = build_optimizer(
            optimizer,
            sums=mode in _SUMMED,
            sigma=sigma,
            max_grad_norm=max_grad_norm,
            batch_size=batch_size,
            noise=noise,
            world=current_world() if distributed else World(),
        )
        weights = self.optimizer.params
        elements = sum(p.numel() for p in weights)
        self.slack = max(rounding_slack(elements, p.dtype) for p in weights)
        if mode == "ghost":
            self.slack += TWO_PASSES
        if isinstance(self.optimizer, PerExampleOptimizer):
            self.optimizer.normalise, self.optimizer.slack = normalise, self.slack
            self.optimizer.views = views.count if views else 1

    def set_noise_multiplier(self, sigma: float) -> None:
        """Go on with other noise, as the plan's branches have it."""
        _check_noise(sigma, self.max_grad_norm, self.optimizer.noise)
        self.optimizer.noise_multiplier = sigma

    def step(self, x: Tensor, y: Tensor, weights: Tensor) -> None:
        """Take one noisy step on a Poisson batch of any size, none included."""
        weights = weights.nan_to_num(0.0).clamp(0.0, 1.0)
        pieces = list(_pieces(len(y), self._piece(x)))
        for number, piece in enumerate(pieces):
            self.optimizer.zero_grad(set_to_none=True)
            if self.mode == "linear":
                self._linear_gradients(x[piece], y[piece], weights[piece])
            elif self.mode == "bookkeeping":
                self._recorded_gradients(x[piece], y[piece], weights[piece])
            elif self.mode == "ghost":
                self._ghost_gradients(x[piece], y[piece], weights[piece])
            else:
                self._example_gradients(x[piece], y[piece], weights[piece])
            self.optimizer.signal_skip_step(do_skip=number < len(pieces) - 1)
            with compiler_deferred():
                self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _factors(self, norms: Tensor, weights: Tensor, dtype: torch.dtype) -> Tensor:
        """Weight times clip factor of each record, rounded down."""
        factors = clip_factors(norms, self.max_grad_norm, normalise=self.normalise, slack=self.slack)
        return rounded_down(factors * weights.double(), dtype)

    def _example_gradients(self, x: Tensor, y: Tensor, weights: Tensor) -> None:
        """Leave every example's gradient in ``p.grad_sample``; `PerExampleOptimizer` clips and sums them."""
        assert isinstance(self.optimizer, PerExampleOptimizer)
        self.optimizer.example_weights = weights
        if len(y) == 0:
            for p in self.optimizer.params:
                p.grad_sample = p.new_zeros((0, *p.shape))  # type: ignore[attr-defined]
            return
        if self.views:
            x, y = self.views.draw(x), y.repeat_interleave(self.views.count)
        with _OutOfPlace():
            outputs = self.model(x)
        self.criterion(outputs, y).sum().backward()

    @torch.no_grad()
    def _linear_gradients(self, x: Tensor, y: Tensor, weights: Tensor) -> None:
        """Hand over the clipped sum, in closed form: an example's gradient is r ⊗ [a; 1]."""
        assert isinstance(self.optimizer, ClippedSumOptimizer)
        layer: nn.Linear = self.model.linear  # type: ignore[assignment]
        rows = self._rows(x)
        products, lengths = rows.products(layer.weight)
        with torch.enable_grad():
            logits = (products + layer.bias).detach().requires_grad_()
            (r,) = torch.autograd.grad(self.criterion(logits, y).sum(), logits)
        norms = torch.where(lengths < _HUGE, row_norms(r) * lengths.square().add(1).sqrt(), math.inf)
        factors = self._factors(norms, weights, r.dtype)
        if not bool(torch.isfinite(norms).all()):
            r = keep_rows(r, torch.isfinite(norms))
        clipped = r * factors[:, None]
        sums = {layer.weight: rows.weighted_sum(clipped), layer.bias: rows.plain_sum(clipped)}
        self.optimizer.sums = [sums[p] for p in self.optimizer.params]

    def _rows(self, x: Tensor) -> Rows:
        """What the linear layer reads: stored features where they lie, or the model's embedding."""
        stored = self._stored(x)
        return _DenseRows(self.model.embed(x)) if stored is None else stored  # type: ignore[operator]

    def _piece(self, x: Tensor) -> int:
        """Records at a time. Rows that are read where they lie take no memory, and all of their sum is in float64."""
        return max(1, len(x)) if self.mode == "linear" and self._stored(x) is not None else self.piece

    def _stored(self, x: Tensor) -> Rows | None:
        return self.model.stored_rows(x) if hasattr(self.model, "stored_rows") else None  # type: ignore[operator]

    def _recorded_gradients(self, x: Tensor, y: Tensor, weights: Tensor) -> None:
        """Leave the clipped sum in ``p.grad``, from what one backward pass wrote down."""
        parameters, views = self.optimizer.params, self.views.count if self.views else 1
        if len(y) == 0:
            for p in parameters:
                p.grad = torch.zeros_like(p)
            return
        if self.views:
            x, y = self.views.draw(x), y.repeat_interleave(views)
        parts = recorded(
            self.model, parameters, lambda model: self.criterion(model(x), y), records=len(weights), views=views
        )
        norms = torch.linalg.vector_norm(torch.stack([part.lengths() for part in parts], dim=1), dim=1)
        factors = self._factors(norms, weights, parameters[0].dtype)
        finite = torch.isfinite(norms)
        kept = None if bool(finite.all()) else finite
        for p, part in zip(parameters, parts, strict=True):
            p.grad = part.clipped_sum(factors, kept).to(p.dtype).view_as(p)

    def _ghost_gradients(self, x: Tensor, y: Tensor, weights: Tensor) -> None:
        """Leave the clipped sum in ``p.grad``: one backward pass for the norms, one for the sum."""
        assert isinstance(self.model, GhostModule)
        if len(y) == 0:
            for p in self.optimizer.params:
                p.grad = torch.zeros_like(p)
            return
        with _OutOfPlace():
            outputs = self.model(x)
        losses = self.criterion(outputs, y)
        refuse_weights_used_twice(losses, self.optimizer.params)
        losses.sum().backward(retain_graph=True)
        norms = self.model.get_norm_sample().detach()
        self.model.forget_norms()
        self.optimizer.zero_grad(set_to_none=True)
        finite = torch.isfinite(norms)
        if not bool(finite.all()):
            # 0 · NaN is NaN, so a record that is not finite must leave the batch. The result is that of
            # zeroing its gradient; only the time taken differs.
            self._ghost_gradients(x[finite], y[finite], weights[finite])
            return
        factors = self._factors(norms, weights, losses.dtype)
        self.model.disable_hooks()
        try:
            (losses * factors).sum().backward()
        finally:
            self.model.enable_hooks()


class Rows(Protocol):
    """The inputs of a linear layer."""

    def products(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Each row times the weights, and its length in float64, never understated; not finite if the row is not."""

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σ weight · row, a row for each column of weights. Rows that are not finite have weight 0 and count as 0."""

    def plain_sum(self, weights: Tensor) -> Tensor:
        """Σ weight, in float64: what a row of ones would be given."""


@dataclass(frozen=True)
class _DenseRows:
    rows: Tensor

    def products(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return self.rows @ weight.T, row_norms(self.rows)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        rows = self.rows
        if not bool(torch.isfinite(rows.sum())):  # one NaN shows in the sum; 0 · NaN would be NaN
            rows = finite_or_zero(rows)
        return weights.T @ rows

    def plain_sum(self, weights: Tensor) -> Tensor:
        return weights.sum(dim=0, dtype=torch.float64)


class _OutOfPlace(TorchFunctionMode):
    """Turns ``out += shortcut`` and ``inplace=True`` inside a model into ordinary operations of the same value.

    CORDS' ResNets and others write over the outputs of layers, which backward hooks forbid. ``a += b`` rebinds ``a`` to
    whatever is returned, so returning a new tensor is the same to the model. A model that calls ``a.add_(b)`` and goes
    on with ``a`` would compute something else; `modes.fastest_mode` compares with the model as it is and refuses it.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {**(kwargs or {})}
        if kwargs.get("inplace"):
            kwargs["inplace"] = False
        return (torch.add if func is torch.Tensor.add_ else func)(*args, **kwargs)


def _refuse_all_but_linear(model: nn.Module) -> None:
    """Closed form is for models that are one linear layer on a fixed embedding, such as ScatterLinear."""
    layer = getattr(model, "linear", None)
    if not isinstance(layer, nn.Linear) or layer.bias is None or not hasattr(model, "embed"):
        raise UnsupportedModelError("closed-form gradients need a model with embed() and one linear layer with bias")
    if {id(p) for p in model.parameters()} != {id(layer.weight), id(layer.bias)}:
        raise UnsupportedModelError("closed-form gradients need a model whose only weights are its linear layer's")


def _prepared(model: nn.Module, mode: str) -> nn.Module:
    """The model with what the mode needs around it."""
    if mode == "bookkeeping":
        return model
    if mode == "linear":
        _refuse_all_but_linear(model)
        return model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if mode == "ghost":
                return GhostModule(model, loss_reduction="sum", strict=True)
            strict = {} if mode == "ew" else {"strict": True}
            return prepare_module(model, grad_sample_mode=mode, loss_reduction="sum", **strict)
        except (NotImplementedError, ValueError) as error:
            raise UnsupportedModelError(f"{type(model).__name__} in mode {mode}: {error}") from error


def _check_noise(sigma: float, max_grad_norm: float, noise: Noise | None) -> None:
    """Fail closed: a noise multiplier that got lost must not become a step without noise."""
    if not isinstance(sigma, Real) or not (math.isfinite(sigma) and sigma >= 0):
        raise MechanismError(f"the noise multiplier of a step must be a finite number of at least 0, not {sigma!r}")
    if not (math.isfinite(max_grad_norm) and max_grad_norm > 0):
        raise MechanismError(f"the clip norm must be positive and finite, not {max_grad_norm!r}")
    if sigma > 0 and noise is None:
        raise MechanismError("an engine with a noise multiplier needs a noise source; see mechanisms.noise")
    if sigma == 0 and noise is not None:
        raise MechanismError("noise multiplier 0 beside a noise source: an engine without noise gets none")


def _pieces(size: int, piece: int) -> Iterator[slice]:
    """Slices that cover a batch; one empty slice for an empty batch."""
    for start in range(0, max(size, 1), piece):
        yield slice(start, min(start + piece, size))
