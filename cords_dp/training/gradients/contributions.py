"""How long each record's gradient of one weight is, and the clipped sum of all records': from what a layer was given.

A layer that is linear in its weight has, for record i, the gradient ``G_i = Σ_t g_it ⊗ a_it``: ``a`` is its input and
``g`` the gradient of the losses at its output, over the positions t of a sequence, an image or several calls. There are
two ways to what clipping needs, and `part_of` takes the cheaper one.

- *rows*: form every G_i, measure it, keep it, and sum f_i·G_i;
- *pairs*: measure by ``‖G_i‖² = Σ_ts ⟨a_it, a_is⟩⟨g_it, g_is⟩`` and sum ``Σ_it (f_i·g_it) ⊗ a_it``: G_i never exists.

Formal guarantee
----------------
`lengths` are upper bounds of the norm of what `clipped_sum` adds for a record with factor 1, for the numbers as they
are in memory, up to the relative `clipping.rounding_slack` that the caller leaves. The sum is formed from the very
numbers that were measured. A record whose length is not finite adds nothing.

Rows: the norm is `row_norms` of the row that is summed. Pairs, with u = 2⁻⁵³: an inner product over D numbers in
float64 errs by at most (D + 1)·u·‖a_t‖‖a_s‖, whatever the order; with the inner products of g over p numbers, their
product and the sum over T² pairs the squared norm errs by at most (D + p + T² + 4)·u·(Σ_t ‖a_t‖‖g_t‖)², up to terms in
u², and Σ_t ‖a_t‖‖g_t‖ ≤ ‖a‖‖g‖. Twice that is added (`_SQUARE`), and e = 0.51·(T + 1)·eps·‖a‖‖g‖ besides, eps being
float32's: what the sum over t would err by in float32. It keeps a record whose terms cancel (‖G‖ far below ‖a‖‖g‖) from
being scaled up to C together with rounding errors; other records' factors become smaller by about
T·6·10⁻⁸·‖a‖‖g‖/‖G‖.

With several positions sums over records are formed in float64, by blocks of at most m = `_SUM_BLOCK` records, so that
one record changes the rounding of its own block alone; the sums of blocks are counted by `clipping.sum_slack`. In a
block no number passes through more than m·T + 2 operations, so it errs by at most (m·T + 2)·u·Σ_i f_i‖a_i‖‖g_i‖, with
the record and without. A clipped record has f_i·e_i ≤ C over all weights together, and (m·T + 2)/(T + 1) ≤ m + 1, so
both errors together are at most 2·(m + 1)·m·u/(0.51·eps)·C: `SUM_SLACK`. It holds for sums in any order, which matrix
products in full precision are; `refuse_short_products` refuses TF32 and bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from cords_dp.errors import MechanismError
from cords_dp.noise.clipping import SUM_BLOCK, float64_sum, keep_rows, row_norms

_SQUARE = torch.finfo(torch.float64).eps  # 2u
_EPS = torch.finfo(torch.float32).eps
_SUM_BLOCK = 16  # records of several positions each
SUM_SLACK = 1.01 * 2 * (_SUM_BLOCK + 1) * _SUM_BLOCK * 2.0**-53 / (0.51 * _EPS)  # see the module's guarantee: 1e-6
_HUGE = 1e20  # inputs beyond it would push f·g among float32's smallest numbers, where rounding is no longer relative
_TILE = 1 << 20  # numbers formed at a time where a layer's inputs are unfolded
_MOST_ROWS = 2.0  # rows are kept where they take at most so many times the memory of what the layer was given
_PASS = 120.0  # multiplications that take as long as writing, measuring and summing one number of a row
_DOUBLE = 2.0  # a float64 multiplication in float32 ones
_SHIFT = 20.0  # the same for adding one number of a shifted Gram matrix


@dataclass(frozen=True)
class GradientRows:
    """Every record's gradient of one weight."""

    rows: Tensor

    def lengths(self) -> Tensor:
        return row_norms(self.rows)

    def clipped_sum(self, factors: Tensor, finite: Tensor | None) -> Tensor:
        """Return Σ f_i·G_i. ``finite``: which records count, where not all do."""
        rows = self.rows if finite is None else keep_rows(self.rows, finite)
        return float64_sum(factors[:, None], rows)


