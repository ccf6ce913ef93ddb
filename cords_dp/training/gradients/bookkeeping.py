"""One forward and one backward pass for clipped sums: the "book-keeping" mode (Bu et al. 2023).

While the model runs, each use of a trainable weight by ``linear``, ``conv1d``, ``conv2d``, ``group_norm``,
``layer_norm``, ``instance_norm`` or ``embedding`` is replaced by one that computes the same and, in the backward pass,
passes on the gradient of its input and writes down what its weight's gradient is made of (`contributions`). A layer
of the user's own is recorded by the rule that was registered for it (`register_layer_rule`). Autograd computes no
weight's gradient. Uses are found by the weight, not by the layer, so a weight that is used twice, in layers that share
it or in steps of a recurrent net, has all its uses added up before they are measured.

Formal guarantee
----------------
What is summed is what was measured: the sum is formed from the numbers that were written down, and from nothing else
(`contributions` has the bound and its proof). Autograd cannot add to it. A weight that is used in any other way is a
leaf of the losses' graph, and every step looks for such leaves and stops. Inputs that change between both passes are
noticed by autograd's own check. As in every mode, record i is what enters and leaves layers in row i: a model that
mixes rows is refused by `choose`, and layers that are given another number of rows than there are records stop the
step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from cords_dp.errors import MechanismError, UnsupportedModelError
from cords_dp.training.gradients.contributions import (
    SUM_SLACK,
    Geometry,
    GradientRows,
    Images,
    Part,
    Positions,
    Use,
    Words,
    part_of,
    refuse_short_products,
)
from cords_dp.training.gradients.mode import Clipping, GradientMode, LossPerExample, Piece
from cords_dp.training.gradients.owners import Rows, bundles, clipped_owner_sums


class Bookkeeping(GradientMode):
    """Clipped sums from what one backward pass has written down."""

    name = "bookkeeping"
    rank = 1  # no other is faster by much on any model that was tried, so no stopwatch is needed
    extra_slack = SUM_SLACK
    sums_owners = True

    def clipped_sums(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        criterion: LossPerExample,
        piece: Piece,
        clipping: Clipping,
    ) -> list[Tensor]:
        def losses_of(model: nn.Module) -> Tensor:
            return criterion(model(piece.x), piece.y)

        parts = recorded(model, parameters, losses_of, records=piece.records, views=piece.views)
        if piece.owners is not None:
            sums = [p.new_zeros(p.shape, dtype=torch.float64) for p in parameters]
            for bundle in bundles(Rows.of(piece.owners), piece.weights):
                for total, more in zip(
                    sums, clipped_owner_sums(parts, bundle, clipping, parameters[0].dtype), strict=True
                ):
                    total += more.view_as(total)
            return sums
        norms = torch.linalg.vector_norm(torch.stack([part.lengths() for part in parts], dim=1), dim=1)
        factors = clipping.factors(norms, piece.weights, parameters[0].dtype)
        finite = torch.isfinite(norms)
        kept = None if bool(finite.all()) else finite
        return [part.clipped_sum(factors, kept).view_as(p) for p, part in zip(parameters, parts, strict=True)]


class Book:
    """The uses of the weights by one piece of a batch. ``views`` rows in a row belong to one record."""

    def __init__(self, parameters: Sequence[nn.Parameter], records: int, views: int, device: torch.device):
        self.records, self.rows = records, records * views
        self.parts: dict[nn.Parameter, Part] = {}
        self.token = torch.zeros((), device=device, requires_grad=True)  # lets autograd come by where inputs need none
        self._parameters = set(parameters)
        self._expected = dict.fromkeys(parameters, 0)
        self._uses: dict[nn.Parameter, list[Use]] = {p: [] for p in parameters}
        self._open = False
        self.outer: list[Tensor] = []  # the inputs of layers with a rule that are computing now

    def holds(self, weight: Any) -> bool:
        return isinstance(weight, nn.Parameter) and weight in self._parameters

    def expect(self, rows: Tensor, weights: Iterable[Tensor | None]) -> None:
        """Note that a use of these weights begins, on ``rows``."""
        if len(rows) != self.rows:
            raise UnsupportedModelError("a layer is given more or fewer rows than there are records; use another mode")
        for weight in weights:
            if isinstance(weight, nn.Parameter) and weight in self._expected:
                self._expected[weight] += 1

    def write(self, weight: Tensor | None, use: Callable[[], Use]) -> None:
        """Write down what the losses' gradient of a weight is made of, in one use."""
        if not isinstance(weight, nn.Parameter) or weight not in self._parameters:
            return
        if not self._open:
            raise UnsupportedModelError("the model takes gradients while it computes; use another mode")
        uses = self._uses[weight]
        uses.append(use())
        if len(uses) == self._expected[weight]:  # at once, so that large tensors can be dropped
            self._close(weight)

    def record(self, losses: Tensor) -> list[Part]:
        """Run the backward pass; return the parts of the weights, in their order."""
        if any(leaf in self._parameters for leaf in leaves_of(losses)):
            raise UnsupportedModelError("a weight is used in a way that is not written down; use another mode")
        self._open = True
        losses.sum().backward()
        self._open = False
        for weight in [p for p, uses in self._uses.items() if uses]:  # some uses had no part in the losses
            self._close(weight)
        return [self.parts.get(p) or GradientRows(p.new_zeros((self.records, *p.shape))) for p in self._expected]

    def _close(self, weight: nn.Parameter) -> None:
        self.parts[weight] = part_of(self._uses.pop(weight))
        self._uses[weight] = []


