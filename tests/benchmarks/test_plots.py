"""Pictures are well-formed XML and show what they are given."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.plots import grouped_bars, lines

SVG = "{http://www.w3.org/2000/svg}"
VALUES = st.floats(0, 1e6, allow_nan=False)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Cn", "Co")), max_size=8)


@given(st.dictionaries(NAMES, st.dictionaries(NAMES, st.none() | VALUES, max_size=5), max_size=5))
def test_bars(values):
    root = ElementTree.fromstring(grouped_bars("<&>", values))  # noqa: S314 - ours
    drawn = [bar for bar in root.iter(f"{SVG}rect") if bar.find(f"{SVG}title") is not None]
    assert len(drawn) == sum(value is not None for of in values.values() for value in of.values())
    assert all(float(bar.get("y", "")) >= 0 and float(bar.get("height", "")) >= 0 for bar in drawn)


@given(st.dictionaries(NAMES, st.lists(st.tuples(st.integers(1, 64), VALUES), min_size=1, max_size=5), max_size=4))
def test_lines(points):
    root = ElementTree.fromstring(lines("nodes", points))  # noqa: S314 - ours
    assert len(list(root.iter(f"{SVG}circle"))) == sum(map(len, points.values()))
    assert len(list(root.iter(f"{SVG}polyline"))) == len(points)


def test_higher_values_are_higher_up():
    root = ElementTree.fromstring(grouped_bars("t", {"g": {"a": 1.0, "b": 2.0}}))  # noqa: S314 - ours
    low, high = (float(bar.get("height", "")) for bar in root.iter(f"{SVG}rect") if bar.find(f"{SVG}title") is not None)
    assert abs(high - 2 * low) < 0.2
