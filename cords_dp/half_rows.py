"""Products with rows of half-precision numbers that are read where they lie and never converted as a whole.

A linear head on stored features does two things with a batch: a product with the weights and a weighted sum of rows.
Both are bounded by how fast memory can be read. Libraries gather the rows, convert them, measure their lengths and
multiply, each time through memory; here a piece of a row is converted in the nearest cache and used at once.

Formal guarantee: the length that is given for a row is never less than the length of the stored numbers, and at most
0.002 % more: half-precision numbers and their squares are exact in float32, sums of 512 of them err by 512 · 2⁻²⁴ at
most, which is added, and those sums are added in float64. A row that holds NaN or infinity has infinite length, and
NaN for products.
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
from numba import njit
from torch import Tensor

_COLUMNS = 512  # of the weights of ten classes, as many as the nearest cache holds
_ROWS = 64  # that go over such a piece of the weights before the next one
_NOT_FINITE = np.float32(2.0**16)  # what infinity and NaN become at least; finite halves are below
_TOO_LARGE = np.float32(2.0**32)
_ROUNDING = 1 + 1.01 * _COLUMNS * 2.0**-24  # of a sum of so many exact squares in float32, in whatever order
_SCALE = np.float32(2.0**112)  # what a half's bits are short of as a float32's
_ZERO = np.float32(0)
_MIN_WORK = 1 << 19  # numbers for which a second thread pays

_compiled = njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz", "arcp"}, error_model="numpy")


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
        """Some of the rows."""
        chosen = copy.copy(self)
        chosen._rows = self._rows[index.numpy()]
        chosen.shape = (len(chosen._rows), self.shape[1])
        return chosen

    def gathered(self) -> Tensor:
        """The rows in memory of their own. Torch's threads would go on spinning beside ours for a while after this."""
        result = np.empty(self.shape, dtype=np.uint16)
        _side_by_side(self, lambda part, _: _gather(self._bits, self._rows[part], result[part]))
        return torch.from_numpy(result.view(np.float16))

    def dense(self) -> Tensor:
        """The rows themselves, in float32."""
        return torch.from_numpy(self._bits.view(np.float16)[self._rows]).float()

    def products(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """``rows · weightᵀ`` in float32, and the length of each row, in float64 and rounded up."""
        classes, matrix = len(weight), _in_fours(weight)
        result = np.empty((len(self), len(matrix)), dtype=np.float32)
        squares = np.empty(len(self), dtype=np.float64)
        _side_by_side(
            self, lambda part, _: _products(self._bits, self._rows[part], matrix, result[part], squares[part])
        )
        result[~np.isfinite(squares)] = np.nan
        return torch.from_numpy(result[:, :classes]), torch.from_numpy(np.sqrt(squares * _ROUNDING))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """``weightsᵀ · rows``, added up in the weights' precision. Rows that are not finite must have weight zero."""
        matrix = np.ascontiguousarray(weights.detach().numpy())
        parts = [np.zeros((matrix.shape[1], self.shape[1]), dtype=matrix.dtype) for _ in range(_workers(self))]
        _side_by_side(
            self, lambda part, worker: _weighted_sum(self._bits, self._rows[part], matrix[part], parts[worker])
        )
        for more in parts[1:]:
            parts[0] += more
        return torch.from_numpy(parts[0])


def _in_fours(weight: Tensor) -> np.ndarray:
    """Zeros below, so that the rows make up whole groups of four."""
    matrix = np.zeros((-(-len(weight) // 4) * 4, weight.shape[1]), dtype=np.float32)
    matrix[: len(weight)] = weight.detach().numpy()
    return matrix


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
    return max(1, min(_allowed or torch.get_num_threads(), rows.shape[0] * rows.shape[1] // _MIN_WORK, rows.shape[0]))


def _side_by_side(rows: HalfRows, function: Callable[[slice, int], Any]) -> None:
    """``function(slice, number)`` on as many slices of the rows as there are threads to use."""
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
    """Half-precision numbers as float32 in ``numbers``, whose bits ``scratch`` is.

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
    scratch = np.empty((2, _COLUMNS), np.int32)
    x = scratch.view(np.float32)
    result[:] = _ZERO
    squares[:] = 0.0
    for first in range(0, len(rows), _ROWS):
        for start in range(0, width, _COLUMNS):
            size = min(_COLUMNS, width - start)
            end = min(first + _ROWS, len(rows))
            for i in range(first, end, 2):
                j = min(i + 1, end - 1)
                _expand(bits[rows[i], start : start + size], scratch[0], x[0])
                _expand(bits[rows[j], start : start + size], scratch[1], x[1])
                _add_square(x[0, :size], squares, i)
                if j > i:
                    _add_square(x[1, :size], squares, j)
                _add_products(x[0, :size], x[1, :size], weight, start, result, i, j)


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
def _add_products(
    x: np.ndarray, y: np.ndarray, weight: np.ndarray, start: int, result: np.ndarray, i: int, j: int
) -> None:
    """Eight products at a time: each number that is loaded serves several, and no sum waits for itself."""
    for c in range(0, len(weight), 4):
        w0, w1 = weight[c, start : start + len(x)], weight[c + 1, start : start + len(x)]
        w2, w3 = weight[c + 2, start : start + len(x)], weight[c + 3, start : start + len(x)]
        s0, s1, s2, s3 = _ZERO, _ZERO, _ZERO, _ZERO
        t0, t1, t2, t3 = _ZERO, _ZERO, _ZERO, _ZERO
        for k in range(len(x)):
            s0 += x[k] * w0[k]
            s1 += x[k] * w1[k]
            s2 += x[k] * w2[k]
            s3 += x[k] * w3[k]
            t0 += y[k] * w0[k]
            t1 += y[k] * w1[k]
            t2 += y[k] * w2[k]
            t3 += y[k] * w3[k]
        result[i, c] += s0
        result[i, c + 1] += s1
        result[i, c + 2] += s2
        result[i, c + 3] += s3
        if j > i:
            result[j, c] += t0
            result[j, c + 1] += t1
            result[j, c + 2] += t2
            result[j, c + 3] += t3


@_compiled
def _weighted_sum(bits: np.ndarray, rows: np.ndarray, weights: np.ndarray, out: np.ndarray) -> None:
    """Four rows at a time, so that the sum is read and written a quarter as often."""
    classes, width = out.shape
    four = np.zeros((4, _COLUMNS), np.int32)
    x = four.view(np.float32)
    f = np.empty(4, weights.dtype)
    for block in range(0, len(rows), _ROWS):
        end = min(block + _ROWS, len(rows))
        for start in range(0, width, _COLUMNS):
            size = min(_COLUMNS, width - start)
            for first in range(block, end, 4):
                kept = min(4, end - first)
                for j in range(kept):
                    _expand(bits[rows[first + j], start : start + size], four[j], x[j])
                for c in range(classes):
                    f[:] = 0  # also for rows of the last group that are not there
                    for j in range(kept):
                        f[j] = weights[first + j, c]
                    total = out[c, start : start + size]
                    f0, f1, f2, f3 = f[0], f[1], f[2], f[3]
                    for k in range(size):
                        total[k] += f0 * x[0, k] + f1 * x[1, k] + f2 * x[2, k] + f3 * x[3, k]
