"""Placements: what each gives each device, and that uneven shares and lengths still cover the whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.cluster.types import Link, Network
from bbgrap.cluster.wires import Wiring, tree
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


def test_levels_follow_the_tree_of_wires_whatever_the_order_of_the_nodes() -> None:
    names = [f"n{number}" for number in range(6)]
    link = Link(1e8, 0.0)
    shuffled = ["n0", "n3", "n1", "n4", "n2", "n5"]
    for ways, order in (((2, 3), names), ((2, 3), shuffled), ((3, 2), shuffled)):
        wiring = Wiring(tree(names, [(way, link) for way in ways]))
        cluster = Cluster(tuple(NodeProfile(name, share=1.0 + int(name[1])) for name in order), Network(wiring=wiring))
        levels = Levels.of(cluster)
        assert levels.ways == ways
        leaves = [order[device] for device in levels.devices]
        width = 6 // ways[0]
        assert {frozenset(leaves[at : at + width]) for at in range(0, 6, width)} == {
            frozenset(names[at : at + width]) for at in range(0, 6, width)
        }
        assert levels.shares == tuple(1.0 + int(name[1]) for name in leaves)
        assert order[levels.root] == "n5"


def test_levels_follow_racks_of_one_size_and_elsewhere_prime_factors() -> None:
    def levels(groups: str) -> Levels:
        return Levels.of(Cluster(tuple(NodeProfile(f"n{number}", group=group.strip()) for number, group in enumerate(groups))))

    assert levels("abbaba") == Levels((2, 3), (1.0,) * 6, (0, 3, 5, 1, 2, 4))
    assert levels("aabbcc").ways == (3, 2)
    assert levels("      ") == levels("aaaaaa") == levels("aaaabb") == Levels((3, 2), (1.0,) * 6, (0, 1, 2, 3, 4, 5))


def test_tiles_of_a_tree_are_those_of_its_leaves_in_device_order() -> None:
    mixed = Levels((2, 2), (1.0,) * 4, (0, 2, 1, 3))
    plain = tiles_of(FOUR, PRODUCT, (Shard(0), Shard(1)))
    assert [tile.device for tile in tiles_of(mixed, PRODUCT, (Shard(0), Shard(1)))] == [0, 1, 2, 3]
    assert [tile.region for tile in tiles_of(mixed, PRODUCT, (Shard(0), Shard(1)))] == [plain[at].region for at in (0, 2, 1, 3)]