class Positions:
    """Inputs and output gradients of a linear layer: ``a`` of shape (records, T, D), ``g`` of (records, T, p)."""

    def __init__(self, a: Tensor, g: Tensor):
        self.a, self.g = a, g

    @classmethod
    def joined(cls, uses: Sequence[Positions]) -> Positions:
        """Join several calls of one layer, as more positions."""
        if len(uses) == 1:
            return uses[0]
        return cls(torch.cat([use.a for use in uses], dim=1), torch.cat([use.g for use in uses], dim=1))

    def rows_are_cheaper(self) -> bool:
        (_, t, d), p = self.a.shape, self.g.shape[2]
        return d * p <= _MOST_ROWS * t * (d + p) and _PASS * d * p < _DOUBLE * t * t * (d + p)

    def rows(self) -> Tensor:
        return torch.bmm(self.g.transpose(1, 2), self.a)

    def lengths(self) -> Tensor:
        if self.a.shape[1] == 1:  # one product: nothing is added up, nothing can cancel
            a, g = row_norms(self.a), row_norms(self.g)
            return torch.where(a < _HUGE, a * g, math.inf)
        terms = self.a.shape[2] + self.g.shape[2]
        return _lengths(len(self.a), self.a.shape[1], terms, self._grams, self.a.shape[1:].numel(), self.g.dtype)

    def _grams(self, part: slice) -> tuple[Tensor, Tensor]:
        a, g = self.a[part].double(), self.g[part].double()
        return torch.bmm(a, a.transpose(1, 2)), torch.bmm(g, g.transpose(1, 2))

    def clipped_sum(self, factors: Tensor, finite: Tensor | None) -> Tensor:
        a, g = _kept(self.a, self.g, finite)
        total = torch.zeros(g.shape[2], a.shape[2], dtype=torch.float64, device=g.device)
        for part in _blocks(len(a), self.a.shape[1:].numel() + self.g.shape[1:].numel(), positions=a.shape[1]):
            scaled = g[part].double() * factors[part].double()[:, None, None]
            total.addmm_(scaled.flatten(0, 1).T, a[part].double().flatten(0, 1))
        return total


class Words:
    """Words and output gradients of an embedding: ``words`` of shape (records, T), ``g`` of (records, T, d)."""

    def __init__(self, words: Tensor, g: Tensor, vocabulary: int):
        self.words, self.g, self.vocabulary = words, g, vocabulary

    @classmethod
    def joined(cls, uses: Sequence[Words]) -> Words:
        words, g = torch.cat([use.words for use in uses], dim=1), torch.cat([use.g for use in uses], dim=1)
        return cls(words, g, uses[0].vocabulary)

    def rows_are_cheaper(self) -> bool:
        return False

    def rows(self) -> Tensor:
        n, _, d = self.g.shape
        index = (self.words + self.vocabulary * torch.arange(n, device=self.words.device)[:, None]).flatten()
        return self._sum(index, self.g, n * self.vocabulary).view(n, self.vocabulary, d)

    def lengths(self) -> Tensor:
        n, t, d = self.g.shape
        return _lengths(n, t, d, self._grams, t * d, self.g.dtype)

    def _grams(self, part: slice) -> tuple[Tensor, Tensor]:
        words, g = self.words[part], self.g[part].double()
        return (words[:, :, None] == words[:, None, :]).double(), torch.bmm(g, g.transpose(1, 2))

    def clipped_sum(self, factors: Tensor, finite: Tensor | None) -> Tensor:
        g = self.g if finite is None else keep_rows(self.g, finite)
        total = torch.zeros(self.vocabulary, g.shape[2], dtype=torch.float64, device=g.device)
        for part in _blocks(len(g), self.g.shape[1:].numel()):
            scaled = g[part].double() * factors[part].double()[:, None, None]
            words, place = self.words[part].unique(return_inverse=True)
            total.index_add_(0, words, self._sum(place.flatten(), scaled, len(words)))  # one addition for each block
        return total

    @staticmethod
    def _sum(index: Tensor, g: Tensor, rows: int) -> Tensor:
        return g.new_zeros(rows, g.shape[2]).index_add_(0, index, g.flatten(0, 1))


@dataclass(frozen=True)
class Geometry:
    """Kernel, stride, padding, dilation and groups of a two-dimensional convolution."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def window(self, axis: int, offset: int, length: int) -> slice:
        """Return where, on one axis of the padded input, the kernel's element ``offset`` falls for each output."""
        start, step = offset * self.dilation[axis], self.stride[axis]
        return slice(start, start + step * (length - 1) + 1, step)


