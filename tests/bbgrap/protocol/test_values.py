"""Packed values: what comes out is what went in, and bytes from elsewhere raise one kind of error."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bbgrap.errors import InputError, RemoteProtocolError
from bbgrap.protocol import values
from bbgrap.protocol.values import MAX_DEPTH, Numbers, pack_value, unpack_value

DTYPES = st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.uint8, np.bool_, np.complex64]).map(np.dtype)
TENSORS = arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
TEXTS = st.lists(st.text(max_size=5), max_size=4).map(lambda texts: np.array([*texts, ""], object)[:-1])
SCALARS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(max_size=5))
MAPS = st.one_of(
    st.dictionaries(st.integers(-(2**63), 2**63 - 1), SCALARS, max_size=4), st.dictionaries(st.text(max_size=4), SCALARS, max_size=4)
)
ODD = st.integers(0, 5).map(lambda count: Numbers(16, (count,), bytes(2 * count)))
LEAVES = st.one_of(st.none(), TENSORS, TEXTS, MAPS, ODD)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3), max_leaves=6)


def alike(got: Any, want: Any) -> bool:
    if isinstance(want, np.ndarray):
        return (
            got.dtype == want.dtype and got.shape == want.shape and got.tobytes() == want.tobytes()
            if want.dtype != object
            else bool(got.shape == want.shape and got.tolist() == want.tolist())
        )
    if isinstance(want, list):
        return isinstance(got, list) and len(got) == len(want) and all(map(alike, got, want))
    return bool(got == want)


@given(VALUES)
def test_what_comes_out_is_what_went_in(value: Any) -> None:
    packed = pack_value(value)
    assert packed.dtype == np.uint8
    assert packed.ndim == 1
    assert alike(unpack_value(packed), value)


@given(VALUES, st.data())
def test_damaged_bytes_raise_one_kind_of_error(value: Any, data: st.DataObject) -> None:
    packed = pack_value(value)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(RemoteProtocolError):
        unpack_value(packed[:cut])
    changed = packed.copy()
    changed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(RemoteProtocolError):
        unpack_value(changed)


@given(st.binary(max_size=200))
def test_garbage_raises_one_kind_of_error(content: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        unpack_value(content)


def test_lengths_that_are_lies_cost_nothing() -> None:
    for lie in (b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"):  # list, map, text, bytes, extension
        with pytest.raises(RemoteProtocolError, match="packed value"):
            unpack_value(lie + b"\xff\xff\xff\xff")
    tensor = msgpack.ExtType(1, struct.pack("<BB2q", 1, 2, 2**40, 2**40))
    with pytest.raises(RemoteProtocolError):
        unpack_value(msgpack.packb(tensor))


def test_levels_are_counted() -> None:
    value: list[Any] = []
    for _ in range(MAX_DEPTH):
        value = [value]
    assert unpack_value(pack_value(value)) == value
    with pytest.raises(InputError, match="levels"):
        pack_value([value])
    with pytest.raises(RemoteProtocolError, match="levels"):
        unpack_value(b"\x91" * (MAX_DEPTH + 1) + b"\xc0")


def test_what_no_model_takes_is_named() -> None:
    with pytest.raises(InputError, match="not set"):
        pack_value([{1, 2}])
    for wrong in ({1: 2, "a": 3}, {1.0: 2}, 2**64, b"raw", np.array([0], "datetime64[s]")):
        with pytest.raises(InputError, match="value:"):
            pack_value([wrong])
    for wrong in (b"\xc4\x00", b"\x82\x01\x01\x01\x01", b"\x82\x01\x01\xa1a\x01", b"\x81\x90\x01", b"\xd6\xff\0\0\0\0", b"\xd4\x02\0"):
        with pytest.raises(RemoteProtocolError, match="packed"):
            unpack_value(wrong)
    with pytest.raises(RemoteProtocolError, match="do not take 3 bytes"):
        Numbers(16, (2,), b"abc")


@pytest.mark.parametrize("item", [b"\x80", b"\x91\xc0"], ids=["empty maps", "lists of nothing"])
def test_small_bytes_do_not_become_much_memory(item, monkeypatch):
    """A gigabyte of empty maps, which is a tensor that may be sent, would be 72 of memory."""
    monkeypatch.setattr(values, "MAX_CONTAINERS", 1 << 17)
    count = 3 << 17
    tracemalloc.start()
    with pytest.raises(RemoteProtocolError, match="more lists and maps"):
        unpack_value(b"\xdd" + count.to_bytes(4, "big") + item * count)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 25 << 20
