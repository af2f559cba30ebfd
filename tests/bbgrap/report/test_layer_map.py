"""The map of rows and channels."""

from hypothesis import given
from hypothesis import strategies as st

from bbgrap.report.layer_map import LEFT, RIGHT, WIDTH, layers_svg
from bbgrap.report.layers import Fetch, LayerReport, LayerTile
from tests.bbgrap.report.timelines import HOSTILE, NAMES, SVG, check_svg, layers, words_of

DEVICES = ("a", HOSTILE, "host")


@st.composite
def any_layers(draw):
    extent = draw(st.integers(1, 10_000))
    bounds = st.tuples(st.integers(0, extent), st.integers(0, extent)).map(sorted).map(tuple)
    ranges = st.lists(bounds, min_size=1, max_size=3).map(tuple)
    fetch = st.builds(Fetch, NAMES, st.sampled_from(["rows", "whole"]), st.just(extent), ranges, st.integers(0, 1 << 40))
    tile = st.builds(LayerTile, st.integers(0, 12), ranges, st.lists(fetch, max_size=2).map(tuple))
    tiles = st.lists(tile, min_size=1, max_size=5).map(tuple)
    return draw(st.lists(st.builds(LayerReport, NAMES, NAMES, st.sampled_from(["rows", "channels"]), st.just(extent), tiles), max_size=4))


@given(any_layers())
def test_every_plan_is_drawn_inside(drawn):
    check_svg(layers_svg(drawn, DEVICES))


def test_tiles_halos_and_layers_alike():
    root = check_svg(layers_svg(layers(), DEVICES))
    texts = set(words_of(root))
    assert {"conv +1", "mix", "rows 8", "channels 6", "whole"} <= texts
    assert "relu" not in texts
    tips = [title.text for title in root.iter(f"{SVG}title")]
    assert "a fetches rows 4:5 of x: 20 elements" in tips
    assert "a computes rows 0:4 of conv (Conv)" in tips
    tiles = {tile.find(f"{SVG}title").text: tile for tile in root.iter(f"{SVG}rect") if tile.find(f"{SVG}title") is not None}
    full = WIDTH - LEFT - RIGHT
    tile, halo = tiles["a computes rows 0:4 of conv (Conv)"], tiles["a fetches rows 4:5 of x: 20 elements"]
    assert (float(tile.get("x")), float(tile.get("width"))) == (LEFT, full / 2)
    assert (float(halo.get("x")), float(halo.get("width"))) == (LEFT + full / 2, full / 8)
    assert float(halo.get("y")) > float(tile.get("y")) + float(tile.get("height"))
    # Tiles that overlap lie below each other.
    mixed = [tile for tip, tile in tiles.items() if tip.endswith("of mix (Conv)")]
    assert len({tile.get("y") for tile in mixed}) == 2


def test_fetches_lie_beside_each_other_where_they_do_not_overlap():
    def fetch(start, stop):
        return (Fetch("x", "rows", 100, ((start, stop),), 1),)

    tiles = tuple(LayerTile(n, ((25 * n, 25 * n + 25),), fetch(*part)) for n, part in enumerate([(25, 30), (20, 25), (45, 55), (70, 75)]))
    root = check_svg(layers_svg([LayerReport("conv", "Conv", "rows", 100, tiles)], ("a", "b", "c", "d")))
    heights = {tile.find(f"{SVG}title").text.split()[0]: tile.get("y") for tile in root.iter(f"{SVG}rect") if len(tile)}
    assert heights["a"] == heights["c"] == heights["d"] != heights["b"]
