"""Bounds of crops mean the same of values of other sizes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.graph.slices import from_nearer_end


@given(st.integers(0, 20).flatmap(lambda n: st.tuples(st.just(n), *[st.integers(0, n)] * 2)))
def test_they_are_the_same_crop(case):
    extent, start, stop = case[0], min(case[1:]), max(case[1:])
    low, high = from_nearer_end(start, stop, extent)
    assert np.arange(extent)[low:high].tolist() == list(range(start, stop))


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (2, 10), (1, 8), (8, 10), (9, 9)])
def test_of_a_longer_value_as_much_is_cut_off(start, stop):
    """What is nearer to the end moves with it."""
    moved = [place + 6 if place > 5 else place for place in (start, stop)]
    assert from_nearer_end(*moved, 16) == from_nearer_end(start, stop, 10)
