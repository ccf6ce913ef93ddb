"""Ghost clipping with norms in float64, on models that it is right for.

Ghost clipping finds each example's norm layer by layer in one backward pass and lets a second pass sum the scaled
losses. What is summed is autograd's true gradient, while the norms know only of what layers did when they were
*called*: a weight that is used once more, by ``F.linear`` for instance, would be summed and not measured. So each
weight has to enter the graph of the losses in one place, which every step checks. Opacus' own norms are float32; here
they are float64.

Formal guarantee: none that is proved. The two passes round differently, and `TWO_PASSES` leaves room for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from cords_dp.errors import UnsupportedModelError
from cords_dp.mechanisms.clipping import row_norms
from cords_dp.opacus_parts import GradSampleModuleFastGradientClipping, ft_compute_per_sample_gradient

Norms = dict[Tensor, Tensor]
_OPACUS_SAMPLERS = GradSampleModuleFastGradientClipping.NORM_SAMPLERS

# The sum comes from another backward pass than the norms, rounded otherwise. Nothing proves how far apart they can be;
# this is what is left for it, and `modes` refuses ghost clipping where made-up records need more.
TWO_PASSES = 1e-4


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
    """An example's gradient is r ⊗ [a; 1]."""
    if backprops.dim() != 2:
        raise UnsupportedModelError("ghost clipping is not exact for linear layers on sequences; use another mode")
    assert isinstance(layer, nn.Linear)
    r, a = row_norms(backprops), row_norms(activations[0])
    return {layer.weight: r * a} if layer.bias is None else {layer.weight: r * a, layer.bias: r}


def _explicit_norms(layer: nn.Module, activations: list[Tensor], backprops: Tensor) -> Norms:
    """Norms of one layer's gradients, which are formed for it and dropped again."""
    sampler = GhostModule.GRAD_SAMPLERS.get(type(layer), ft_compute_per_sample_gradient)
    return {p: row_norms(g) for p, g in sampler(layer, activations, backprops).items()}


def refuse_weights_used_twice(losses: Tensor, parameters: Iterable[nn.Parameter]) -> None:
    """Raise unless each weight enters the graph of the losses in one place."""
    uses = _uses(losses)
    if any(uses[id(p)] != 1 for p in parameters):
        raise UnsupportedModelError("ghost clipping needs models that use each weight once; use another mode")


def _uses(losses: Tensor) -> Counter[int]:
    """How many edges of the autograd graph lead to each leaf."""
    return Counter(map(id, leaves_of(losses)))


def leaves_of(losses: Tensor) -> Iterator[Tensor]:
    """Leaves of the autograd graph that take a gradient, once for each edge that leads to them."""
    seen = {losses.grad_fn}
    waiting = [losses.grad_fn]
    while waiting:
        node = waiting.pop()
        for following, _ in node.next_functions if node is not None else ():
            if following is None:
                continue
            if (leaf := getattr(following, "variable", None)) is not None:
                yield leaf
            elif following not in seen:
                seen.add(following)
                waiting.append(following)
