"""Placements: what each gives each device, and that uneven shares and lengths still cover the whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bbgrap.planners.placements import ON_ONE, REPLICATE, Levels, Partial, Placement, Shard, factors, tiles_of
from bbgrap.shapemap import ShapeMap, covers
from bbgrap.tdl.language import Description, Sum, indices, operand

R, C, K = indices(r=6, c=8, k=5)
PRODUCT = Description((R, C), Sum((K,), operand(0)[R, K] * operand(1)[K, C]))
INNER = Partial("k", 5)
FOUR = Levels((2, 2), (1.0, 1.0, 1.0, 1.0))


def shown(levels: Levels, *placements: Placement) -> list[str]:
    return [f"{t.device} {t.region}{f' {t.part}' if t.part else ''}" for t in tiles_of(levels, PRODUCT, placements)]


def test_factors_come_largest_first() -> None:
    assert [factors(number) for number in (1, 2, 6, 12, 7, 8)] == [(), (2,), (3, 2), (3, 2, 2), (7,), (2, 2, 2)]


def test_two_axes_are_a_grid() -> None:
    assert shown(FOUR, Shard(0), Shard(1)) == ["0 [0:3, 0:4]", "1 [0:3, 4:8]", "2 [3:6, 0:4]", "3 [3:6, 4:8]"]


def test_one_axis_twice_is_strips() -> None:
    assert shown(FOUR, Shard(1), Shard(1)) == ["0 [0:6, 0:2]", "1 [0:6, 2:4]", "2 [0:6, 4:6]", "3 [0:6, 6:8]"]


def test_sums_and_copies() -> None:
    assert shown(FOUR, INNER, Shard(0)) == ["0 [0:3, 0:8] k 0:3", "1 [3:6, 0:8] k 0:3", "2 [0:3, 0:8] k 3:5", "3 [3:6, 0:8] k 3:5"]
    assert shown(FOUR, REPLICATE, Shard(0)) == ["0 [0:3, 0:8]", "1 [3:6, 0:8]", "2 [0:3, 0:8]", "3 [3:6, 0:8]"]
    assert shown(FOUR, ON_ONE, Shard(0)) == ["0 [0:3, 0:8]", "1 [3:6, 0:8]"]


def test_the_strongest_computes_alone_and_shares_divide_by_group() -> None:
    levels = Levels((2, 2), (1.0, 1.0, 1.0, 3.0))
    assert shown(levels, ON_ONE, ON_ONE) == ["3 [0:6, 0:8]"]
    assert shown(levels, Shard(0), Shard(1)) == ["0 [0:2, 0:4]", "1 [0:2, 4:8]", "2 [2:6, 0:2]", "3 [2:6, 2:8]"]
    assert levels.upper(1) == Levels((2,), (2.0, 4.0))


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.data())
def test_every_word_covers_every_part(shares: list[int], data: st.DataObject) -> None:
    levels = Levels(factors(len(shares)), tuple(map(float, shares)))
    known: list[Placement] = [Shard(0), Shard(1), INNER, REPLICATE, ON_ONE]
    tiles = tiles_of(levels, PRODUCT, tuple(data.draw(st.sampled_from(known)) for _ in levels.ways))
    whole = ShapeMap.full(PRODUCT.shape)
    parts = sorted({tile.part for tile in tiles if tile.part is not None}, key=lambda part: part.interval)
    for part in parts or [None]:
        assert covers((tile.region for tile in tiles if tile.part == part), whole)
    if parts:
        assert [part.interval.start for part in parts] == [0, *(part.interval.stop for part in parts[:-1])]
        assert parts[-1].interval.stop == 5
    assert [tile.device for tile in tiles] == sorted({tile.device for tile in tiles})
