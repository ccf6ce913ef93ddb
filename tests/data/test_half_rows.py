"""Products with half-precision rows: those of the numbers as stored, with lengths that are never understated."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cords_dp.data import half_rows
from cords_dp.data.half_rows import HalfRows, sum_error


@pytest.fixture(params=["compiled", "torch"])
def version(request, monkeypatch):
    """What follows holds for both versions; torch's serves where there is no numba."""
    if request.param == "torch":
        monkeypatch.setattr(half_rows, "njit", None)


def _halves(n, d, seed=0, scale=1.0):
    return (torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) * scale).half()


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(0, 9),
    d=st.integers(1, 1100),
    classes=st.integers(1, 6),
    exponent=st.integers(-20, 14),
    seed=st.integers(0, 99),
)
def test_products_and_sums_are_those_of_the_stored_numbers(n, d, classes, exponent, seed):
    values = _halves(n, d, seed, 2.0**exponent).clamp(-65000, 65000)
    weight = torch.randn(classes, d, generator=torch.Generator().manual_seed(seed))
    rows = HalfRows(values)
    exact = values.double() @ weight.double().T
    size = values.double().abs() @ weight.double().abs().T
    true = values.double().norm(dim=1)
    for products, lengths in (rows.products(weight), rows.products_by_torch(weight)):
        assert bool(((products - exact).abs() <= 1e-4 * size + 1e-30).all())
        assert bool((lengths >= true).all()), "a length that is understated is a record that is clipped too little"
        assert bool((lengths <= true * (1 + 3e-5)).all())
    for dtype in (torch.float32, torch.float64):
        factors = torch.randn(n, classes, generator=torch.Generator().manual_seed(seed), dtype=dtype)
        room = 1e-14 * (factors.double().abs().T @ values.double().abs()) + 1e-30
        for got in (rows.weighted_sum(factors), rows.weighted_sum_by_torch(factors)):
            assert got.dtype == torch.float64
            assert bool(((got - factors.double().T @ values.double()).abs() <= room).all())


@pytest.mark.parametrize("classes", [1, 5, 7, 10])
def test_the_sum_of_many_rows_is_exact_to_float64(classes, version):
    """All of one sign: a sum in float32 would lose more with every row."""
    values = _halves(5003, 600).abs()
    factors = torch.rand(5003, classes, generator=torch.Generator().manual_seed(3))
    exact = factors.double().T @ values.double()
    error = (HalfRows(values).weighted_sum(factors) - exact).abs()
    assert bool((error <= (sum_error(5003) + 5003 * 2.0**-53) * exact).all())  # the other sum rounds as well
    plain = HalfRows.plain_sum(factors)
    assert bool(((plain - factors.double().sum(dim=0)).abs() <= 1e-12 * plain).all())


def test_every_half_precision_number_is_read_right(version):
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = torch.from_numpy(bits.view(np.float16))[:, None]
    products, lengths = HalfRows(values).products(torch.ones(1, 1))
    finite = torch.isfinite(values[:, 0])
    assert torch.equal(products[finite], values[finite].float())
    assert bool(torch.isnan(products[~finite]).all())
    assert bool(torch.isinf(lengths[~finite]).all())


def test_rows_are_picked_and_large_ones_are_not_taken_for_infinite(version):
    values = _halves(6, 700)
    values[2, 600] = torch.inf
    values[4] = 60000.0  # finite, though the sum of squares is past any half-precision number
    index = torch.tensor([4, 2, 0])
    products, lengths = HalfRows(values, index).products(torch.ones(2, 700))
    assert torch.isfinite(lengths).tolist() == [True, False, True]
    torch.testing.assert_close(products[0, 0], values[4].float().sum())
    again, _ = HalfRows(values).at(index).products(torch.ones(2, 700))
    torch.testing.assert_close(again, products, equal_nan=True)


def test_many_rows_are_shared_among_threads():
    values, weight = _halves(3000, 1000), torch.randn(3, 1000, generator=torch.Generator().manual_seed(1))
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2):
            torch.set_num_threads(count)
            rows = HalfRows(values)
            results.append((rows.products(weight), rows.weighted_sum(rows.products(weight)[0].double())))
    finally:
        torch.set_num_threads(threads)
    (one, total), (two, same) = results
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1], two[1])
    torch.testing.assert_close(total, same)


def test_other_precisions_are_refused():
    with pytest.raises(TypeError):
        HalfRows(torch.zeros(2, 2))


def test_rows_that_are_not_finite_and_weigh_nothing_add_nothing(version):
    values = _halves(5, 40)
    values[3, 7] = torch.nan
    values[1, 0] = torch.inf
    factors = torch.ones(5, 2)
    factors[[1, 3]] = 0.0
    expected = values[[0, 2, 4]].double().sum(dim=0)
    torch.testing.assert_close(HalfRows(values).weighted_sum(factors), expected.expand(2, -1))
