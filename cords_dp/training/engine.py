"""One DP-SGD step, through Opacus.

``θ ← θ − η · ( Σ_{j∈batch} w_j clip_C(∇ℓ_j) + N(0, σ²C²I) ) / b̄``, with weights
in [0, 1] and ``b̄`` the *expected* batch size, a public constant.

Formal guarantees
-----------------
Unit: one record, zero-out. Each step is one Poisson-subsampled Gaussian event (q, σ), provided the batch
holds each record independently with probability at most q. A record's part of the sum has L2 norm at most C: weights
are brought into [0, 1] before they multiply the clipped gradient, and a record whose gradient is not finite contributes
nothing. An empty batch still takes a step and adds noise. The event is charged by the caller before the step.

Opacus computes per-example gradients in several ways ("modes"); `modes.fastest_mode` chooses one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping, prepare_module
from opacus.optimizers import (
    DistributedDPOptimizer,
    DistributedDPOptimizerFastGradientClipping,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
)
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from cords_dp.distributed import World, current_world
from cords_dp.errors import UnsupportedModelError
from cords_dp.mechanisms import clip_factors, keep_rows
from cords_dp.training.augment import augmented_views

LossPerExample = Callable[[Tensor, Tensor], Tensor]
MODES = ("linear", "ghost", "ew", "hooks", "functorch")
_SUMMED = ("linear", "ghost")  # modes that leave a clipped sum and never hold every example's gradient


class PlainEngine:
    """A step without clipping and noise: ε = ∞, on the same batches and with the same normaliser."""

    mode = "none"

    def __init__(self, model: nn.Module, optimizer: Optimizer, criterion: LossPerExample, *, batch_size: int):
        self.model, self.optimizer, self.criterion, self.batch_size = model, optimizer, criterion, batch_size

    def step(self, x: Tensor, y: Tensor, weights: Tensor) -> None:
        self.optimizer.zero_grad()
        if len(y):
            losses = self.criterion(self.model(x), y) * weights
            (losses.sum() / self.batch_size).backward()
            self.optimizer.step()


@dataclass(frozen=True)
class Views:
    """Random views of each image, averaged before clipping ("augmentation multiplicity", De et al. 2022)."""

    count: int
    generator: torch.Generator

    def draw(self, x: Tensor) -> Tensor:
        return augmented_views(x, self.count, self.generator)


class PrivateEngine:
    """Clipped, noisy steps on one model. Wraps the model once, for the whole run."""

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
        generator: torch.Generator,
        normalise: bool = False,
        max_physical_batch_size: int = 512,
        views: Views | None = None,
        distributed: bool = False,
    ):
        self.mode, self.criterion, self.views = mode, criterion, views
        self.piece = max(1, max_physical_batch_size // (views.count if views else 1))
        if views and mode in _SUMMED:
            raise UnsupportedModelError(f"mode {mode} cannot average views before clipping; use another one")
        self.max_grad_norm, self.normalise = max_grad_norm, normalise
        if mode == "linear":
            _refuse_all_but_linear(model)
        options = {"loss_reduction": "sum"}
        if mode != "ew":
            options["strict"] = True  # type: ignore[assignment]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self.model = model if mode == "linear" else prepare_module(model, grad_sample_mode=mode, **options)
            except (NotImplementedError, ValueError) as error:
                raise UnsupportedModelError(f"{type(model).__name__} in mode {mode}: {error}") from error
        if mode == "ghost":
            _refuse_sequences(model)
        world = current_world() if distributed else World()
        self.optimizer: DPOptimizer = _optimizer_class(mode, world)(
            optimizer,
            noise_multiplier=sigma,
            max_grad_norm=max_grad_norm,
            expected_batch_size=batch_size / world.size,  # Opacus divides by the number of processes once more
            loss_reduction="mean",
            generator=generator,
        )
        self.optimizer.normalise = normalise
        self.optimizer.views = views.count if views else 1

    def step(self, x: Tensor, y: Tensor, weights: Tensor) -> None:
        """Take one noisy step on a Poisson batch of any size, none included."""
        weights = weights.nan_to_num(0.0).clamp(0.0, 1.0)
        pieces = list(_pieces(len(y), self.piece))
        for number, piece in enumerate(pieces):
            self.optimizer.zero_grad(set_to_none=True)
            if self.mode == "linear":
                self._linear_gradients(x[piece], y[piece], weights[piece])
            elif self.mode == "ghost":
                self._ghost_gradients(x[piece], y[piece], weights[piece])
            else:
                self._example_gradients(x[piece], y[piece], weights[piece])
            self.optimizer.signal_skip_step(do_skip=number < len(pieces) - 1)
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for p in self.optimizer.params:
            p.__dict__.pop("_norm_sample", None)  # exact norms must not travel with the model

    def _example_gradients(self, x: Tensor, y: Tensor, weights: Tensor) -> None:
        """Leave every example's gradient in ``p.grad_sample``; `_BoundedDPOptimizer` clips and sums them."""
        if len(y) == 0:
            for p in self.optimizer.params:
                p.grad_sample = p.new_zeros((0, *p.shape))  # type: ignore[attr-defined]
            return
        if self.views:
            x, y = self.views.draw(x), y.repeat_interleave(self.views.count)
        with _OutOfPlace():
            outputs = self.model(x)
        self.criterion(outputs, y).sum().backward()
        self.optimizer.example_weights = weights

    @torch.no_grad()
    def _linear_gradients(self, x: Tensor, y: Tensor, weights: Tensor) -> None:
        """Leave the clipped sum in ``p.grad``, in closed form: an example's gradient is r ⊗ [a; 1]."""
        layer: nn.Linear = self.model.linear  # type: ignore[assignment]
        a = self.model.embed(x)  # type: ignore[operator]
        with torch.enable_grad():
            logits = layer(a).detach().requires_grad_()
            (r,) = torch.autograd.grad(self.criterion(logits, y).sum(), logits)
        norms = r.norm(dim=1) * torch.linalg.vector_norm(a, dim=1).square().add(1).sqrt()
        factors = weights * clip_factors(norms, self.max_grad_norm, normalise=self.normalise)
        if not bool(torch.isfinite(norms).all()):
            r, a = keep_rows(r, torch.isfinite(norms)), keep_rows(a, torch.isfinite(norms))
        clipped = r * factors[:, None]
        layer.weight.grad, layer.bias.grad = clipped.T @ a, clipped.sum(dim=0)

    def _ghost_gradients(self, x: Tensor, y: Tensor, weights: Tensor) -> None:
        """Leave the clipped sum in ``p.grad``: one backward pass for the norms, one for the sum."""
        assert isinstance(self.model, GradSampleModuleFastGradientClipping)
        if len(y) == 0:
            for p in self.optimizer.params:
                p.grad = torch.zeros_like(p)
            return
        with _OutOfPlace():
            outputs = self.model(x)
        losses = self.criterion(outputs, y)
        losses.sum().backward(retain_graph=True)
        norms = self.model.get_norm_sample().detach()
        self.optimizer.zero_grad(set_to_none=True)
        finite = torch.isfinite(norms)
        if not bool(finite.all()):
            # 0 · NaN is NaN, so a record that is not finite must leave the batch. The result is that of
            # zeroing its gradient; only the time taken differs.
            self._ghost_gradients(x[finite], y[finite], weights[finite])
            return
        factors = weights * clip_factors(norms, self.max_grad_norm, normalise=self.normalise)
        self.model.disable_hooks()
        try:
            (losses * factors).sum().backward()
        finally:
            self.model.enable_hooks()


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


