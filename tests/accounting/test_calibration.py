"""Calibration: within half a percent below the target, or a refusal."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cords_dp.accounting import calibrate
from cords_dp.errors import AccountingError


@settings(max_examples=40)
@given(target=st.floats(0.05, 20), power=st.floats(0.3, 3), start=st.floats(0.01, 100), rising=st.booleans())
def test_calibration_lands_within_half_a_percent_below(target, power, start, rising):
    sign = 1 if rising else -1

    def cost(parameter):
        return 3.0 * parameter ** (sign * power) + 0.01

    found = calibrate(cost, target, start=start, rising=rising)
    assert 0.995 * target <= cost(found) <= target


def test_calibration_gives_up_where_nothing_fits():
    with pytest.raises(AccountingError, match=r"0\.5 %"):
        calibrate(lambda _: 5.0, 3.0, start=1.0, rising=False)
