"""Interval arithmetic of index expressions (check T2)."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.tdl.language import ALL, Access, Bordered, Constant, Index, Max, Quotient, Reduce, Sum, bounds, indices, indices_in, operand

X, Y, Z = indices(x=6, y=5, z=4)


def value(expression, at):
    match expression:
        case Index(name=name):
            return at[name]
        case Constant(value=number):
            return number
    match type(expression).__name__:
        case "Sum2":
            return value(expression.left, at) + value(expression.right, at)
        case "Scaled":
            return value(expression.expression, at) * expression.factor
        case "Quotient":
            return value(expression.expression, at) // expression.divisor
        case "Remainder":
            return value(expression.expression, at) % expression.divisor
        case "Bordered":
            padded = np.pad(np.arange(expression.extent), 200, expression.border)
            return int(padded[value(expression.expression, at) + 200])


def expressions(leaves):
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(lambda a, b: a + b, inner, inner | st.integers(-5, 5)),
            st.builds(lambda a, b: a - b, inner, inner | st.integers(-5, 5)),
            st.builds(lambda a, k: a * k, inner, st.integers(-3, 3)),
            st.builds(lambda a, k: k * a, inner, st.integers(-3, 3)),
            st.builds(lambda a, k: a // k, inner, st.integers(1, 4)),
            st.builds(lambda a, k: a % k, inner, st.integers(1, 4)),
            st.builds(Bordered, inner, st.integers(1, 9), st.sampled_from(("edge", "reflect"))),
        ),
        max_leaves=5,
    )


def test_t2_difference_of_intervals_over_all_ranges():
    ranges = [(low, high) for low in range(1, 6) for high in range(low, 6)]
    for (low, high), (low2, high2) in product(ranges, ranges):
        differences = [a - b for a in range(low, high + 1) for b in range(low2, high2 + 1)]
        assert bounds(X - Y, {"x": (low, high), "y": (low2, high2)}) == (min(differences), max(differences))


def test_t2_the_printed_rule_is_wrong_on_every_range():
    for last_x, last_y in product(range(1, 6), range(1, 6)):
        printed = (0 - 0, last_x - last_y)
        assert bounds(X - Y, {"x": (0, last_x), "y": (0, last_y)}) == (-last_y, last_x) != printed


@given(expressions(st.sampled_from((X, Y, Z)) | st.builds(Constant, st.integers(-4, 4))))
def test_bounds_hold_every_value(expression):
    values = [value(expression, {"x": x, "y": y, "z": z}) for x, y, z in product(range(6), range(5), range(4))]
    low, high = bounds(expression, {})
    assert low <= min(values)
    assert max(values) <= high


@given(expressions(st.builds(Constant, st.integers(-4, 4))), st.integers(-3, 3), st.integers(1, 3), st.booleans())
def test_bounds_are_exact_where_each_index_occurs_once(constant, factor, divisor, subtract):
    expression = (X * factor - Y if subtract else X * factor + Y) // divisor + constant
    values = [value(expression, {"x": x, "y": y}) for x, y in product(range(2, 5), range(5))]
    assert bounds(expression, {"x": (2, 4)}) == (min(values), max(values))


@given(st.integers(0, 5), st.integers(0, 5), st.integers(-6, 6), st.integers(1, 7))
def test_bounds_of_a_remainder_are_exact_between_two_multiples(start, more, offset, divisor):
    stop = min(start + more, 5)
    numbers = [x + offset for x in range(start, max(start, stop) + 1)]
    found = sorted({number % divisor for number in numbers})
    within = numbers[0] // divisor == numbers[-1] // divisor
    assert bounds((X + offset) % divisor, {"x": (start, max(start, stop))}) == ((found[0], found[-1]) if within else (0, divisor - 1))


@given(st.integers(0, 5), st.integers(0, 5), st.integers(-6, 6), st.integers(1, 4))
def test_exact_quotient_keeps_only_what_divides(start, more, offset, divisor):
    stop = min(start + more, 5)
    found = [(x + offset) // divisor for x in range(start, stop + 1) if (x + offset) % divisor == 0]
    low, high = bounds(Quotient(X + offset, divisor, exact=True), {"x": (start, max(start, stop))})
    assert (low, high) == (min(found), max(found)) if found else low > high


@pytest.mark.parametrize(("expression", "expected"), [(X + Y * 2 - X, (X, Y)), (Constant(3), ()), ((Z // 2) * 3, (Z,))])
def test_indices_in_are_in_order_without_repeats(expression, expected):
    assert indices_in(expression) == expected


def test_a_description_reads_like_the_formula():
    data, filters = operand(0), operand(1)
    body = Sum((Y,), data[X, Y + 1, ALL, 3] * filters[(Y,)])
    assert isinstance(body, Reduce)
    product_of = body.body
    assert product_of.arguments[0] == Access(0, (X, Y + 1, ALL, Constant(3)))
    assert (product_of + data[(X,)]).function == "add"
    assert [make((Y,), body).kind for make in (Sum, Max)] == ["sum", "max"]
