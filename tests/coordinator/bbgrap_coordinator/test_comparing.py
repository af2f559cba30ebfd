"""Answers of several runs are compared by the project's law, whatever they are."""

import numpy as np
import pytest
from bbgrap_coordinator.comparing import compared

from bbgrap.control.coordinator_instructions import Answer, Compare
from bbgrap.graph.types import DType
from bbgrap.protocol.messages import TensorHeader
from bbgrap.protocol.tensors import encode_array
from bbgrap.protocol.values import pack_value

X = np.random.default_rng(0).random((4, 64), dtype=np.float32)


def answer(*arrays, name="y"):
    headers = tuple(TensorHeader(f"{name}{place}", DType.of(array.dtype), array.shape) for place, array in enumerate(arrays))
    return Answer(headers, tuple(encode_array(array) for array in arrays))


def faults(*answers, transfers="exact"):
    return compared(Compare(7, answers, transfers)).faults


def test_the_last_is_compared_with_each_before():
    wrong = X.copy()
    wrong[1, 2] += 0.01
    result = compared(Compare(7, (answer(X), answer(wrong), answer(X)), "exact"))
    assert result.check == 7
    assert result.faults[0] == ""
    assert result.faults[1].startswith("output 0: at [1, 2] got")


@pytest.mark.parametrize(
    ("other", "transfers", "same"),
    [
        (X + np.float32(1e-7), "exact", True),
        (X + np.float32(1e-3), "exact", False),
        (X + np.float32(1e-3), "float16", True),
        (X.astype(np.float64), "exact", False),
        (X[:2], "exact", False),
        (np.where(X > 0.5, np.nan, X), "exact", False),
    ],
)
def test_floats_are_the_same_within_rounding_and_the_loss_of_transfers(other, transfers, same):
    (fault,) = faults(answer(X), answer(other), transfers=transfers)
    assert (fault == "") is same


def test_numbers_in_lists_and_maps_are_compared_as_numbers():
    first, near, far = (pack_value([{"cat": 0.25 + error, "dog": 0.5}]) for error in (0.0, 1e-16, 1e-3))
    assert faults(answer(first), answer(near)) == ("",)
    assert faults(answer(first), answer(far))[0]
    assert faults(answer(first), answer(np.zeros(first.size, np.uint8)))[0]
    pixels = np.frombuffer(b"\x91\x01", np.uint8)  # by chance a list
    assert faults(answer(pixels), answer(pixels.copy())) == ("",)


def test_other_outputs_are_another_answer():
    assert "instead of" in faults(answer(X), answer(X, X))[0]
    assert "instead of" in faults(answer(X), answer(X, name="z"))[0]


def test_what_cannot_be_compared_is_no_error(caplog):
    broken = Answer((TensorHeader("y0", DType.FLOAT, (9, 9)),), (b"123",))
    assert compared(Compare(7, (answer(X), broken), "exact")).faults is None
    assert "cannot be compared" in caplog.text