def _refuse_sequences(model: nn.Module) -> None:
    """Opacus' ghost norm of a linear layer on sequences cancels in float32 and can fall below the true norm."""

    def check(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].dim() > 2:
            raise UnsupportedModelError("ghost clipping is not exact for linear layers on sequences; use another mode")

    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(check)


class _BoundedClipping:
    """Our clipping for Opacus' optimizers: non-finite gradients become zero, norms never exceed C."""

    normalise = False
    views = 1
    example_weights: Tensor
    max_grad_norm: float
    params: list[nn.Parameter]
    _get_flat_grad_sample: Callable[[nn.Parameter], Tensor]

    def clip_and_accumulate(self) -> None:
        samples = [self._get_flat_grad_sample(p).to(p.dtype) for p in self.params]
        if self.views > 1:  # the mean over a record's views is one gradient, clipped as one
            samples = [g.reshape(-1, self.views, *g.shape[1:]).mean(dim=1) for g in samples]
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in samples], dim=1).norm(dim=1)
        factors = clip_factors(norms, self.max_grad_norm, normalise=self.normalise)
        if len(factors):
            factors = factors * self.example_weights
        for p, gradients in zip(self.params, samples, strict=True):
            if not bool(torch.isfinite(norms).all()):
                gradients = keep_rows(gradients, torch.isfinite(norms))
            total = torch.einsum("i,i...", factors, gradients)
            p.summed_grad = total if p.summed_grad is None else p.summed_grad + total  # type: ignore[attr-defined]


class _BoundedDPOptimizer(_BoundedClipping, DPOptimizer):
    pass


class _DistributedBoundedDPOptimizer(_BoundedClipping, DistributedDPOptimizer):
    pass


def _optimizer_class(mode: str, world: World) -> type[DPOptimizer]:
    if mode in _SUMMED:
        return DPOptimizerFastGradientClipping if world.size == 1 else DistributedDPOptimizerFastGradientClipping
    return _BoundedDPOptimizer if world.size == 1 else _DistributedBoundedDPOptimizer


def _pieces(size: int, piece: int) -> Iterator[slice]:
    """Slices that cover a batch; one empty slice for an empty batch."""
    for start in range(0, max(size, 1), piece):
        yield slice(start, min(start + piece, size))
