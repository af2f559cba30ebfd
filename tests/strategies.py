"""Hypothesis strategies that several tests share."""

from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from bbgrap.shapemap import Interval, IntervalSet, ShapeMap


def intervals(extent: int = 12, *, least: int = 0) -> st.SearchStrategy[Interval]:
    """Return intervals inside `[0, extent)` of at least `least` elements."""
    starts = st.integers(0, extent - least)
    return starts.flatmap(lambda start: st.builds(Interval, st.just(start), st.integers(start + least, extent)))


def interval_sets(extent: int = 12, *, ranges: int = 3) -> st.SearchStrategy[IntervalSet]:
    """Return sets inside `[0, extent)` made of at most `ranges` intervals; the empty set is among them."""
    return st.lists(intervals(extent), max_size=ranges).map(lambda found: IntervalSet.of(*found))


def shapes(*, least: int = 0, most: int = 3, extent: int = 6) -> st.SearchStrategy[tuple[int, ...]]:
    """Return shapes without empty axes, of rank `least` to `most`."""
    return st.lists(st.integers(1, extent), min_size=least, max_size=most).map(tuple)


def shape_maps(shape: Sequence[int]) -> st.SearchStrategy[ShapeMap]:
    """Return regions of a tensor, empty ones among them."""
    return st.tuples(*(interval_sets(extent) for extent in shape)).map(ShapeMap)


@st.composite
def tiles(draw: st.DrawFn, shape: Sequence[int], splittable: Iterable[int], several_ranges: Iterable[int] = ()) -> ShapeMap:
    """Return a non-empty region: full along axes that do not split, of one range or (where allowed) two along the others."""
    splittable, several_ranges = set(splittable), set(several_ranges)
    axes = [IntervalSet.full(extent) for extent in shape]
    for axis, extent in enumerate(shape):
        if axis in splittable and draw(st.integers(0, 3)):
            ranges = 1 + (axis in several_ranges and draw(st.booleans()))
            axes[axis] = IntervalSet.of(*(draw(intervals(extent, least=1)) for _ in range(ranges)))
    return ShapeMap(tuple(axes))
