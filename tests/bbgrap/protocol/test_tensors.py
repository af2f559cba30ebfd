"""The content of tensors as bytes."""

import numpy as np

from bbgrap.graph.types import DType
from bbgrap.protocol.tensors import decode_array, given_bytes, synthetic_inputs
from bbgrap.runtime.schedule import BufferSpec, Schedule


def host(*specs):
    """A host's schedule that is fed with tensors of these types and shapes."""
    buffers = tuple(BufferSpec(f"x{number}", dtype, shape) for number, (dtype, shape) in enumerate(specs))
    return Schedule(1, 1, buffers, (), tuple(range(len(specs))))


def test_synthetic_inputs_are_ones_of_the_right_types_and_share_their_memory():
    schedule = host((DType.FLOAT, (2, 3)), (DType.INT64, ()), (DType.FLOAT, (5, 1, 4)), (DType.FLOAT, (0, 7)), (DType.BOOL, (3,)))
    headers, contents = synthetic_inputs(schedule)
    assert given_bytes(schedule) == sum(map(len, contents))
    for header, content in zip(headers, contents, strict=True):
        np.testing.assert_array_equal(decode_array(header.dtype, header.shape, content), np.ones(header.shape, header.dtype.numpy))
    small, large = (np.frombuffer(content, np.uint8) for content in (contents[0], contents[2]))
    assert np.shares_memory(small, large)


def test_there_are_none_for_shapes_that_only_the_run_tells_and_for_texts():
    assert synthetic_inputs(host((DType.FLOAT, (2,)), (DType.FLOAT, None))) is None
    assert synthetic_inputs(host((DType.STRING, (2,)))) is None
