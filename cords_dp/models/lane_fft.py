"""Many small Fourier transforms at once, compiled: the innermost numbers ("lanes") share every step.

Libraries transform one small array after another, and arrays of 20×20 are too small to fill a processor's vectors. Here
the same point of sixteen or more arrays lies side by side, so each step of a transform is a few vector instructions.

A complex array is flat: ``total`` real parts, then as many imaginary parts. Lengths have the factors 2, 3 and 5 only.
Functions are made for one size (`plane`): with strides known, the compiler sees that loads and stores keep apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

# Sums may be reordered; NaN and infinity keep their meaning, because a record that is not finite must stay so.
compiled = njit(nogil=True, fastmath={"contract", "reassoc", "nsz", "arcp"}, error_model="numpy", boundscheck=False)
Compiled = Callable[..., Any]


def factors(length: int) -> list[int] | None:
    """Return radices whose product is ``length``, or None if another prime divides it."""
    found = []
    for radix in (5, 4, 3, 2):
        while length % radix == 0:
            found.append(radix)
            length //= radix
    return found if length == 1 else None


def plane(height: int, width: int, lanes: int) -> Compiled:
    """Compile ``transform(z, a, b)``: the inverse transform, not scaled, of ``z[height, width, lanes]`` in place.

    ``a`` and ``b`` are scratch of ``2 · max(height, width) · lanes`` numbers.
    """
    total = height * width * lanes
    along_width = _line(width, lanes, lanes, total)
    along_height = _line(height, lanes, width * lanes, total)

    @compiled
    def transform(z: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        for y in range(height):
            along_width(z[y * width * lanes :], a, b)  # a view: indices from 0 up are known not to be negative
        for x in range(width):
            along_height(z[x * lanes :], a, b)

    return transform


def _line(length: int, lanes: int, stride: int, total: int) -> Compiled:
    """Compile a transform in place of ``length`` points, ``stride`` apart (Stockham: no reordering at the end)."""
    radices = factors(length)
    if radices is None or len(radices) < 2:
        raise ValueError(f"no transform for length {length}")
    outer, scratch = (stride, total), (lanes, length * lanes)
    passes, left, done = [], length, 1
    for number, radix in enumerate(radices):
        source = outer if number == 0 else scratch
        target = outer if number == len(radices) - 1 else scratch
        passes.append(_PASSES[radix](left, done, lanes, *source, *target))
        left, done = left // radix, done * radix
    return _chain(passes)


def _chain(passes: list[Compiled]) -> Compiled:
    """Join all passes in turn. Numba compiles no loop over functions, so pairs are joined to one."""
    first, last, *middle = passes[0], passes[-1], *passes[1:-1]
    if not middle:

        @compiled
        def two(z: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
            first(z, a)
            last(a, z)

        return two
    between = _alternate(middle)
    odd = len(middle) % 2 == 1

    @compiled
    def more(z: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        first(z, a)
        between(a, b)
        if odd:
            last(b, z)
        else:
            last(a, z)

    return more


def _alternate(passes: list[Compiled]) -> Compiled:
    """Join passes from ``a`` to ``b``, back to ``a``, and so on."""
    first, rest = passes[0], passes[1:]
    if not rest:

        @compiled
        def one(a: np.ndarray, b: np.ndarray) -> None:
            first(a, b)

        return one
    following = _alternate(rest)

    @compiled
    def several(a: np.ndarray, b: np.ndarray) -> None:
        first(a, b)
        following(b, a)

    return several


@compiled
def _turned(re: float, im: float, cos: float, sin: float) -> tuple[float, float]:
    return re * cos - im * sin, re * sin + im * cos


def _twiddles(left: int, radix: int) -> tuple[np.ndarray, np.ndarray]:
    angles = 2 * np.pi / left * np.outer(np.arange(left // radix), np.arange(radix))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


# One pass for each radix. ``xs``, ``ys``: how far points lie apart in source and target; ``xi``, ``yi``: where
# imaginary parts begin. Everything but ``x`` and ``y`` is a constant to the compiler.


def _radix2(left: int, done: int, lanes: int, xs: int, xi: int, ys: int, yi: int) -> Compiled:
    cos, sin = _twiddles(left, 2)
    groups, xn, yn = left // 2, done * left // 2 * xs, done * ys

    @compiled
    def step(x: np.ndarray, y: np.ndarray) -> None:
        for p in range(groups):
            for q in range(done):
                i, o = (q + done * p) * xs, (q + done * 2 * p) * ys
                for k in range(lanes):
                    ar, ai = x[i + k], x[xi + i + k]
                    br, bi = x[i + xn + k], x[xi + i + xn + k]
                    y[o + k], y[yi + o + k] = ar + br, ai + bi
                    y[o + yn + k], y[yi + o + yn + k] = _turned(ar - br, ai - bi, cos[p, 1], sin[p, 1])

    return step


def _radix3(left: int, done: int, lanes: int, xs: int, xi: int, ys: int, yi: int) -> Compiled:
    cos, sin = _twiddles(left, 3)
    groups, xn, yn = left // 3, done * left // 3 * xs, done * ys
    half, height = np.float32(0.5), np.float32(math.sqrt(0.75))

    @compiled
    def step(x: np.ndarray, y: np.ndarray) -> None:
        for p in range(groups):
            for q in range(done):
                i, o = (q + done * p) * xs, (q + done * 3 * p) * ys
                for k in range(lanes):
                    ar, ai = x[i + k], x[xi + i + k]
                    br, bi = x[i + xn + k], x[xi + i + xn + k]
                    cr, ci = x[i + 2 * xn + k], x[xi + i + 2 * xn + k]
                    tr, ti = br + cr, bi + ci
                    er, ei = ar - half * tr, ai - half * ti
                    fr, fi = height * (ci - bi), height * (br - cr)
                    y[o + k], y[yi + o + k] = ar + tr, ai + ti
                    y[o + yn + k], y[yi + o + yn + k] = _turned(er + fr, ei + fi, cos[p, 1], sin[p, 1])
                    y[o + 2 * yn + k], y[yi + o + 2 * yn + k] = _turned(er - fr, ei - fi, cos[p, 2], sin[p, 2])

    return step


def _radix4(left: int, done: int, lanes: int, xs: int, xi: int, ys: int, yi: int) -> Compiled:
    cos, sin = _twiddles(left, 4)
    groups, xn, yn = left // 4, done * left // 4 * xs, done * ys

    @compiled
    def step(x: np.ndarray, y: np.ndarray) -> None:
        for p in range(groups):
            for q in range(done):
                i, o = (q + done * p) * xs, (q + done * 4 * p) * ys
                for k in range(lanes):
                    ar, ai = x[i + k], x[xi + i + k]
                    br, bi = x[i + xn + k], x[xi + i + xn + k]
                    cr, ci = x[i + 2 * xn + k], x[xi + i + 2 * xn + k]
                    dr, di = x[i + 3 * xn + k], x[xi + i + 3 * xn + k]
                    pr, pi, mr, mi = ar + cr, ai + ci, ar - cr, ai - ci
                    qr, qi, nr, ni = br + dr, bi + di, di - bi, br - dr
                    y[o + k], y[yi + o + k] = pr + qr, pi + qi
                    y[o + yn + k], y[yi + o + yn + k] = _turned(mr + nr, mi + ni, cos[p, 1], sin[p, 1])
                    y[o + 2 * yn + k], y[yi + o + 2 * yn + k] = _turned(pr - qr, pi - qi, cos[p, 2], sin[p, 2])
                    y[o + 3 * yn + k], y[yi + o + 3 * yn + k] = _turned(mr - nr, mi - ni, cos[p, 3], sin[p, 3])

    return step


def _radix5(left: int, done: int, lanes: int, xs: int, xi: int, ys: int, yi: int) -> Compiled:
    cos, sin = _twiddles(left, 5)
    groups, xn, yn = left // 5, done * left // 5 * xs, done * ys
    c1, s1 = np.float32(math.cos(0.4 * math.pi)), np.float32(math.sin(0.4 * math.pi))
    c2, s2 = np.float32(math.cos(0.8 * math.pi)), np.float32(math.sin(0.8 * math.pi))

    @compiled
    def step(x: np.ndarray, y: np.ndarray) -> None:
        for p in range(groups):
            for q in range(done):
                i, o = (q + done * p) * xs, (q + done * 5 * p) * ys
                for k in range(lanes):
                    ar, ai = x[i + k], x[xi + i + k]
                    br, bi = x[i + xn + k], x[xi + i + xn + k]
                    cr, ci = x[i + 2 * xn + k], x[xi + i + 2 * xn + k]
                    dr, di = x[i + 3 * xn + k], x[xi + i + 3 * xn + k]
                    er, ei = x[i + 4 * xn + k], x[xi + i + 4 * xn + k]
                    tr, ti, ur, ui = br + er, bi + ei, cr + dr, ci + di
                    vr, vi, wr, wi = br - er, bi - ei, cr - dr, ci - di
                    fr, fi = ar + c1 * tr + c2 * ur, ai + c1 * ti + c2 * ui
                    gr, gi = ar + c2 * tr + c1 * ur, ai + c2 * ti + c1 * ui
                    hr, hi = -(s1 * vi + s2 * wi), s1 * vr + s2 * wr
                    jr, ji = s1 * wi - s2 * vi, s2 * vr - s1 * wr
                    y[o + k], y[yi + o + k] = ar + tr + ur, ai + ti + ui
                    y[o + yn + k], y[yi + o + yn + k] = _turned(fr + hr, fi + hi, cos[p, 1], sin[p, 1])
                    y[o + 2 * yn + k], y[yi + o + 2 * yn + k] = _turned(gr + jr, gi + ji, cos[p, 2], sin[p, 2])
                    y[o + 3 * yn + k], y[yi + o + 3 * yn + k] = _turned(gr - jr, gi - ji, cos[p, 3], sin[p, 3])
                    y[o + 4 * yn + k], y[yi + o + 4 * yn + k] = _turned(fr - hr, fi - hi, cos[p, 4], sin[p, 4])

    return step


_PASSES = {2: _radix2, 3: _radix3, 4: _radix4, 5: _radix5}
