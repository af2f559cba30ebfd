"""Contents of tensors, there and back."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from bbgrap.serving import datatypes
from bbgrap.serving.refusals import RefusedError
from bbgrap.serving.server import listen

ARRAYS = st.sampled_from([name for name in datatypes.NUMPY if name not in ("BF16", "BYTES")]).flatmap(
    lambda name: st.tuples(
        st.just(name), numpy_strategies.arrays(datatypes.NUMPY[name], numpy_strategies.array_shapes(min_dims=0, min_side=0, max_side=4))
    )
)
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"])))


@given(ARRAYS)
def test_bytes_are_the_same_tensor(case):
    name, array = case
    content = bytes(datatypes.to_bytes(array))
    back = datatypes.of_bytes("x", name, array.shape, content)
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert not array.size or np.shares_memory(back, np.frombuffer(content, np.uint8))
    with pytest.raises(RefusedError):
        datatypes.of_bytes("x", name, array.shape, content + b"\0")


@given(ARRAYS)
def test_lists_are_the_same_tensor(case):
    name, array = case
    back = datatypes.of_list("x", name, array.shape, datatypes.to_list(array))
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype


@given(
    st.sampled_from(["FP32", "FP64", "BF16"]),
    st.lists(st.integers(2**64, 10**30) | st.integers(-(10**30), 10**30) | st.floats(-1e30, 1e30), min_size=1),
)
def test_whole_numbers_of_any_size_are_floats(name, numbers):
    """JavaScript writes 1e20 as 100000000000000000000."""
    back = datatypes.of_list("x", name, (1, len(numbers)), [numbers])
    np.testing.assert_allclose(back[0].astype(np.float64), [float(number) for number in numbers], 0 if name == "FP64" else 2**-8, 1e-30)


@pytest.mark.parametrize("wrong", [10**400, None, True, "1", {}])
def test_what_is_no_number_beside_a_large_one_is_refused(wrong):
    with pytest.raises(RefusedError):
        datatypes.of_list("x", "FP64", (2,), [10**20, wrong])


@given(TEXTS)
def test_texts_go_both_ways(texts):
    array = np.array([*texts, "end"], object)
    for back in (
        datatypes.of_bytes("x", "BYTES", array.shape, datatypes.to_bytes(array)),
        datatypes.of_list("x", "BYTES", array.shape, datatypes.to_list(array)),
    ):
        assert back.tolist() == array.tolist()


@pytest.mark.parametrize("wrong", ["\ud800", b"\xff", 5, None])
def test_what_is_no_text_is_refused(wrong):
    with pytest.raises(RefusedError):
        datatypes.of_list("x", "BYTES", (2,), ["a", wrong])


@pytest.mark.parametrize("nested", [False, True])
def test_a_long_text_among_numbers_takes_no_memory(nested):
    text = "a" * 100_000_000
    data = [[1.5] * 30_000, [text]] if nested else [text, *[1.5] * 30_000]
    tracemalloc.start()
    try:
        with pytest.raises(RefusedError, match="expected numbers of FP32, got"):
            datatypes.of_list("x", "FP32", (1, 30_001), data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=60), st.integers(0, 8))
def test_bytes_that_are_no_texts_are_refused(content, count):
    try:
        array = datatypes.of_bytes("x", "BYTES", (count,), content)
    except RefusedError:
        return
    assert bytes(datatypes.to_bytes(array)) == content


def test_a_listening_socket_is_known_as_tcp():
    """Where it is not, asyncio leaves small packets to wait for others, 40 ms for each answer."""
    with listen("--http", "127.0.0.1:0") as listening:
        assert listening.proto != 0