def recorded(
    model: nn.Module,
    parameters: Sequence[nn.Parameter],
    losses_of: Callable[[nn.Module], Tensor],
    *,
    records: int,
    views: int,
) -> list[Part]:
    """Return each weight's part of the records' gradients: the mean over a record's views of ``losses_of(model)``."""
    refuse_short_products(parameters[0].device.type)
    book = Book(parameters, records, views, parameters[0].device)
    with _ruled_layers(model, book), _Replaced(book):
        losses = losses_of(model)
    return book.record(losses / views)


class _Replaced(TorchFunctionMode):
    """Puts recorded uses in the place of those that torch knows."""

    def __init__(self, book: Book):
        super().__init__()
        self._book = book

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _LAYERS and torch.is_grad_enabled() and not self._book.outer:  # a layer with a rule has only that
            layer = _LAYERS[func](self._book, *args, **(kwargs or {}))
            if layer is not None:
                return layer()
        return func(*args, **(kwargs or {}))


def leaves_of(losses: Tensor) -> Iterator[Tensor]:
    """Yield the leaves of the autograd graph that take a gradient, once for each edge that leads to them."""
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


class _Layer:
    """One use of weights: how it computes, what it passes back, what it writes down."""

    def __init__(self, book: Book, x: Tensor, weight: Tensor, bias: Tensor | None):
        self.book, self.x, self.weight, self.bias = book, x, weight, bias

    @classmethod
    def fits(cls, book: Book, *weights: Tensor | None) -> bool:
        """Return whether every weight that takes a gradient here is one of the book's. Others are left to autograd.

        There the book's weights are found as leaves, and the step stops.
        """
        taking = [w for w in weights if w is not None and w.requires_grad]
        return bool(taking) and all(book.holds(w) for w in taking)

    def __call__(self) -> Tensor:
        self.book.expect(self.x, (self.weight, self.bias))
        x, self.x = self.x, None  # type: ignore[assignment]  # autograd keeps it, and drops it in time
        return _Recorded.apply(x, self.book.token, self)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the output, and what else the backward pass needs."""
        raise NotImplementedError

    def backward(self, g: Tensor, x: Tensor, kept: Sequence[Tensor]) -> Tensor:
        """Return the gradient of the input."""
        raise NotImplementedError

    def write(self, g: Tensor, x: Tensor, kept: Sequence[Tensor]) -> None:
        raise NotImplementedError

    def per_record(self, values: Tensor) -> Tensor:
        """Reshape (rows, …, numbers) to (records, positions, numbers)."""
        return values.reshape(self.book.records, -1, values.shape[-1])


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, layer: _Layer) -> Tensor:
        out, *kept = layer.forward(x)
        ctx.layer = layer
        ctx.save_for_backward(x, *kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None, None]:
        x, *kept = (saved.detach() for saved in ctx.saved_tensors)
        passed = ctx.layer.backward(g, x, kept) if ctx.needs_input_grad[0] else None
        ctx.layer.write(g, x, kept)
        return passed, None, None


# --- layers of users' own ---------------------------------------------------------------------------------------------

# (the layer, one record's input, the gradient of its loss at the layer's output) → its gradient of each weight, by name
LayerRule = Callable[[nn.Module, Tensor, Tensor], Mapping[str, Tensor]]
_RULES: dict[type[nn.Module], LayerRule] = {}


def register_layer_rule(
    kind: type[nn.Module], rule: LayerRule | None = None, *, force: bool = False
) -> Callable[[LayerRule], LayerRule] | LayerRule:
    """Let book-keeping train layers of this class, which use their weights in a way of their own.

    ``rule(layer, x, g)`` returns one record's gradient of each weight of the layer, by the weight's name: ``x`` is the
    record's input of the layer, ``g`` the gradient of its loss at the layer's output, both without the dimension of the
    batch. It is mapped over the records, so it cannot see two. May stand above a function as a decorator.

    Formal guarantee: what the rule returns is measured, clipped and summed as it is, so a wrong rule cannot lift a
    record's part of a step above the clip norm. It is tried against autograd before a run, and refused if it is wrong.
    """
    if rule is None:
        return lambda given: register_layer_rule(kind, given, force=force)  # type: ignore[return-value]
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise MechanismError("a layer rule is for a class of layers, a subclass of torch.nn.Module")
    if kind in _RULES and not force:
        raise MechanismError(f"there is a layer rule for {kind.__name__} already; pass force=True to replace it")
    _RULES[kind] = rule
    return rule


def unregister_layer_rule(kind: type[nn.Module]) -> None:
    """Forget a layer rule, for instance after a test."""
    _RULES.pop(kind, None)


@contextmanager
def _ruled_layers(model: nn.Module, book: Book) -> Iterator[None]:
    """Record the calls of layers that have a rule, by torch's hooks around a call.

    Such a layer computes on a copy of its input that autograd begins at, so that the losses' graph has none of its
    weights; its output then enters that graph as a recorded use.
    """

    def before(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        if len(inputs) != 1 or not isinstance(inputs[0], Tensor):
            raise UnsupportedModelError(f"{type(layer).__name__}: a layer rule is for layers of one input")
        book.outer.append(inputs[0])
        own = inputs[0].detach()
        return (own.requires_grad_() if own.is_floating_point() else own,)

    def after(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> Tensor:
        x = book.outer.pop()
        if not isinstance(output, Tensor):
            raise UnsupportedModelError(f"{type(layer).__name__}: a layer rule is for layers of one output")
        book.expect(x, layer.parameters())
        return _Ruled.apply(x, book.token, book, layer, (inputs[0], output))

    ruled = [layer for layer in model.modules() if type(layer) in _RULES]
    handles = [layer.register_forward_pre_hook(before) for layer in ruled]
    handles += [layer.register_forward_hook(after) for layer in ruled]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Ruled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, token: Tensor, book: Book, layer: nn.Module, computed: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Take ``computed``, the layer's own input and output: in a tuple, autograd does not follow them."""
        ctx.book, ctx.layer, ctx.computed = book, layer, computed
        ctx.save_for_backward(x)
        return computed[1].detach().clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors  # notices inputs that were written over
        own, output = ctx.computed
        passed = torch.autograd.grad(output, own, g)[0] if ctx.needs_input_grad[0] else None
        ctx.computed = None
        _write_by_rule(ctx.book, ctx.layer, x.detach(), g)
        return passed, None, None, None, None


