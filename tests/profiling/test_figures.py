from __future__ import annotations

import math

import pytest

from offpath.profiling.core.figures import (
    format_bytes,
    format_figure,
    format_ms,
    format_ratio,
    format_share,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(0.01234, "0.0123", id="small"),
        pytest.param(0.99999, "1.00", id="rounds-up-to-one"),
        pytest.param(9.999, "10.0", id="rounds-up-to-ten"),
        pytest.param(12.34, "12.3", id="tens"),
        pytest.param(12345.6, "12,346", id="thousands"),
        pytest.param(-1.5, "-1.50", id="negative"),
        pytest.param(0.0, "0", id="zero"),
        pytest.param(math.nan, "-", id="unknown"),
    ],
)
def test_figures_have_three_digits(value, text):
    assert format_figure(value) == text


def test_milliseconds_stop_at_the_microsecond():
    assert format_ms(0.0000123456) == "0.012"
    assert format_ms(0.0123456) == "12.3"


def test_shares_ratios_and_bytes_carry_their_unit():
    assert format_share(0.0234) == "2.3 %" and format_share(0.0996) == "10 %"
    assert format_ratio(2.314) == "2.31 x"
    assert format_bytes(55_008) == "55 kB" and format_bytes(1_201_530) == "1.20 MB"
