"""The content of tensors as bytes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bbgrap.graph.types import DType
from bbgrap.protocol.tensors import MAX_ONES_BYTES, UNTOUCHED_BYTES, decode_array, given_bytes, synthetic_inputs
from bbgrap.runtime.schedule import BufferSpec, Schedule

ROOT = Path(__file__).parents[3]


def host(*specs):
    """A host's schedule that is fed with tensors of these types and shapes."""
    buffers = tuple(BufferSpec(f"x{number}", dtype, shape) for number, (dtype, shape) in enumerate(specs))
    return Schedule(1, 1, buffers, (), tuple(range(len(specs))))


def test_synthetic_inputs_are_ones_of_the_right_types():
    schedule = host((DType.FLOAT, (2, 3)), (DType.INT64, ()), (DType.FLOAT, (0, 7)), (DType.BOOL, (3,)), (DType.INT32, (UNTOUCHED_BYTES,)))
    headers, contents = synthetic_inputs(schedule)
    assert given_bytes(schedule) == sum(map(len, contents))
    for header, content in zip(headers, contents, strict=True):
        np.testing.assert_array_equal(decode_array(header.dtype, header.shape, content), np.ones(header.shape, header.dtype.numpy))


def test_large_ones_take_no_memory():
    """A training step's are all of its weights, and are made between two heartbeats. In a process that does nothing else."""
    program = """
import numpy as np
import psutil
from bbgrap.graph.types import DType
from bbgrap.protocol.tensors import synthetic_inputs
from tests.bbgrap.protocol.test_tensors import host

schedule = host(*[(DType.FLOAT, (64 << 20,))] * 4)
before = psutil.Process().memory_info().rss
_, contents = synthetic_inputs(schedule)
print(sum(map(len, contents)), psutil.Process().memory_info().rss - before)
assert not any(np.frombuffer(content, np.uint8)[:: 1 << 12].any() for content in contents)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    size, grown = map(int, ended.stdout.split())
    assert size == 1 << 30
    assert grown < 64 << 20


def test_there_are_none_for_shapes_that_only_the_run_tells_and_for_texts():
    assert synthetic_inputs(host((DType.FLOAT, (2,)), (DType.FLOAT, None))) is None
    assert synthetic_inputs(host((DType.STRING, (2,)))) is None


@pytest.mark.parametrize(
    "specs",
    [
        [(DType.INT8, (MAX_ONES_BYTES + 1,))],
        [(DType.FLOAT, (UNTOUCHED_BYTES // 8,))] * (2 * MAX_ONES_BYTES // UNTOUCHED_BYTES + 1),
        [(DType.FLOAT, ((1 << 28) + 1,))],
        [(DType.FLOAT, (1 << 28,))] * 5,
    ],
    ids=["ones", "many small ones", "a tensor that no message has", "more than a message has"],
)
def test_there_are_none_that_are_long_to_make_or_that_no_client_could_send(specs):
    """A coordinator ended of a `MemoryError`: a client had asked for a plan of such integers."""
    assert synthetic_inputs(host(*specs)) is None
