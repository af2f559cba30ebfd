import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.cluster.units import FLOPS, RATES, SIZES, TIMES, format_quantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "units", "value"),
    [
        ("8GiB", SIZES, 8 << 30),
        ("8 GB", SIZES, 8e9),
        ("1048576", SIZES, 1 << 20),
        ("1Gbit/s", RATES, 1.25e8),
        ("1e9", RATES, 1e9),
        ("1 Gbps", RATES, 1.25e8),
        ("100 GFLOPS", FLOPS, 1e11),
        ("85.5 GFLOP/s", FLOPS, 85.5e9),
        ("0.9ms", TIMES, 0.0009),
        ("200us", TIMES, 0.0002),
        ("2.5", {}, 2.5),
        ("-1", {}, -1),
    ],
)
def test_quantities(text, units, value):
    assert parse_quantity(text, units) == value


@pytest.mark.parametrize("text", ["", "GiB", "8Gib", "8 G iB", "nan", "inf", "1e999", "0.e" + 200 * "3", "0x10", "1.2.3", "ten", "8Gbps"])
def test_what_is_no_quantity(text):
    with pytest.raises(ValueError, match="a number"):
        parse_quantity(text, SIZES)


@given(st.one_of(st.integers(0, 1 << 62), st.floats(0, 1e18, allow_subnormal=False)), st.sampled_from([SIZES, RATES, FLOPS, TIMES]))
def test_writing_loses_nothing(value, units):
    assert parse_quantity(str(format_quantity(value, units)), units) == value


def test_writing_is_short():
    assert format_quantity(16 << 30, SIZES) == "16GiB"
    assert format_quantity(1.25e8, RATES) == "125MB/s"
    assert format_quantity(0.0003, TIMES) == "0.3ms"
    assert format_quantity(25_276_514_303, SIZES) == 25_276_514_303
