"""The data plane's framing: what is packed is unpacked to the same, anything else is a `RemoteProtocolError`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bbgrap.errors import ModelError, RemoteProtocolError
from bbgrap.graph.types import DType, TensorType
from bbgrap.program.encodings import carried
from bbgrap.protocol.data import Frame, Kind
from bbgrap.protocol.message_layout import MessageLayout, layouts_received, layouts_sent, pack, unpack
from bbgrap.protocol.tensors import decode_array, encode_array
from bbgrap.runtime.schedule import BufferSpec, LocalPart, LocalReceive, LocalSend, Schedule

DTYPES = [DType.FLOAT, DType.BOOL, DType.INT64, DType.FLOAT16, DType.UINT8, DType.COMPLEX128, DType.STRING]


@st.composite
def parts(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    if dtype is DType.STRING:
        array = draw(hnp.arrays(object, shape, elements=st.text(max_size=6)))
    else:
        array = draw(hnp.arrays(dtype.numpy, shape))
        if array.ndim and draw(st.booleans()):
            array = np.repeat(array, 2, axis=-1)[..., ::2]
    return TensorType(dtype, draw(st.sampled_from([None, array.shape]))), array


@given(st.lists(parts(), max_size=4))
def test_round_trip(given_parts):
    types, arrays = [kind for kind, _ in given_parts], [array for _, array in given_parts]
    layout = MessageLayout(1, tuple(types))
    payload = b"".join(pack(layout, arrays))
    assert layout.admits(len(payload))
    for buffer in (payload, memoryview(bytearray(payload))):
        for array, back in zip(arrays, unpack(layout, buffer), strict=True):
            assert back.shape == array.shape
            assert back.flags.aligned
            np.testing.assert_array_equal(back, array)


@given(st.lists(parts(), max_size=4), st.sampled_from(["float16", "int8"]))
def test_round_trip_in_fewer_bits(given_parts, wire):
    types, arrays = [kind for kind, _ in given_parts], [array for _, array in given_parts]
    layout = MessageLayout(1, tuple(types), wire)
    payload = b"".join(pack(layout, arrays))
    assert layout.admits(len(payload))
    for array, back in zip(arrays, unpack(layout, memoryview(payload)), strict=True):
        assert back.dtype == array.dtype
        assert back.flags.aligned
        np.testing.assert_array_equal(back, carried(array, wire))


@given(st.lists(parts(), max_size=4), st.booleans())
def test_round_trip_with_dictionaries(given_parts, with_picture):
    if with_picture:
        picture = (np.arange(120_000).reshape(1, 3, 200, 200) % 256 / np.float32(255)).astype(np.float32)
        given_parts = [*given_parts, (TensorType(DType.FLOAT, picture.shape), picture[:, :, ::-1])]
    types, arrays = [kind for kind, _ in given_parts], [array for _, array in given_parts]
    layout = MessageLayout(1, tuple(types), "dictionary")
    payload = b"".join(pack(layout, arrays))
    assert layout.admits(len(payload))
    for array, back in zip(arrays, unpack(layout, memoryview(payload)), strict=True):
        assert back.flags.aligned
        assert back.shape == array.shape
        np.testing.assert_array_equal(back, array)
    assert not with_picture or len(b"".join(pack(layout, arrays))) < 200_000, "a byte a number, where there were four"


def test_a_payload_with_dictionaries_has_a_most():
    layout = MessageLayout(1, (TensorType(DType.FLOAT, (1, 3, 100, 100)),), "dictionary")
    assert layout.admits(30_000)
    assert not layout.admits(121_000)
    assert MessageLayout(1, (TensorType(DType.FLOAT, None),), "dictionary").admits(1 << 40)


def test_sizes_in_fewer_bits():
    types = (TensorType(DType.FLOAT, (1, 3, 10, 10)), TensorType(DType.INT64, (2,)), TensorType(DType.FLOAT, (5,)))
    assert [MessageLayout(1, types, wire).nbytes for wire in ("exact", "float16", "int8")] == [1200 + 16 + 24, 600 + 16 + 16, 320 + 16 + 16]
    assert not MessageLayout(1, types, "float16").admits(1240)
    with pytest.raises(RemoteProtocolError, match="expected a payload of 632 bytes, got 1240"):
        unpack(MessageLayout(1, types, "float16"), bytes(1240))


@pytest.mark.parametrize("shape", [(64,), None])
@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, -1.0])
def test_a_scale_that_is_no_number_is_refused(shape, scale):
    layout = MessageLayout(1, (TensorType(DType.FLOAT, shape),), "int8")
    payload = bytearray(b"".join(pack(layout, [np.ones(64, np.float32)])))
    start = 0 if shape else 24
    payload[start : start + 4] = np.float32(scale).tobytes()
    with pytest.raises(RemoteProtocolError, match="a scale is negative, infinite or no number"):
        unpack(layout, payload)


@given(st.lists(parts(), max_size=3), st.binary(max_size=200), st.sampled_from(["exact", "float16", "int8", "dictionary"]))
def test_arbitrary_payload(given_parts, payload, wire):
    types = [kind for kind, _ in given_parts]
    try:
        assert len(unpack(MessageLayout(1, tuple(types), wire), payload)) == len(types)
    except RemoteProtocolError:
        return


@given(st.sampled_from([DType.FLOAT, DType.DOUBLE]), hnp.array_shapes(max_dims=2, max_side=70), st.data())
def test_arbitrary_payload_of_the_right_size(dtype, shape, data):
    layout = MessageLayout(1, (TensorType(dtype, shape),), data.draw(st.sampled_from(["float16", "int8"])))
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    payload = random.integers(0, 256, layout.nbytes, dtype=np.uint8).tobytes()
    try:
        (part,) = unpack(layout, payload)
    except RemoteProtocolError:
        return
    assert (part.shape, part.dtype) == (shape, dtype.numpy)


@given(st.binary(max_size=40))
def test_arbitrary_header(header):
    try:
        Frame.parse(header)
    except RemoteProtocolError:
        return


@given(
    st.builds(
        Frame,
        st.sampled_from(Kind),
        st.integers(0, 2**16 - 1),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**32 - 1),
    )
)
def test_header_round_trip(frame):
    assert Frame.parse(frame.to_bytes()) == frame
    assert len(frame.to_bytes()) == 32


def test_a_single_dense_part_is_not_copied():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    layout = MessageLayout(1, (TensorType(DType.FLOAT, (2, 3)),))
    (payload,) = pack(layout, [array])
    assert np.shares_memory(np.frombuffer(payload, np.uint8), array)
    (back,) = unpack(layout, payload)
    assert np.shares_memory(back, array)
    np.testing.assert_array_equal(back, array)


def test_a_part_with_gaps_is_one_piece():
    whole = np.random.default_rng(0).random((1, 3, 40, 16), dtype=np.float32)
    part = whole[:, :, 1:20]
    layout = MessageLayout(1, (TensorType(DType.FLOAT, part.shape),))
    (payload,) = pack(layout, [part])
    np.testing.assert_array_equal(unpack(layout, payload)[0], part)


def test_misaligned_content_is_copied():
    content = memoryview(bytes(17))[1:]
    assert decode_array(DType.DOUBLE, (2,), content).flags.aligned


def test_a_kernel_that_breaks_the_plan_is_named():
    with pytest.raises(ModelError, match=r"the plan says float\[2\], the kernel gave float32\[3\]"):
        pack(MessageLayout(1, (TensorType(DType.FLOAT, (2,)),)), [np.zeros(3, np.float32)])
    with pytest.raises(ModelError, match=r"the plan says float\[2\], the kernel gave float64\[2\]"):
        pack(MessageLayout(1, (TensorType(DType.FLOAT, (2,)),)), [np.zeros(2)])


def test_big_endian_and_bytes_strings():
    assert bytes(encode_array(np.array([1], ">i4"))) == b"\x01\0\0\0"
    back = decode_array(DType.STRING, (1,), encode_array(np.array([b"\xc3\xa4"], object)))
    assert back.tolist() == ["ä"]


def test_layouts_say_what_floats_become():
    spec = (BufferSpec("x", DType.FLOAT, (4,)), BufferSpec("y", DType.FLOAT, (4,)))
    schedule = Schedule(
        0,
        2,
        spec,
        (LocalReceive(5, 2, (0,), "float16"), LocalSend(6, 1, (LocalPart(0, None),), "int8"), LocalSend(7, 2, (LocalPart(0, None),))),
    )
    assert layouts_received(schedule)[5].nbytes == 8
    assert [layout.nbytes for layout in layouts_sent(schedule).values()] == [8, 16]


def test_letters_say_what_a_schedule_sends_and_expects():
    schedule = Schedule(
        0,
        1,
        (BufferSpec("x", DType.FLOAT, (4, 2)), BufferSpec("s", DType.STRING, None)),
        (LocalReceive(5, 1, (0, 1)), LocalSend(6, 1, (LocalPart(0, (((0, 1), (3, 4)), ((0, 2),))), LocalPart(1, None)))),
    )
    assert layouts_received(schedule)[5].types == (TensorType(DType.FLOAT, (4, 2)), TensorType(DType.STRING, None))
    assert layouts_sent(schedule)[6].types == (TensorType(DType.FLOAT, (2, 2)), TensorType(DType.STRING, None))
