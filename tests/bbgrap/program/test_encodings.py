"""Floats in fewer bits: how far off they may be, how many bytes they take, and what happens at the ends of their range."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bbgrap.cluster import Cluster
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.errors import RemoteProtocolError
from bbgrap.graph import Graph
from bbgrap.graph.types import Array, DType
from bbgrap.planners.options import TRANSFER_TYPES, PlanOptions, TransferType
from bbgrap.program.encodings import BLOCK, LARGEST_FLOAT16, carried, decode_floats, encode_floats, wire_bytes, wire_of
from bbgrap.runtime.schedule import LocalReceive, LocalSend
from tests.examples import examples
from tests.partition import compiled
from tests.random_models import clusters, networks, plan_options, random_feeds

SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9) | st.tuples(st.integers(60, 140))
WIRES = st.sampled_from(TRANSFER_TYPES)


def floats(*, special: bool) -> st.SearchStrategy[Array]:
    elements = st.floats(width=32, allow_nan=special, allow_infinity=special) | st.floats(-10, 10, width=32)
    return hnp.arrays(np.float32, SHAPES, elements=elements)


@given(floats(special=True), WIRES)
def test_sizes_shapes_and_what_is_no_number(array: Array, wire: TransferType) -> None:
    encoded = encode_floats(array, wire)
    assert encoded.nbytes == wire_bytes(array.size, wire)
    back = decode_floats(encoded.tobytes(), array.shape, wire)
    assert back.shape == array.shape
    assert back.dtype == np.float32
    special = ~np.isfinite(array)
    np.testing.assert_array_equal(back[special], array[special])
    assert np.isfinite(back[~special]).all()
    np.testing.assert_array_equal(back, carried(array, wire))


@given(floats(special=False))
def test_float16_is_off_by_half_a_unit_and_saturates(array: Array) -> None:
    back = carried(array, "float16").astype(np.float64)
    bounded = np.clip(array.astype(np.float64), -LARGEST_FLOAT16, LARGEST_FLOAT16)
    assert (np.abs(back - bounded) <= np.maximum(np.abs(bounded) * 2.0**-11, 2.0**-25)).all()


@given(floats(special=True))
def test_int8_is_off_by_half_a_scale(array: Array) -> None:
    back, flat = carried(array, "int8").astype(np.float64).reshape(-1), array.astype(np.float64).reshape(-1)
    for start in range(0, flat.size, BLOCK):
        block, got = flat[start : start + BLOCK], back[start : start + BLOCK]
        known = np.isfinite(block)
        scale = np.abs(block[known]).max(initial=0.0) / 126
        assert (np.abs(got[known] - block[known]) <= max(0.5 * scale * (1 + 1e-5), 1.5e-36)).all()


@given(floats(special=True), st.sampled_from(["float16", "int8"]))
def test_a_second_journey_changes_next_to_nothing(array: Array, wire: TransferType) -> None:
    """What is passed on arrives like what was sent directly, but for the last bit of a scale."""
    once = carried(array, wire)
    np.testing.assert_allclose(carried(once, wire), once, rtol=3e-7 if wire == "int8" else 0, atol=0 if wire == "float16" else 1e-36)


def test_float16_is_numpys_for_every_half_and_what_lies_between() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    for part in (halves, halves[np.isfinite(halves)]):
        exact = part.astype(np.float32)
        back = decode_floats(part.tobytes(), part.shape, "float16")
        np.testing.assert_array_equal(back.view(np.uint32), exact.view(np.uint32))
    middles = (exact[:-1] + exact[1:]) / 2
    middles = middles[np.isfinite(middles)]
    for near in (exact, middles, np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, np.float32(-np.inf))):
        assert encode_floats(near, "float16").tobytes() == near.astype(np.float16).tobytes()


def test_what_is_too_large_for_float16_becomes_the_largest() -> None:
    array = np.array([65504, 65519, 65520, 1e30, -7e4, np.inf, -np.inf, 6e-8, 1e-9], np.float32)
    back = carried(array, "float16")
    assert back[:7].tolist() == [65504, 65504, 65504, 65504, -65504, np.inf, -np.inf]
    assert back[7] == np.float32(2.0**-24)
    assert back[8] == 0


def test_exact_is_a_view_and_others_stay_as_they_are() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.shares_memory(encode_floats(array, "exact"), array)
    assert [wire_of(dtype, "int8") for dtype in (DType.FLOAT, DType.DOUBLE, DType.INT64, DType.FLOAT16)] == ["int8"] + 3 * ["exact"]
    for other in (np.arange(5), np.array([0.1]), np.array(["a"], object)):
        np.testing.assert_array_equal(carried(other, "int8"), other)


@pytest.mark.parametrize("wire", TRANSFER_TYPES)
def test_another_number_of_bytes_is_refused(wire: TransferType) -> None:
    content = encode_floats(np.ones(100, np.float32), wire).tobytes()
    for wrong in (content[:-1], content + b"\0", b""):
        with pytest.raises(RemoteProtocolError, match="expected"):
            decode_floats(wrong, (100,), wire)


@settings(max_examples=examples(20))
@given(networks(), clusters(), plan_options(), st.sampled_from(["float16", "int8"]))
def test_what_goes_to_agents_is_converted_and_answers_are_not(
    graph: Graph, cluster: Cluster, options: PlanOptions, wire: TransferType
) -> None:
    exact = compiled(graph, cluster, options)
    lossy = compiled(graph, cluster, options, wire)
    assert [d.steps for d in lossy.optimized.devices] == [d.steps for d in exact.optimized.devices]
    artifacts, plain = export(lossy.optimized), export(exact.optimized)
    for device in (*(d.schedule for d in artifacts.devices), artifacts.host):
        for step in device.steps:
            if isinstance(step, LocalSend):
                assert step.wire == ("exact" if step.destination == device.host else wire)
            elif isinstance(step, LocalReceive):
                assert step.wire == ("exact" if device.device == device.host else wire)
    feeds = random_feeds(graph)
    answers = (simulate(found, feeds, local_kernels(found)) for found in (artifacts, plain))
    for got, want in zip(*answers, strict=True):
        assert np.abs(got - want).max() <= {"float16": 1e-2, "int8": 0.2}[wire] * max(np.abs(want).max(), 1e-6)
