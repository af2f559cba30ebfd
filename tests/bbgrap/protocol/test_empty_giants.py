"""Tensors without elements whose other extents numpy cannot multiply: found by fuzzing, sent by nobody who means well."""

import msgpack
import numpy as np
import pytest

from bbgrap.errors import RemoteProtocolError
from bbgrap.graph.types import DType
from bbgrap.program.dictionaries import EXACT, decode_with_dictionary
from bbgrap.program.encodings import decode_floats
from bbgrap.protocol.tensors import decode_array

SHAPES = [(0, 2**62, 2**62), (2**40, 0, 2**40)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_empty_tensor_of_giant_extents_is_an_error_of_the_protocol(shape):
    for dtype, content in ((DType.FLOAT, b""), (DType.INT8, b""), (DType.STRING, msgpack.packb([]))):
        with pytest.raises(RemoteProtocolError):
            decode_array(dtype, shape, content)
    for wire in ("exact", "float16", "int8"):
        with pytest.raises(RemoteProtocolError):
            decode_floats(b"", shape, wire)
    with pytest.raises(RemoteProtocolError):
        decode_with_dictionary(EXACT, shape)
    with pytest.raises(RemoteProtocolError):
        decode_with_dictionary((1).to_bytes(8, "little") + bytes(4 * 256), shape)


def test_empty_tensors_are_tensors():
    assert decode_array(DType.FLOAT, (0, 3), b"").shape == (0, 3)
    assert decode_floats(b"", (2, 0), "int8").shape == (2, 0)
    assert decode_with_dictionary(EXACT, (0, 5)).dtype == np.float32
