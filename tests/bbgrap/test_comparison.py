import re

import numpy as np
import pytest

from bbgrap.comparison import SAME, compare

F = np.array([1.0, -2.0, 4.0], np.float32)


def test_equal_answers():
    result = compare([F, np.array(["a"], object)], [F.copy(), np.array(["a"], object)])
    assert result == SAME
    assert result.verified
    assert result.text == "verified against plain onnxruntime: identical to the bit"


def test_rounding_is_relative_to_the_largest_value():
    result = compare([F + np.array([0, 2e-5, 0], np.float32)], [F])
    assert result.verified
    assert not result.bit_identical
    assert result.max_abs_err == pytest.approx(2e-5, rel=1e-2)
    assert result.max_rel_err == pytest.approx(5e-6, rel=1e-2)


def test_zeros_of_either_sign_are_equal_but_not_to_the_bit():
    result = compare([np.array([-0.0], np.float32)], [np.array([0.0], np.float32)])
    assert (result.max_abs_err, result.max_rel_err, result.bit_identical, result.verified) == (0.0, 0.0, False, True)


@pytest.mark.parametrize(
    ("got", "expected", "said"),
    [
        ([F], [F, F], "1 outputs instead of 2"),
        ([F[:2]], [F], r"output 0: expected float32\[3\], got float32\[2\]"),
        ([F.astype(np.float64)], [F], r"output 0: expected float32\[3\], got float64\[3\]"),
        ([F, np.array([1])], [F, np.array([2])], "output 1: int64 values differ"),
        ([np.array([True])], [np.array([False])], "output 0: bool values differ"),
        ([np.array(["a"], object)], [np.array(["b"], object)], "output 0: object values differ"),
        ([np.array([1, np.nan])], [np.array([1, np.inf])], "infinities or NaN differ"),
        ([np.array([np.nan, 1.0])], [np.array([1.0, 1.0])], "infinities or NaN differ"),
        ([F + 1], [F], "max absolute error 1, relative 0.25"),
    ],
)
def test_wrong_answers(got, expected, said):
    result = compare(got, expected)
    assert not result.verified
    assert not result.bit_identical
    assert "NOT verified" in result.text
    assert re.search(said, result.text)


def test_nan_in_the_same_places_is_no_error():
    got, expected = np.array([np.nan, 1.0, np.inf]), np.array([np.nan, 1.0 + 1e-15, np.inf])
    assert compare([got], [expected]).verified


def test_half_precision_may_differ_more():
    half = np.array([1.0, 2.0], np.float16)
    assert compare([half * np.float16(1.002)], [half]).verified


@pytest.mark.parametrize(("transfers", "allowed", "refused"), [("float16", 9e-3, 2e-2), ("int8", 9e-2, 0.2)])
def test_lossy_transfers_are_named_and_may_be_further_off(transfers, allowed, refused):
    near, far = (compare([F * np.float32(1 + error)], [F], transfers) for error in (allowed, refused))
    assert near.verified
    assert near.as_dict()["transfer_dtype"] == transfers
    assert f"floats travelling as {transfers} (lossy): max absolute error" in near.text
    assert not compare([F * np.float32(1 + allowed)], [F]).verified
    assert not far.verified
    assert far.text.startswith("NOT verified within")


def test_lossy_transfers_excuse_no_other_integers():
    result = compare([np.array([1])], [np.array([2])], "int8")
    assert not result.verified
    assert "(lossy): output 0: int64 values differ" in result.text


def test_empty_outputs():
    empty = np.zeros((0, 4), np.float32)
    assert compare([empty], [empty]) == SAME


def test_the_worst_of_two():
    near, far = compare([F + np.float32(1e-4)], [F]), compare([F[:2]], [F])
    worst = near.worse(far)
    assert worst.max_abs_err == near.max_abs_err
    assert worst.fault == far.fault
    assert not worst.verified


def test_lists_and_dictionaries_are_compared_value_by_value():
    values = [[{1: 0.25, 2: 0.75}, {1: 0.5, 2: 0.5}], [np.ones(3, np.float32), np.zeros((2, 2), np.int64)]]
    assert compare(values, values).bit_identical
    other = [[{1: 0.25, 2: 0.75}, {1: 0.5, 2: 0.25}], values[1]]
    assert not compare(other, values).verified
    assert "inside" in compare([values[0][:1], values[1]], values).fault
