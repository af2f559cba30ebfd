import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bbgrap.comparison.bounds import LEAST_SLICE, distance, excess, tightest

ZERO = np.zeros((1, 1))


def naive(values: np.ndarray) -> np.ndarray:
    bound = np.full(values.shape, values.max(initial=0.0))
    for place in np.ndindex(values.shape):
        for axis in range(values.ndim):
            inside = np.take(values, place[axis], axis)
            if inside.size >= LEAST_SLICE:
                bound[place] = min(bound[place], inside.max())
    return bound


@given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=1, max_dims=3, max_side=12), elements=st.floats(0, 1)))
def test_the_bound_of_an_element_is_the_least_of_the_largest_values_of_its_slices(values):
    assert np.array_equal(np.broadcast_to(tightest(values), values.shape), naive(values))


def test_an_ill_conditioned_channel_excuses_nothing_in_another_one():
    noise = np.full((1, 4, 10, 10), 1e-7)
    noise[0, 2] = 1e-2
    off = np.zeros_like(noise)
    off[0, 2, 3, 3] = 9e-3
    assert excess(off, np.full((1, 1, 1, 1), 1e-6), noise, 4, 4) is None
    off[0, 1, 3, 3] = 1e-4
    found = excess(off, np.full((1, 1, 1, 1), 1e-6), noise, 4, 4)
    assert found is not None
    assert found.index == (0, 1, 3, 3)
    assert found.allowed == 1e-6


def test_one_row_that_changes_places_explains_no_other_ten():
    noise = np.zeros((100, 4))
    noise[5:7] = 1.0
    off = np.zeros((100, 4))
    off[20:22] = 1.0
    assert excess(off, ZERO, noise, 1, 4) is None
    off[30:40] = 1.0
    found = excess(off, ZERO, noise, 1, 4)
    assert found is not None
    assert (found.off, found.own) == (48, 8)


def test_infinities_and_nan_are_no_distance_from_themselves_and_infinite_from_others():
    one = np.array([np.nan, np.inf, -np.inf, np.inf, np.nan, 1.0])
    other = np.array([np.nan, np.inf, -np.inf, -np.inf, 1.0, 3.0])
    assert distance(one, other).tolist() == [0, 0, 0, np.inf, np.inf, 2]


def test_an_infinite_difference_of_onnxruntime_excuses_no_neighbour():
    noise = np.zeros((1, 100))
    noise[0, 3] = np.inf
    off = np.zeros((1, 100))
    off[0, 4] = 1e-3
    assert excess(off, ZERO, noise, 4, 4) is not None
