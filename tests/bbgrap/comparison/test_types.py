"""Every element type that a model's output may have is judged: equal, off by a little, off by much."""

import numpy as np
import pytest

from bbgrap.comparison import Rule, compare, judge_output

FLOATS = (np.float16, np.float32, np.float64, np.complex64, np.complex128)
OTHERS = (np.int8, np.uint8, np.int32, np.int64, np.uint64, np.bool_)


def drawn(dtype: type[np.generic], shape: tuple[int, ...]) -> np.ndarray:
    random = np.random.default_rng(0)
    return np.asarray(random.uniform(1, 2, shape) if dtype in FLOATS else random.integers(0, 2, shape)).astype(dtype)


@pytest.mark.parametrize("shape", [(), (1,), (3, 50), (2, 3, 40, 5)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_may_be_off_by_a_few_eps_and_not_by_a_hundred(dtype, shape):
    expected, eps = drawn(dtype, shape), np.finfo(dtype).eps
    assert compare([np.asarray(expected * dtype(1 + 2 * eps))], [expected]).rule is Rule.ROUNDING
    wrong = compare([np.asarray(expected * dtype(1 + 150 * eps))], [expected])
    assert not wrong.verified
    assert wrong.fault.startswith("output 0: at [")
    assert wrong.max_rel_err > 0


@pytest.mark.parametrize("shape", [(), (1,), (3, 50)])
@pytest.mark.parametrize("dtype", OTHERS)
def test_integers_and_booleans_are_equal_or_one_of_onnxruntimes(dtype, shape):
    expected = drawn(dtype, shape)
    other = np.asarray(~expected if dtype is np.bool_ else expected + dtype(1), dtype)
    assert compare([expected.copy()], [expected]).bit_identical
    assert not compare([other], [expected]).verified
    assert judge_output("output", other, expected, [other]).rule is Rule.SPREAD


def test_half_precision_noise_is_judged_by_the_spread():
    expected = drawn(np.float16, (8, 64))
    noise = np.random.default_rng(1).uniform(-0.05, 0.05, expected.shape)
    variant, got = (expected + noise).astype(np.float16), (expected - noise[::-1]).astype(np.float16)
    assert judge_output("output", got, expected).rule is Rule.NONE
    assert judge_output("output", got, expected, [variant]).rule is Rule.SPREAD
