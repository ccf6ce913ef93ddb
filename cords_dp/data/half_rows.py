"""Products with rows of half-precision numbers that are read where they lie and never converted as a whole.

A linear head on stored features does two things with a batch: a product with the weights and a weighted sum of rows.
Both are bounded by how fast memory can be read. Libraries gather the rows, convert them, measure their lengths and
multiply, each time through memory; here a piece of a row is converted in the nearest cache and used at once. That is
two to five times as fast as `HalfRows.products_by_torch` and `weighted_sum_by_torch`, which serve where numba is
missing.

Formal guarantee: the length that is given for a row is never less than the length of the stored numbers, and at most
0.002 % more: half-precision numbers and their squares are exact in float32, sums of 512 of them err by 512 · 2⁻²⁴ at
most, which is added, and those sums are added in float64. A row that holds NaN or infinity has infinite length, and
NaN for products. A weighted sum of B rows is in float64 throughout: with float32 weights every product is exact (24 and
11 digits of 53), and no number passes through more than 256 + B/256 + threads additions (and one for the block that is
not full), each of which errs by 2⁻⁵³. So the sum errs by at most `sum_error(B)` of the sum of the sizes of its parts,
whichever rows are left out or however they fall into blocks. In float32 it was 66 · 2⁻²⁴, which times thousands of
records that pull in one direction was more than clipping leaves room for.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

try:
    from numba import njit
except ImportError:  # the versions by torch serve, several times slower
    njit = None  # type: ignore[assignment]

_COLUMNS = 512  # of the weights of ten classes, as many as the nearest cache holds
_ROWS = 64  # that go over such a piece of the weights before the next one
_SUMMED_COLUMNS = 384  # of ten sums in float64, as many as the nearest cache holds
_SUMMED_ROWS = 256  # that are added up in that cache before their sum goes out to memory
_MOST_THREADS = 1024
_GROUP = 5  # classes at a time: with two or four rows beside them all sums stay in registers
_NOT_FINITE = np.float32(2.0**16)  # what infinity and NaN become at least; finite halves are below
_TOO_LARGE = np.float32(2.0**32)
_ROUNDING = 1 + 1.01 * _COLUMNS * 2.0**-24  # of a sum of so many exact squares in float32, in whatever order
_SCALE = np.float32(2.0**112)  # what a half's bits are short of as a float32's
_ZERO = np.float32(0)
_MIN_WORK = 1 << 19  # numbers for which a second thread pays

_compiled: Callable[[Any], Any] = (
    (lambda function: function)
    if njit is None
    else njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz", "arcp"}, error_model="numpy")
)


class HalfRows:
    """``values[rows]``, a matrix in half precision of which nothing is copied."""

    def __init__(self, values: Tensor, rows: Tensor | None = None):
        flat = values.flatten(1)
        if flat.dtype != torch.float16 or flat.device.type != "cpu" or not flat.is_contiguous():
            raise TypeError("rows must be half-precision numbers in one piece of this machine's memory")
        self._bits = flat.view(torch.int16).numpy().view(np.uint16)
        self._rows = np.arange(len(flat)) if rows is None else rows.numpy()
        self.shape = (len(self._rows), flat.shape[1])

    def __len__(self) -> int:
        return len(self._rows)

    def at(self, index: Tensor) -> HalfRows:
        """Return some of the rows."""
        chosen = copy.copy(self)
        chosen._rows = self._rows[index.numpy()]
        chosen.shape = (len(chosen._rows), self.shape[1])
        return chosen

    def gathered(self) -> Tensor:
        """Copy the rows into memory of their own. Torch's threads would go on spinning beside ours for a while."""
        if njit is None:
            return torch.from_numpy(self._bits.view(np.float16)[self._rows])
        result = np.empty(self.shape, dtype=np.uint16)
        _side_by_side(self, lambda part, _: _gather(self._bits, self._rows[part], result[part]))
        return torch.from_numpy(result.view(np.float16))

    def dense(self) -> Tensor:
        """Return the rows themselves, in float32."""
        return torch.from_numpy(self._bits.view(np.float16)[self._rows]).float()

    def products(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Compute ``rows · weightᵀ`` in float32, and the length of each row, in float64 and rounded up."""
        if njit is None:
            return self.products_by_torch(weight)
        classes, matrix = len(weight), _in_groups(weight).T.copy()
        result = np.empty((len(self), len(matrix)), dtype=np.float32)
        squares = np.empty(len(self), dtype=np.float64)
        _side_by_side(
            self, lambda part, _: _products(self._bits, self._rows[part], matrix, result[part], squares[part])
        )
        result[~np.isfinite(squares)] = np.nan
        return torch.from_numpy(result[:, :classes]), torch.from_numpy(np.sqrt(squares * _ROUNDING))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Compute ``weightsᵀ · rows`` in float64, to `sum_error`. Rows that are not finite must have weight zero."""
        if njit is None:
            return self.weighted_sum_by_torch(weights)
        classes, matrix = weights.shape[1], _in_groups(weights.T)
        parts = [np.zeros((matrix.shape[1], self.shape[1])) for _ in range(_workers(self))]
        _side_by_side(
            self, lambda part, worker: _weighted_sum(self._bits, self._rows[part], matrix[part], parts[worker])
        )
        for more in parts[1:]:
            parts[0] += more
        return torch.from_numpy(parts[0][:classes])

    def products_by_torch(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Compute `products` in plain torch, under the same guarantee: lengths are float64 sums of exact squares."""
        products, lengths = torch.empty(len(self), len(weight)), torch.empty(len(self), dtype=torch.float64)
        for part, rows in self._blocks():
            products[part] = rows @ weight.detach().T
            lengths[part] = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64) * _ROUNDING**0.5
        finite = torch.isfinite(lengths)
        products[~finite], lengths[~finite] = torch.nan, torch.inf
        return products, lengths

    def weighted_sum_by_torch(self, weights: Tensor) -> Tensor:
        """Compute `weighted_sum` in plain torch, to `sum_error`: add up blocks of as many rows, then their sums."""
        total = torch.zeros(weights.shape[1], self.shape[1], dtype=torch.float64)
        for part, rows in self._blocks():
            rows[~torch.isfinite(rows).all(dim=1)] = 0  # their weight is zero, and 0 · NaN is NaN
            total += weights[part].detach().double().T @ rows.double()
        return total

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        for start in range(0, len(self), _SUMMED_ROWS):
            part = slice(start, start + _SUMMED_ROWS)
            yield part, torch.from_numpy(self._bits.view(np.float16)[self._rows[part]]).float()

    @staticmethod
    def plain_sum(weights: Tensor) -> Tensor:
        """Add up the weights in float64, by blocks, so that `sum_error` holds in whatever order torch adds."""
        return torch.stack([block.sum(dim=0) for block in weights.double().split(_SUMMED_ROWS)]).sum(dim=0)


def sum_error(rows: int) -> float:
    """Return `HalfRows.weighted_sum`'s largest error, as a share of the sum of its parts' sizes; float32 weights."""
    additions = _SUMMED_ROWS + rows / _SUMMED_ROWS + 1 + _MOST_THREADS
    return 1.01 * additions * 2.0**-53  # a hundredth for terms of second order


def _in_groups(rows: Tensor) -> np.ndarray:
    """Turn rows into columns, with columns of zeros beside them, so that they make up whole groups."""
    result = np.zeros((rows.shape[1], -(-len(rows) // _GROUP) * _GROUP), dtype=rows.detach().numpy().dtype)
    result[:, : len(rows)] = rows.detach().numpy().T
    return result


_allowed: int | None = None  # threads, where torch has handed them over


@contextlib.contextmanager
def torch_on_one_thread() -> Iterator[None]:
    """Hand torch's threads over to us: after each operation they would go on spinning beside ours for milliseconds."""
    global _allowed
    before = torch.get_num_threads()
    _allowed = _allowed or before
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _allowed = None


def _workers(rows: HalfRows) -> int:
    work = rows.shape[0] * rows.shape[1] // _MIN_WORK
    return max(1, min(_allowed or torch.get_num_threads(), work, rows.shape[0], _MOST_THREADS))


def _side_by_side(rows: HalfRows, function: Callable[[slice, int], Any]) -> None:
    """Run ``function(slice, number)`` on as many slices of the rows as there are threads to use."""
    workers = _workers(rows)
    edges = np.linspace(0, len(rows), workers + 1).astype(int)
    parts = [slice(start, stop) for start, stop in itertools.pairwise(edges)]
    if workers == 1:
        function(parts[0], 0)
        return
    others = [_pool(workers - 1).submit(function, part, number) for number, part in enumerate(parts[1:], 1)]
    function(parts[0], 0)
    for other in others:
        other.result()


@lru_cache(maxsize=1)
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="half-rows")


@_compiled
def _gather(bits: np.ndarray, rows: np.ndarray, result: np.ndarray) -> None:
    for i in range(len(rows)):
        result[i] = bits[rows[i]]


@_compiled
def _expand(bits: np.ndarray, scratch: np.ndarray, numbers: np.ndarray) -> None:
    """Write half-precision numbers as float32 into ``numbers``, whose bits ``scratch`` is.

    Infinity and NaN become 2¹⁶ or more.
    """
    for k in range(len(bits)):
        half = np.int32(bits[k])
        scratch[k] = ((half & np.int32(0x7FFF)) << np.int32(13)) | ((half & np.int32(0x8000)) << np.int32(16))
    for k in range(len(bits)):
        numbers[k] *= _SCALE


@_compiled
def _products(bits: np.ndarray, rows: np.ndarray, weight: np.ndarray, result: np.ndarray, squares: np.ndarray) -> None:
    width = weight.shape[1]
    four = np.zeros((4, _COLUMNS), np.int32)
    x = four.view(np.float32)
    sums = np.empty((4, len(weight)), np.float32)
    result[:] = _ZERO
    squares[:] = 0.0
    for block in range(0, len(rows), _ROWS):
        end = min(block + _ROWS, len(rows))
        for start in range(0, width, _COLUMNS):
            size = min(_COLUMNS, width - start)
            for first in range(block, end, 4):
                kept = min(4, end - first)  # the others of the four are left from before, and not looked at
                for j in range(kept):
                    _expand(bits[rows[first + j], start : start + size], four[j], x[j])
                    _add_square(x[j, :size], squares, first + j)
                _multiply(x, weight, start, size, sums)
                for j in range(kept):
                    for c in range(len(weight)):
                        result[first + j, c] += sums[j, c]


@_compiled
def _add_square(x: np.ndarray, squares: np.ndarray, i: int) -> None:
    square = _ZERO
    for k in range(len(x)):
        square += x[k] * x[k]
    squares[i] += np.float64(square)
    if square >= _TOO_LARGE:  # rare: finite numbers add up to that as well
        for k in range(len(x)):
            if abs(x[k]) >= _NOT_FINITE:
                squares[i] = np.inf


@_compiled
def _multiply(x: np.ndarray, weight: np.ndarray, start: int, size: int, sums: np.ndarray) -> None:
    """Multiply four rows with five classes at a time: a number that is loaded serves four or five sums."""
    x0, x1, x2, x3 = x[0], x[1], x[2], x[3]
    for c in range(0, len(weight), _GROUP):
        w0, w1, w2 = weight[c, start:], weight[c + 1, start:], weight[c + 2, start:]
        w3, w4 = weight[c + 3, start:], weight[c + 4, start:]
        a0, a1, a2, a3 = _ZERO, _ZERO, _ZERO, _ZERO
        b0, b1, b2, b3 = _ZERO, _ZERO, _ZERO, _ZERO
        c0, c1, c2, c3 = _ZERO, _ZERO, _ZERO, _ZERO
        d0, d1, d2, d3 = _ZERO, _ZERO, _ZERO, _ZERO
        e0, e1, e2, e3 = _ZERO, _ZERO, _ZERO, _ZERO
        for k in range(size):
            y0, y1, y2, y3 = x0[k], x1[k], x2[k], x3[k]
            v0, v1, v2, v3, v4 = w0[k], w1[k], w2[k], w3[k], w4[k]
            a0, a1, a2, a3 = a0 + y0 * v0, a1 + y1 * v0, a2 + y2 * v0, a3 + y3 * v0
            b0, b1, b2, b3 = b0 + y0 * v1, b1 + y1 * v1, b2 + y2 * v1, b3 + y3 * v1
            c0, c1, c2, c3 = c0 + y0 * v2, c1 + y1 * v2, c2 + y2 * v2, c3 + y3 * v2
            d0, d1, d2, d3 = d0 + y0 * v3, d1 + y1 * v3, d2 + y2 * v3, d3 + y3 * v3
            e0, e1, e2, e3 = e0 + y0 * v4, e1 + y1 * v4, e2 + y2 * v4, e3 + y3 * v4
        sums[0, c], sums[0, c + 1], sums[0, c + 2], sums[0, c + 3], sums[0, c + 4] = a0, b0, c0, d0, e0
        sums[1, c], sums[1, c + 1], sums[1, c + 2], sums[1, c + 3], sums[1, c + 4] = a1, b1, c1, d1, e1
        sums[2, c], sums[2, c + 1], sums[2, c + 2], sums[2, c + 3], sums[2, c + 4] = a2, b2, c2, d2, e2
        sums[3, c], sums[3, c + 1], sums[3, c + 2], sums[3, c + 3], sums[3, c + 4] = a3, b3, c3, d3, e3


@_compiled
def _weighted_sum(bits: np.ndarray, rows: np.ndarray, weights: np.ndarray, out: np.ndarray) -> None:
    """Add up a block of rows in the nearest cache, in float64 as all of them are."""
    classes, width = out.shape
    four = np.zeros((4, _SUMMED_COLUMNS), np.int32)
    x = four.view(np.float32)
    f = np.zeros((4, classes), np.float64)
    sums = np.empty((classes, _SUMMED_COLUMNS), np.float64)
    for block in range(0, len(rows), _SUMMED_ROWS):
        end = min(block + _SUMMED_ROWS, len(rows))
        for start in range(0, width, _SUMMED_COLUMNS):
            size = min(_SUMMED_COLUMNS, width - start)
            sums[:] = 0
            for first in range(block, end, 4):
                kept = min(4, end - first)
                f[kept:] = 0  # rows of the last group that are not there
                for j in range(kept):
                    _expand(bits[rows[first + j], start : start + size], four[j], x[j])
                    f[j] = weights[first + j]
                _add_rows(x, size, f, sums)
            for c in range(classes):
                total, more = out[c, start : start + size], sums[c]
                for k in range(size):
                    total[k] += more[k]


@_compiled
def _add_rows(x: np.ndarray, size: int, f: np.ndarray, sums: np.ndarray) -> None:
    """Add four rows and five classes at a time: a sum is read and written a quarter as often, a number a fifth."""
    x0, x1, x2, x3 = x[0], x[1], x[2], x[3]
    for c in range(0, len(sums), _GROUP):
        s0, s1, s2, s3, s4 = sums[c], sums[c + 1], sums[c + 2], sums[c + 3], sums[c + 4]
        a0, a1, a2, a3 = f[0, c], f[1, c], f[2, c], f[3, c]
        b0, b1, b2, b3 = f[0, c + 1], f[1, c + 1], f[2, c + 1], f[3, c + 1]
        c0, c1, c2, c3 = f[0, c + 2], f[1, c + 2], f[2, c + 2], f[3, c + 2]
        d0, d1, d2, d3 = f[0, c + 3], f[1, c + 3], f[2, c + 3], f[3, c + 3]
        e0, e1, e2, e3 = f[0, c + 4], f[1, c + 4], f[2, c + 4], f[3, c + 4]
        for k in range(size):
            y0, y1, y2, y3 = x0[k], x1[k], x2[k], x3[k]  # once: the compiler does not know that no sum is among them
            s0[k] += a0 * y0 + a1 * y1 + a2 * y2 + a3 * y3
            s1[k] += b0 * y0 + b1 * y1 + b2 * y2 + b3 * y3
            s2[k] += c0 * y0 + c1 * y1 + c2 * y2 + c3 * y3
            s3[k] += d0 * y0 + d1 * y1 + d2 * y2 + d3 * y3
            s4[k] += e0 * y0 + e1 * y1 + e2 * y2 + e3 * y3
