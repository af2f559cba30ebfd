"""What can be computed from what is held: sound for every operator, and all there is for moved elements."""

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bbgrap.shapemap import IntervalSet, ShapeMap
from bbgrap.tdl import computable, input_regions
from bbgrap.tdl.computable_regions import MOST_RANGES
from bbgrap.tdl.language import Constant, Description, Index, operand
from tests.bbgrap.tdl.test_operators import CASES, FEWER, label
from tests.bbgrap.tdl.verifier import Case, Whole
from tests.strategies import shape_maps, shapes


def reshape(before, after):
    return Whole(Case("Reshape", (np.zeros(before, np.float32), np.array(after, np.int64)), parameters=frozenset((1,)))).describe()


@pytest.mark.parametrize("op", CASES, ids=label)
@settings(max_examples=max(1, FEWER // 2))
@given(data=st.data())
def test_whatever_is_said_to_be_computable_reads_what_is_held(op, data):
    whole = Whole(data.draw(CASES[op]()))
    description = whole.describe()
    operands = [whole.graph.types[name].shape if name else None for name in whole.node.inputs]
    held = [None if shape is None else data.draw(st.none() | shape_maps(shape)) for shape in operands]
    region = computable(description, held, operands)
    if region is None or region.is_empty:
        return
    assert ShapeMap.full(description.shape).issuperset(region)
    for mine, read in zip(held, input_regions(description, region, operands), strict=True):
        assert mine is None or read is None or mine.issuperset(read)


@given(shapes(least=2, most=4, extent=4), st.data())
def test_of_joined_axes_every_held_element_is_found(before, data):
    axis = data.draw(st.integers(0, len(before) - 1))
    cut = data.draw(shape_maps((before[axis],)).filter(lambda region: not region.is_empty)).axes[0]
    held = ShapeMap.full(before).replace(axis, cut)
    region = computable(reshape(before, (prod(before),)), [held, None], [before, (1,)])
    numbers = np.arange(prod(before)).reshape(before)[np.ix_(*(list(a) for a in held.axes))]
    expected = IntervalSet.of(*((n, n + 1) for n in numbers.ravel().tolist()))
    if len(expected.ranges) <= MOST_RANGES:
        assert region == ShapeMap((expected,))
    else:
        assert region is None


def test_pieces_side_by_side_keep_their_places():
    x = Index("x", 10)
    description = Description((x,), operand(0)[(x,)] + operand(1)[(x - 4,)])
    held = [ShapeMap.of((0, 2)), ShapeMap.of((3, 6))]
    assert computable(description, held, [(4,), (6,)]) == ShapeMap.of(IntervalSet.of((0, 2), (7, 10)))


def test_too_many_ranges_and_sums_of_indices_are_given_up():
    assert computable(reshape((100, 4), (400,)), [ShapeMap.of((0, 100), (1, 2)), None], [(100, 4), (2,)]) is None
    x, y = Index("x", 4), Index("y", 4)
    assert computable(Description((x, y), operand(0)[(x + y,)]), [ShapeMap.of((0, 3))], [(7,)]) is None
    assert computable(Description((x,), operand(0)[(Constant(2),)]), [ShapeMap.of((0, 2))], [(4,)]) is None