class Images:
    """Inputs and output gradients of a convolution, each of shape (records · views, channels, height, width)."""

    def __init__(self, a: Tensor, g: Tensor, records: int, geometry: Geometry):
        self.a, self.g, self.records, self.geometry = a, g, records, geometry
        self.views = len(a) // records if records else 1
        self.inputs = a.shape[1] // geometry.groups * math.prod(geometry.kernel)
        self.outputs = g.shape[1] // geometry.groups
        self.t = self.views * g.shape[2:].numel()

    def rows_are_cheaper(self) -> bool:
        groups, weights = self.geometry.groups, self.inputs * self.outputs * self.geometry.groups
        given = (self.a.numel() + self.g.numel()) / max(self.records, 1)
        pixels = self.views * math.prod(s + 2 * p for s, p in zip(self.a.shape[2:], self.geometry.padding, strict=True))
        grams = _DOUBLE * (pixels**2 * self.a.shape[1] + self.t**2 * self.g.shape[1])
        grams += _SHIFT * groups * math.prod(self.geometry.kernel) * self.t**2
        return weights <= _MOST_ROWS * given and _PASS * weights < grams

    def rows(self) -> Tensor:
        groups = self.geometry.groups
        rows = self.g.new_empty(self.records, groups, self.outputs, self.inputs)
        for part, patches in self._patches(lambda view: view):
            g = self._by_group(self._views(self.g, part).flatten(3))
            torch.matmul(g, patches.view(len(g), groups, self.inputs, self.t).transpose(2, 3), out=rows[part])
        return rows.flatten(1, 2)

    def lengths(self) -> Tensor:
        area = math.prod(s + 2 * p for s, p in zip(self.a.shape[2:], self.geometry.padding, strict=True))
        size = self.geometry.groups * (self.views * area) ** 2
        return _lengths(self.records, self.t, self.inputs + self.outputs, self._grams, size, self.g.dtype)

    def _grams(self, part: slice) -> tuple[Tensor, Tensor]:
        """Return ⟨a_t, a_s⟩ of patches: the sum, over the kernel's elements, of inner products of pixels."""
        kernel, groups = self.geometry, self.geometry.groups
        a = F.pad(self._views(self.a, part), [kernel.padding[1]] * 2 + [kernel.padding[0]] * 2).double()
        n, v, _, h, w = a.shape
        pixels = a.unflatten(2, (groups, -1)).permute(0, 2, 1, 4, 5, 3).reshape(n * groups, v * h * w, -1)
        inner = torch.bmm(pixels, pixels.transpose(1, 2)).view(n * groups, v, h, w, v, h, w)
        height, width = self.g.shape[2:]
        total: Tensor | None = None
        for y in range(kernel.kernel[0]):
            for x in range(kernel.kernel[1]):
                ys, xs = kernel.window(0, y, height), kernel.window(1, x, width)
                window = inner[:, :, ys, xs, :, ys, xs]
                total = window.clone() if total is None else total.add_(window)
        assert total is not None
        g = self._by_group(self._views(self.g, part).flatten(3)).double()
        g = g.reshape(n * groups, self.outputs, self.t)
        square = (n, groups, self.t, self.t)
        return total.reshape(square), torch.bmm(g.transpose(1, 2), g).view(square)

    def clipped_sum(self, factors: Tensor, finite: Tensor | None) -> Tensor:
        groups = self.geometry.groups
        total = torch.zeros(groups, self.outputs, self.inputs, dtype=torch.float64, device=self.g.device)
        factors = factors.double()
        for part, patches in self._patches(lambda view: view.permute(1, 2, 3, 4, 0, 5, 6, 7), finite, torch.float64):
            g = self._by_group(self._views(self.g, part).flatten(3))
            g = (g if finite is None else keep_rows(g, finite[part])).double() * factors[part, None, None, None]
            g = g.permute(1, 2, 0, 3).flatten(2)
            total.baddbmm_(g, patches.view(groups, self.inputs, -1).transpose(1, 2))
        return total.flatten(0, 1)

    def _patches(
        self, order: Callable[[Tensor], Tensor], finite: Tensor | None = None, dtype: torch.dtype | None = None
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield what the kernel sees at each position, some records at a time, in memory that is used again.

        ``order`` arranges (records, groups, channels, kernel's height and width, views, output's height and width).
        """
        kernel, memory = self.geometry, None
        height, width = self.g.shape[2:]
        for part in _blocks(self.records, kernel.groups * self.inputs * self.t):
            a = F.pad(self._views(self.a, part), [kernel.padding[1]] * 2 + [kernel.padding[0]] * 2)
            a = (a if finite is None else keep_rows(a, finite[part])).unflatten(2, (kernel.groups, -1))
            n, v, g, c, y, x = a.stride()
            shape = (len(a), *a.shape[2:4], *kernel.kernel, self.views, height, width)
            steps = (
                n,
                g,
                c,
                y * kernel.dilation[0],
                x * kernel.dilation[1],
                v,
                y * kernel.stride[0],
                x * kernel.stride[1],
            )
            view = order(a.as_strided(shape, steps, a.storage_offset()))
            if memory is None or memory.shape != view.shape:
                memory = torch.empty(view.shape, dtype=dtype or a.dtype, device=a.device)
            yield part, memory.copy_(view)

    def _views(self, images: Tensor, part: slice) -> Tensor:
        return images[part.start * self.views : part.stop * self.views].unflatten(0, (-1, self.views))

    def _by_group(self, images: Tensor) -> Tensor:
        """Reshape (records, views, groups · numbers, positions) to (records, groups, numbers, views · positions)."""
        return images.unflatten(2, (self.geometry.groups, -1)).permute(0, 2, 3, 1, 4).flatten(3)


Use = GradientRows | Positions | Words | Images
Part = Use


def part_of(uses: Sequence[Use]) -> Part:
    """Return one weight's part of every record's gradient, from all uses of the weight that the losses depend on."""
    kinds = {type(use) for use in uses}
    if kinds == {Positions}:
        use: Use = Positions.joined(uses)  # type: ignore[arg-type]
    elif kinds == {Words}:
        use = Words.joined(uses)  # type: ignore[arg-type]
    elif len(uses) == 1:
        use = uses[0]
    else:  # calls of several kinds, whose gradients are added before they are measured
        return GradientRows(sum((_rows_of(use).flatten(1) for use in uses[1:]), _rows_of(uses[0]).flatten(1)))
    return GradientRows(use.rows()) if not isinstance(use, GradientRows) and use.rows_are_cheaper() else use


def refuse_short_products(device: str) -> None:
    """Raise where matrix products round more than their type does."""
    if torch.get_float32_matmul_precision() != "highest" or torch.is_autocast_enabled(device):
        raise MechanismError("book-keeping sums gradients in full precision: leave autocast and short matmuls off")


def _rows_of(use: Use) -> Tensor:
    return use.rows if isinstance(use, GradientRows) else use.rows()


def _kept(a: Tensor, g: Tensor, finite: Tensor | None) -> tuple[Tensor, Tensor]:
    return (a, g) if finite is None else (keep_rows(a, finite), keep_rows(g, finite))


def _parts(records: int, size: int) -> Iterator[slice]:
    """Yield slices of records with about ``_TILE`` numbers, ``size`` for each record."""
    step = max(1, _TILE // max(size, 1))
    for start in range(0, records, step):
        yield slice(start, min(start + step, records))


def _blocks(records: int, size: int, positions: int = 2) -> Iterator[slice]:
    """Return slices of at most `_SUM_BLOCK` records; with one position each as many as `float64_sum` takes."""
    return _parts(records, max(size, _TILE // (_SUM_BLOCK if positions > 1 else SUM_BLOCK)))


def _lengths(
    records: int,
    t: int,
    terms: int,
    grams: Callable[[slice], tuple[Tensor, Tensor]],
    size: int,
    dtype: torch.dtype,
) -> Tensor:
    """Bound the norms from above by both Gram matrices: see the module's guarantee."""
    bounds = []
    for part in _parts(records, 4 * max(size, t * t)):  # several float64 arrays of that size
        of_a, of_g = grams(part)
        squares = (of_a * of_g).flatten(1).sum(dim=1)
        a, g = (gram.diagonal(dim1=-2, dim2=-1).flatten(1).sum(dim=1) for gram in (of_a, of_g))
        rounding = (terms + t * t + 4) * _SQUARE * a * g
        short = 0.51 * (t + 1) * _EPS * (a * g).sqrt()
        bound = (squares.clamp_min(0) + rounding).sqrt() + short
        bounds.append(torch.where(a < _HUGE**2, bound, math.inf))
    return torch.cat(bounds)
