"""Compiled and plain scattering give kymatio's numbers; transforms in lanes give numpy's."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cords_dp.models.fast_scattering import fast_scattering
from cords_dp.models.lane_fft import factors, plane
from cords_dp.models.scattering import plain_scattering


@pytest.mark.parametrize("size", [(6, 20, 16), (9, 8, 16)])
def test_a_plane_is_transformed_as_numpy_does(size):
    height, width, lanes = size
    z = np.random.default_rng(0).normal(size=(2, *size)).astype(np.float32)
    flat, scratch = z.reshape(-1).copy(), np.empty(2 * max(height, width) * lanes, np.float32)
    plane(*size)(flat, scratch, scratch.copy())
    expected = np.fft.ifft2(z[0] + 1j * z[1], axes=(0, 1)) * height * width
    np.testing.assert_allclose(flat.reshape(2, *size)[0], expected.real, atol=1e-4)
    np.testing.assert_allclose(flat.reshape(2, *size)[1], expected.imag, atol=1e-4)


@settings(deadline=None)
@given(st.integers(1, 5000))
def test_factors_multiply_to_the_length(length):
    found = factors(length)
    if found is None:
        assert any(length % prime == 0 for prime in range(7, length + 1))
    else:
        assert np.prod(found, dtype=int) == length
        assert set(found) <= {2, 3, 4, 5}


@pytest.mark.parametrize("version", [fast_scattering, lambda *shape: plain_scattering(*shape, "cpu")])
def test_both_versions_are_kymatios(version):
    from kymatio.torch import Scattering2D

    shape = (8, 12)  # not square: heights and widths must not be mixed up
    images = torch.randn(3, 3, *shape, generator=torch.Generator().manual_seed(0))  # nine maps: an odd one is left
    function = version(*shape)
    torch.testing.assert_close(
        function(images), Scattering2D(J=2, shape=shape)(images.contiguous()), atol=1e-5, rtol=1e-5
    )
    images[1, 2, 0, 0] = torch.nan
    got = function(images)
    assert bool(torch.isnan(got[1, 2]).all()), "a record that is not finite stays so"
    assert bool(torch.isfinite(got[[0, 2]]).all()), "and leaves the others alone"
    assert bool(torch.isfinite(got[1, :2]).all())


def test_compiled_scattering_is_the_plain_one():
    images = torch.rand(5, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    function = fast_scattering(28, 28)
    assert function is not None
    torch.testing.assert_close(function(images), plain_scattering(28, 28, "cpu")(images), atol=1e-6, rtol=1e-5)


def test_plain_torch_serves_where_there_is_no_compiler(tmp_path):
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "import torch; from cords_dp.models.scattering import compile_scattering, scattering_maps\n"
        "compile_scattering(8, 12)\n"
        "assert scattering_maps(torch.rand(2, 3, 8, 12), (3, 8, 12)).shape == (2, 243, 2, 3)\n"
        "from cords_dp.data.half_rows import HalfRows\n"
        "values = torch.randn(6, 9).half(); rows = HalfRows(values)\n"
        "assert torch.equal(rows.gathered(), values)\n"
        "products, lengths = rows.products(torch.ones(2, 9))\n"
        "assert torch.allclose(products[:, 0], values.float().sum(1), atol=1e-5)\n"
        "assert rows.weighted_sum(torch.ones(6, 2)).shape == (2, 9)\n"
        "from cords_dp.models.dead_leaves import dead_leaves\n"
        "assert dead_leaves(1, (1, 8, 8), seed=0).isfinite().all()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sizes_without_small_factors_are_left_to_torch():
    assert fast_scattering(96, 96) is None  # padded to 104 = 8 · 13
