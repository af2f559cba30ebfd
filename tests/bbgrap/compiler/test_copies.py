"""Regions of several ranges are taken out of arrays, and put back, like numpy's own indices do."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.compiler.assembly import box_within
from bbgrap.runtime.schedule import extract, place
from bbgrap.shapemap import IntervalSet, ShapeMap
from tests.strategies import shape_maps, shapes


def checked(shape, region):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    index = np.ix_(*(list(axis) for axis in region.axes)) if shape else ()
    box = box_within(region, ShapeMap.full(shape))
    taken = extract(array, box)
    assert np.array_equal(taken, array[index])
    made, expected = np.full(shape, -1), np.full(shape, -1)
    place(made, box, taken)
    expected[index] = array[index]
    assert np.array_equal(made, expected)


@given(shapes(extent=9).flatmap(lambda shape: st.tuples(st.just(shape), shape_maps(shape).filter(lambda region: not region.is_empty))))
def test_slab_by_slab(case):
    checked(*case)


def test_many_slabs():
    every_second = IntervalSet.of(*((n, n + 1) for n in range(0, 20, 2)))
    checked((20, 20), ShapeMap((every_second, every_second)))