def _write_by_rule(book: Book, layer: nn.Module, x: Tensor, g: Tensor) -> None:
    rule, kind = _RULES[type(layer)], type(layer).__name__
    found = torch.vmap(partial(rule, layer))(x, g)
    weights = {name: weight for name, weight in layer.named_parameters() if book.holds(weight)}
    if missing := set(weights) - set(found):
        raise UnsupportedModelError(f"the layer rule for {kind} leaves out weights: {sorted(missing)}")
    for name, weight in weights.items():
        rows = found[name].detach()
        if rows.shape[1:] != weight.shape:
            raise UnsupportedModelError(f"the layer rule for {kind} gives {name} another shape than the weight has")
        per_record = rows.to(weight.dtype).unflatten(0, (book.records, -1)).sum(dim=1)
        book.write(weight, lambda rows=per_record: GradientRows(rows))  # type: ignore[misc]


# --- torch's layers ---------------------------------------------------------------------------------------------------


class _Linear(_Layer):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (F.linear(x, self.weight, self.bias),)

    def backward(self, g: Tensor, x: Tensor, kept: Sequence[Tensor]) -> Tensor:
        return g @ self.weight

    def write(self, g: Tensor, x: Tensor, kept: Sequence[Tensor]) -> None:
        a, g = self.per_record(x), self.per_record(g)
        self.book.write(self.weight, lambda: Positions(a, g))
        self.book.write(self.bias, lambda: GradientRows(g[:, 0] if g.shape[1] == 1 else g.sum(dim=1)))


