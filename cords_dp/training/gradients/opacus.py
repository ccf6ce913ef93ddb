"""Opacus' ways to per-example gradients, with our clipping and our sums.

``hooks``, ``ew`` and ``functorch`` leave every record's gradient in ``p.grad_sample``. Opacus would clip by float32
norms and add up in float32; here norms and sums are float64.

``ghost`` finds each record's norm layer by layer in one backward pass and lets a second pass sum the scaled losses.
What is summed is autograd's true gradient, while the norms know only of what layers did when they were *called*: a
weight that is used once more, by ``F.linear`` for instance, would be summed and not measured. So each weight has to
enter the graph of the losses in one place, which every step checks. The two passes round differently and the sum is
autograd's, in float32: no bound is proved, and the mode is taken only where the config names it.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping, prepare_module
from opacus.grad_sample.functorch import ft_compute_per_sample_gradient
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cords_dp.errors import UnsupportedModelError
from cords_dp.noise.clipping import float64_sum, keep_rows, row_norms
from cords_dp.training.gradients.bookkeeping import leaves_of
from cords_dp.training.gradients.mode import Clipping, GradientMode, LossPerExample, Piece
from cords_dp.training.gradients.owners import Rows, bundles

Norms = dict[Tensor, Tensor]
_OPACUS_SAMPLERS = GradSampleModuleFastGradientClipping.NORM_SAMPLERS


class _PerExample(GradientMode):
    """Every record's gradient, as Opacus computes it, clipped and summed here.

    Formal guarantee: a record's part of the sum has norm at most C. It is the very gradient that was measured, times a
    factor that was rounded down; sums are in float64. A gradient that is not finite becomes zero.
    """

    strict = True
    sums_owners = True

    def prepare(self, model: nn.Module) -> nn.Module:
        options = {"strict": True} if self.strict else {}
        with _unsupported(model, self.name):
            return prepare_module(model, grad_sample_mode=self.name, loss_reduction="sum", **options)

    def clipped_sums(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        criterion: LossPerExample,
        piece: Piece,
        clipping: Clipping,
    ) -> list[Tensor]:
        _forget_gradients(parameters)
        with _OutOfPlace():
            outputs = model(piece.x)
        criterion(outputs, piece.y).sum().backward()
        try:
            gradients = [_gradients_of(p, piece) for p in parameters]
            if piece.owners is not None:
                return _clipped_owner_sums(gradients, piece.owners, piece.weights, clipping)
            return _clipped_sums(gradients, piece.weights, clipping)
        finally:
            _forget_gradients(parameters)


def _gradients_of(p: nn.Parameter, piece: Piece) -> Tensor:
    """Return each record's gradient of one weight; the mean over a record's views is one gradient."""
    gradients = getattr(p, "grad_sample", None)
    if isinstance(gradients, list):
        gradients = torch.cat(gradients)
    if gradients is None or len(gradients) != piece.records * piece.views:
        raise UnsupportedModelError("the model gives more or fewer gradients than there are records")
    gradients = gradients.detach().to(p.dtype)
    if piece.views > 1:
        gradients = gradients.unflatten(0, (-1, piece.views)).mean(dim=1)
    return gradients


def _clipped_sums(gradients: list[Tensor], weights: Tensor, clipping: Clipping) -> list[Tensor]:
    norms = torch.linalg.vector_norm(torch.stack([row_norms(g) for g in gradients], dim=1), dim=1)
    finite = torch.isfinite(norms)
    if not bool(finite.all()):
        gradients = [keep_rows(g, finite) for g in gradients]
    return [float64_sum(clipping.factors(norms, weights, g.dtype)[:, None], g).view(g.shape[1:]) for g in gradients]


def _clipped_owner_sums(gradients: list[Tensor], owners: Tensor, weights: Tensor, clipping: Clipping) -> list[Tensor]:
    sums = [g.new_zeros(g.shape[1:], dtype=torch.float64) for g in gradients]
    for bundle in bundles(Rows.of(owners), weights):
        of_owners = [bundle.sums(g) for g in gradients]
        parts = _clipped_sums(of_owners, weights.new_ones(len(bundle.places)), clipping)
        for total, part in zip(sums, parts, strict=True):
            total += part
    return sums


def _forget_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Drop single records' gradients: they must neither stay with the model nor be added to the next piece's."""
    for p in parameters:
        p.grad_sample = p.grad = None  # type: ignore[attr-defined]


class Hooks(_PerExample):
    """Opacus' backward hooks."""

    name = "hooks"
    rank = 2


class ExpandedWeights(_PerExample):
    """torch's expanded weights, through Opacus."""

    name = "ew"
    rank = 2
    strict = False


class Functorch(_PerExample):
    """torch's vmap over records, through Opacus. It imports torch's compiler, which takes longer than a short run."""

    name = "functorch"
    rank = 3


