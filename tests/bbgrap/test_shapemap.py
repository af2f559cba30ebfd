"""Regions against sets of points (property P1)."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.shapemap import Interval, IntervalSet, ShapeMap, covers, subtract_all
from tests.strategies import interval_sets, intervals, shape_maps, shapes


def points(region):
    return set(product(*region.axes))


def dense_order(region):
    return list(product(*region.axes))


maps = shapes().flatmap(shape_maps)
pairs = shapes().flatmap(lambda shape: st.tuples(shape_maps(shape), shape_maps(shape)))


@given(intervals(), intervals(), st.integers(-20, 20))
def test_interval_operations_are_set_operations(a, b, offset):
    def inside(interval):
        return set(range(interval.start, interval.stop))

    assert inside(a.intersect(b)) == inside(a) & inside(b)
    assert inside(a.shift(offset)) == {i + offset for i in inside(a)}
    assert len(a) == len(inside(a))
    assert [i for i in range(-1, 15) if i in a] == sorted(inside(a))


def test_interval_rejects_reversed_bounds():
    with pytest.raises(ValueError, match=r"expected start <= stop, got \[3, 2\)"):
        Interval(3, 2)


@pytest.mark.parametrize("ranges", [((0, 2), (2, 3)), ((4, 5), (0, 1)), ((0, 3), (2, 4)), ((1, 1),), ((0, 1), (3, 3))])
def test_interval_set_rejects_what_is_not_normal(ranges):
    with pytest.raises(ValueError, match="interval set"):
        IntervalSet(tuple(Interval(*r) for r in ranges))


@given(st.lists(intervals(), max_size=5))
def test_interval_set_normal_form_is_unique(pieces):
    members = {i for piece in pieces for i in range(piece.start, piece.stop)}
    built = IntervalSet.of(*pieces)
    assert set(built) == members
    assert built == IntervalSet.of(*((i, i + 1) for i in members)) == IntervalSet.of(*reversed(pieces), *pieces)
    assert built == IntervalSet(built.ranges)  # what `of` builds passes the constructor's own check
    assert list(built) == sorted(members)
    assert len(built) == len(members)
    assert [i for i in range(-1, 15) if i in built] == sorted(members)


@given(interval_sets(), interval_sets(), st.integers(-3, 15))
def test_interval_set_operations_are_set_operations(a, b, number):
    left, right = set(a), set(b)
    assert set(a.union(b)) == left | right
    assert set(a.intersect(b)) == left & right
    assert set(a.subtract(b)) == left - right
    assert a.issuperset(b) == (left >= right)
    assert set(a.shift(number)) == {i + number for i in left}
    assert set(a.shift(-3).clip(6)) == {i - 3 for i in left if 0 <= i - 3 < 6}
    assert a.position_of(number) == len([i for i in left if i < number])
    assert a.hull == (Interval(min(left), max(left) + 1) if left else Interval(0, 0))


@given(interval_sets(), interval_sets())
def test_interval_set_laws(a, b):
    assert a.subtract(b).union(a.intersect(b)) == a
    assert a.union(b) == b.union(a)
    assert a.intersect(b) == b.intersect(a)
    assert a.union(a) == a.intersect(a) == a


@given(interval_sets(), interval_sets())
def test_ranges_within_are_places_in_the_dense_layout(outer, inner):
    if not outer.issuperset(inner):
        with pytest.raises(ValueError, match="does not lie within"):
            inner.ranges_within(outer)
        return
    dense = list(outer)
    local = inner.ranges_within(outer)
    assert [dense[i] for r in local for i in range(r.start, r.stop)] == list(inner)
    assert IntervalSet(local).ranges == local


@given(maps)
def test_region_counts_its_points(region):
    assert region.size == len(points(region))
    assert region.shape == tuple(len(axis) for axis in region.axes)
    assert region.is_empty == (not points(region))
    assert region.rank == len(region.shape)


@given(shapes())
def test_full_region_is_the_tensor(shape):
    assert points(ShapeMap.full(shape)) == set(product(*map(range, shape)))
    assert ShapeMap.full(shape) == ShapeMap.of(*((0, extent) for extent in shape))


@given(pairs)
def test_region_operations_are_set_operations(pair):
    a, b = pair
    assert points(a.intersect(b)) == points(a) & points(b)
    assert a.issuperset(b) == (points(a) >= points(b))
    pieces = a.subtract(b)
    assert set().union(*map(points, pieces)) == points(a) - points(b)
    assert sum(piece.size for piece in pieces) == len(points(a) - points(b))
    assert not any(piece.is_empty for piece in pieces)


@given(pairs)
def test_hull_is_the_smallest_product_of_sets(pair):
    a, b = pair
    both = points(a) | points(b)
    axes = [{point[axis] for point in both} for axis in range(a.rank)]
    assert points(a.hull(b)) == (set(product(*axes)) if both else set())


@given(maps, st.data())
def test_hull_along_one_axis_is_the_union(a, data):
    if not a.rank:
        return
    axis = data.draw(st.integers(0, a.rank - 1))
    b = a.replace(axis, data.draw(interval_sets()))
    assert points(a.hull(b)) == points(a) | points(b)


@given(pairs)
def test_slices_within_select_the_region_from_the_dense_tensor(pair):
    outer, other = pair
    inner = outer.intersect(other)
    local = inner.slices_within(outer)
    dense = [list(axis) for axis in outer.axes]
    chosen = [[values[i] for r in ranges for i in range(r.start, r.stop)] for values, ranges in zip(dense, local, strict=True)]
    assert list(product(*chosen)) == dense_order(inner)


@given(shapes(extent=4).flatmap(lambda shape: st.tuples(shape_maps(shape), st.lists(shape_maps(shape), max_size=4))))
def test_subtract_all_and_covers(drawn):
    region, holes = drawn
    left = points(region).difference(*map(points, holes))
    pieces = subtract_all(region, holes)
    assert set().union(*map(points, pieces)) == left
    assert sum(piece.size for piece in pieces) == len(left)
    assert covers(holes, region) == (not left)


def test_rank_zero_is_one_element():
    scalar = ShapeMap(())
    assert scalar.size == 1
    assert not scalar.is_empty
    assert scalar.subtract(scalar) == ()
    assert covers([scalar], scalar)
    assert not covers([], scalar)
    assert scalar.slices_within(scalar) == ()


def test_regions_of_different_rank_do_not_mix():
    with pytest.raises(ValueError, match="zip"):
        ShapeMap.full((2,)).intersect(ShapeMap.full((2, 2)))


def test_regions_are_written_as_in_the_papers():
    region = ShapeMap.of((0, 1), IntervalSet.of((0, 2), (6, 8)), Interval(1, 3), IntervalSet(()))
    assert str(region) == "[0:1, 0:2,6:8, 1:3, -]"
    assert str(Interval(1, 3)) == "1:3"