class _Convolution(_Layer):
    def __init__(self, book: Book, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry):
        super().__init__(book, x, weight, bias)
        self.geometry = geometry

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        g = self.geometry
        return (F.conv2d(x, self._filters(), self.bias, g.stride, g.padding, g.dilation, g.groups),)

    def backward(self, g: Tensor, x: Tensor, kept: Sequence[Tensor]) -> Tensor:
        of = self.geometry
        shape = (of.stride, of.padding, of.dilation, False, (0, 0), of.groups, (True, False, False))
        return torch.ops.aten.convolution_backward(g, x, self._filters(), None, *shape)[0]

    def write(self, g: Tensor, x: Tensor, kept: Sequence[Tensor]) -> None:
        book = self.book
        book.write(self.weight, lambda: Images(x, g.contiguous(), book.records, self.geometry))
        book.write(self.bias, lambda: GradientRows(self.per_record(g.sum(dim=(2, 3))).sum(dim=1)))

    def _filters(self) -> Tensor:
        return self.weight if self.weight.dim() == 4 else self.weight[:, :, None]


class _GroupNorm(_Layer):
    def __init__(self, book: Book, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, eps: float):
        super().__init__(book, x, weight, bias)
        self.groups, self.eps = groups, eps

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        n, channels = x.shape[:2]
        return torch.native_group_norm(
            x.contiguous(), self.weight, self.bias, n, channels, x[0, 0].numel(), self.groups, self.eps
        )

    def backward(self, g: Tensor, x: Tensor, kept: Sequence[Tensor]) -> Tensor:
        n, channels = x.shape[:2]
        shape = (n, channels, x[0, 0].numel(), self.groups, (True, False, False))
        return torch.ops.aten.native_group_norm_backward(g.contiguous(), x.contiguous(), *kept, self.weight, *shape)[0]

    def write(self, g: Tensor, x: Tensor, kept: Sequence[Tensor]) -> None:
        """Write down Σ g·(x − mean)·scale = (Σ g·x − mean · Σ g)·scale, which makes no more arrays of x's size."""
        x, g = x.flatten(2), g.flatten(2)
        sums = g.sum(dim=2)
        mean, scale = (part.repeat_interleave(x.shape[1] // self.groups, dim=1) for part in kept)

        def of_weight() -> GradientRows:
            return GradientRows(self.per_record((torch.linalg.vecdot(g, x) - mean * sums) * scale).sum(dim=1))

        self.book.write(self.weight, of_weight)
        self.book.write(self.bias, lambda: GradientRows(self.per_record(sums).sum(dim=1)))


class _LayerNorm(_Layer):
    def __init__(self, book: Book, x: Tensor, weight: Tensor, bias: Tensor | None, shape: Sequence[int], eps: float):
        super().__init__(book, x, weight, bias)
        self.shape, self.eps = list(shape), eps

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return torch.native_layer_norm(x, self.shape, self.weight, self.bias, self.eps)

    def backward(self, g: Tensor, x: Tensor, kept: Sequence[Tensor]) -> Tensor:
        mask = (True, False, False)
        return torch.ops.aten.native_layer_norm_backward(g, x, self.shape, *kept, self.weight, self.bias, mask)[0]

    def write(self, g: Tensor, x: Tensor, kept: Sequence[Tensor]) -> None:
        mean, scale = kept
        self.book.write(self.weight, lambda: GradientRows(self._summed(g * ((x - mean) * scale))))
        self.book.write(self.bias, lambda: GradientRows(self._summed(g)))

    def _summed(self, values: Tensor) -> Tensor:
        """Sum over all positions of each record, in the shape of the weights."""
        return values.reshape(self.book.records, -1, *self.shape).sum(dim=1)


class _Embedding(_Layer):
    def __init__(self, book: Book, x: Tensor, weight: Tensor, padding: int | None):
        super().__init__(book, x, weight, None)
        self.padding = padding

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (F.embedding(x, self.weight),)

    def write(self, g: Tensor, x: Tensor, kept: Sequence[Tensor]) -> None:
        words = x.reshape(self.book.records, -1)
        g = self.per_record(g)
        if self.padding is not None:
            g = g.masked_fill((words == self.padding % len(self.weight))[:, :, None], 0.0)
        self.book.write(self.weight, lambda: Words(words, g, len(self.weight)))


# --- torch's functions, with their own names of arguments -----------------------------------------------------------

# None: left to autograd, which must then find no weight of the book
_LAYERS: dict[Any, Callable[..., Callable[[], Tensor] | None]] = {}
_Use = TypeVar("_Use", bound=Callable[..., Callable[[], Tensor] | None])


def _layer_of(function: Any) -> Callable[[_Use], _Use]:
    """Let what follows record the uses of weights by a function of torch's."""

    def register(layer: _Use) -> _Use:
        _LAYERS[function] = layer
        return layer

    return register


@_layer_of(F.linear)
def _linear(book: Book, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> _Layer | None:
    return _Linear(book, input, weight, bias) if _Layer.fits(book, weight, bias) and weight.dim() == 2 else None


@_layer_of(F.conv2d)
def _conv(
    book: Book,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> _Layer | None:
    if not _Layer.fits(book, weight, bias) or input.dim() != 4:
        return None
    stride, dilation = _pair(stride), _pair(dilation)
    kernel = (weight.shape[-2] if weight.dim() == 4 else 1, weight.shape[-1])
    if padding == "valid":
        padding = 0
    elif padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        left = [t // 2 for t in total]
        if any(t % 2 for t in total):  # torch puts what is left over on the right
            input = F.pad(input, [left[1], total[1] - left[1], left[0], total[0] - left[0]])
            left = [0, 0]
        padding = left
    return _Convolution(book, input, weight, bias, Geometry(kernel, stride, _pair(padding), dilation, groups))


def _pair(value: Any) -> tuple[int, int]:
    values = [value] if isinstance(value, int) else list(value)
    return (values[0], values[-1])


class _Flat:
    """A convolution over one dimension, as one over images of height 1."""

    def __init__(self, layer: _Layer):
        self._layer = layer

    def __call__(self) -> Tensor:
        return self._layer().squeeze(2)


@_layer_of(F.conv1d)
def _conv1d(
    book: Book,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> _Flat | None:
    if input.dim() != 3:
        return None
    stride, dilation = (1, _pair(stride)[0]), (1, _pair(dilation)[0])
    padding = padding if isinstance(padding, str) else (0, _pair(padding)[0])
    layer = _conv(book, input[:, :, None], weight, bias, stride, padding, dilation, groups)
    return None if layer is None else _Flat(layer)


@_layer_of(F.group_norm)
def _group_norm(
    book: Book,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> _Layer | None:
    if weight is None or not _Layer.fits(book, weight, bias):
        return None
    return _GroupNorm(book, input, weight, bias, num_groups, eps)


@_layer_of(F.instance_norm)
def _instance_norm(
    book: Book,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> _Layer | None:
    """Treat each channel as a group; running statistics would carry records past the noise."""
    if running_mean is not None or running_var is not None or not use_input_stats:
        return None
    return _group_norm(book, input, input.shape[1], weight, bias, eps)


@_layer_of(F.layer_norm)
def _layer_norm(
    book: Book,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> _Layer | None:
    if weight is None or not _Layer.fits(book, weight, bias) or input.dim() <= len(normalized_shape):
        return None
    return _LayerNorm(book, input, weight, bias, normalized_shape, eps)


@_layer_of(F.embedding)
def _embedding(
    book: Book,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> _Layer | None:
    if max_norm is not None or scale_grad_by_freq or sparse or not _Layer.fits(book, weight):
        return None
    return _Embedding(book, input, weight, padding_idx)