class GhostClipping(GradientMode):
    """Ghost clipping with norms in float64. Formal guarantee: none that is proved; see the module."""

    name = "ghost"
    rank = 4
    proved = False
    averages_views = False
    extra_slack = 1e-4  # what is left for two passes that round differently

    def prepare(self, model: nn.Module) -> nn.Module:
        with _unsupported(model, self.name):
            return GhostModule(model, loss_reduction="sum", strict=True)

    def clipped_sums(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        criterion: LossPerExample,
        piece: Piece,
        clipping: Clipping,
    ) -> list[Tensor]:
        assert isinstance(model, GhostModule)
        if not piece.records:  # all that there were are not finite
            return [p.new_zeros(p.shape, dtype=torch.float64) for p in parameters]
        with _OutOfPlace():
            outputs = model(piece.x)
        losses = criterion(outputs, piece.y)
        refuse_weights_used_twice(losses, parameters)
        losses.sum().backward(retain_graph=True)
        norms = model.get_norm_sample().detach()
        model.forget_norms()
        _forget_gradients(parameters)
        finite = torch.isfinite(norms)
        if not bool(finite.all()):
            # 0 · NaN is NaN, so a record that is not finite must leave the batch. The result is that of
            # zeroing its gradient; only the time taken differs.
            kept = Piece(piece.x[finite], piece.y[finite], piece.weights[finite])
            return self.clipped_sums(model, parameters, criterion, kept, clipping)
        factors = clipping.factors(norms, piece.weights, losses.dtype)
        model.disable_hooks()
        try:
            (losses * factors).sum().backward()
            return [p.grad.double() for p in parameters]  # type: ignore[union-attr]
        finally:
            model.enable_hooks()
            _forget_gradients(parameters)


class _Float64Norms(dict[type, Any]):
    """Opacus' table of norm samplers, with an entry for every kind of layer.

    With an entry for each kind Opacus also refuses every layer that is called twice, not only linear ones.
    """

    def __contains__(self, kind: object) -> bool:
        return True

    def __getitem__(self, kind: type) -> Callable[[nn.Module, list[Tensor], Tensor], Norms]:
        if kind is nn.Linear:
            return _linear_norms
        if kind in _OPACUS_SAMPLERS:
            sampler = _OPACUS_SAMPLERS[kind]
            return lambda layer, activations, backprops: sampler(layer, activations, backprops.double())
        return _explicit_norms


class GhostModule(GradSampleModuleFastGradientClipping):
    """Opacus' wrapper for ghost clipping, with our norms."""

    NORM_SAMPLERS = _Float64Norms()

    def forget_norms(self) -> None:
        """Drop the last norms: exact norms must not travel with the model, nor stand in for those of a later piece."""
        for p in self.parameters():
            p.__dict__.pop("_norm_sample", None)


def _linear_norms(layer: nn.Module, activations: list[Tensor], backprops: Tensor) -> Norms:
    """Return the norms of the examples' gradients r ⊗ [a; 1]."""
    if backprops.dim() != 2:
        raise UnsupportedModelError("ghost clipping is not exact for linear layers on sequences; use another mode")
    assert isinstance(layer, nn.Linear)
    r, a = row_norms(backprops), row_norms(activations[0])
    return {layer.weight: r * a} if layer.bias is None else {layer.weight: r * a, layer.bias: r}


def _explicit_norms(layer: nn.Module, activations: list[Tensor], backprops: Tensor) -> Norms:
    """Return the norms of one layer's gradients, which are formed for it and dropped again."""
    sampler = GhostModule.GRAD_SAMPLERS.get(type(layer), ft_compute_per_sample_gradient)
    return {p: row_norms(g) for p, g in sampler(layer, activations, backprops).items()}


def refuse_weights_used_twice(losses: Tensor, parameters: Iterable[nn.Parameter]) -> None:
    """Raise unless each weight enters the graph of the losses in one place."""
    uses = _uses(losses)
    if any(uses[id(p)] != 1 for p in parameters):
        raise UnsupportedModelError("ghost clipping needs models that use each weight once; use another mode")


def _uses(losses: Tensor) -> Counter[int]:
    """Count the edges of the autograd graph that lead to each leaf."""
    return Counter(map(id, leaves_of(losses)))


class _OutOfPlace(TorchFunctionMode):
    """Turns ``out += shortcut`` and ``inplace=True`` inside a model into ordinary operations of the same value.

    CORDS' ResNets and others write over the outputs of layers, which backward hooks forbid. ``a += b`` rebinds ``a`` to
    whatever is returned, so returning a new tensor is the same to the model. A model that calls ``a.add_(b)`` and goes
    on with ``a`` would compute something else; `choose.choose_mode` compares with the model as it is and refuses it.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {**(kwargs or {})}
        if kwargs.get("inplace"):
            kwargs["inplace"] = False
        return (torch.add if func is torch.Tensor.add_ else func)(*args, **kwargs)


@contextlib.contextmanager
def _unsupported(model: nn.Module, mode: str) -> Iterator[None]:
    """Turn Opacus' refusals into ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except (NotImplementedError, ValueError) as error:
            raise UnsupportedModelError(f"{type(model).__name__} in mode {mode}: {error}") from error
