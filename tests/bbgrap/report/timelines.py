"""Timelines and layers to draw: made-up ones for properties, and what must hold of every SVG."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from hypothesis import strategies as st

from bbgrap.costmodel.timeline import Span, Timeline
from bbgrap.report.layers import Fetch, LayerReport, LayerTile

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</title><script>alert('x')</script>\x00\x1b\ud800 & \" ' <b>"
NAMES = st.sampled_from(["agent0", "a" * 300, HOSTILE, "", "größer", "]]>"]) | st.text(max_size=8)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Up to four devices, each doing one thing after the other; messages have one sender and one receiver, not always both drawn."""
    count = draw(st.integers(1, 4))
    spans, message = [], 0
    for device in range(count):
        now = draw(st.floats(0, 1e-3))
        for _ in range(draw(st.integers(0, 6))):
            start = now + draw(st.sampled_from([0.0, 1e-9, 1e-4, 0.3]))
            now = start + draw(st.sampled_from([0.0, 1e-9, 3e-5, 0.1]) | st.floats(0, 1))
            lane = draw(st.sampled_from(["compute", "send", "receive", "wait"]))
            label = draw(NAMES)
            if lane == "compute":
                spans.append(Span(device, "compute", label, start, now, segment=draw(st.none() | st.integers(0, 5))))
            else:
                spans.append(Span(device, lane, label, start, now, message, draw(st.integers(0, count - 1)), draw(st.integers(0, 1 << 40))))
                message += draw(st.integers(0, 1))
    return Timeline(tuple(draw(NAMES) for _ in range(count)), tuple(spans))


def two_devices() -> Timeline:
    """Two agents and a host: agent a computes, sends to b, which waited for it and computes, too."""
    spans = (
        Span(0, "compute", "s0: y[0:2]", 0.001, 0.004, segment=0),
        Span(0, "send", "y[1:2]", 0.004, 0.0042, message=5, peer=1, bytes=64),
        Span(1, "compute", "s0: y[2:4]", 0.001, 0.002, segment=0),
        Span(1, "wait", "y[1:2]", 0.002, 0.0045, message=5, peer=0),
        Span(1, "receive", "y[1:2]", 0.0045, 0.0046, message=5, peer=0, bytes=64),
        Span(1, "compute", "join: y[1:4]", 0.0046, 0.005),
        Span(1, "compute", "s1: z", 0.005, 0.009, segment=1),
        Span(1, "send", "z", 0.009, 0.0091, message=6, peer=2, bytes=128),
        Span(2, "wait", "z", 0.0, 0.0095, message=6, peer=1),
        Span(2, "receive", "z", 0.0095, 0.01, message=6, peer=1, bytes=128),
    )
    return Timeline(("a", "b", "coordinator"), spans)


def layers() -> tuple[LayerReport, ...]:
    """A convolution with halos, one alike, one by channels whose tiles overlap, and a whole one."""
    halo = Fetch("x", "rows", 8, ((4, 5),), 20)
    return (
        LayerReport("conv", "Conv", "rows", 8, (LayerTile(0, ((0, 4),), (halo,)), LayerTile(1, ((4, 8),), ()))),
        LayerReport("relu", "Relu", "rows", 8, (LayerTile(0, ((0, 4),)), LayerTile(1, ((4, 8),)))),
        LayerReport("mix", "Conv", "channels", 6, (LayerTile(0, ((0, 2), (4, 6))), LayerTile(1, ((1, 5),)))),
        LayerReport(HOSTILE, "Fl<at>", "whole", 1, (LayerTile(0, ((0, 1),), (Fetch(HOSTILE, "whole", 1, ((0, 1),), 3),)),)),
    )


def check_svg(text: str) -> ET.Element:
    """Check that a picture is well-formed and that everything in it lies inside; return it."""
    root = ET.fromstring(text)  # noqa: S314 - our own output
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    _check_inside(root, width, height, 0.0)
    return root


def words_of(root: ET.Element) -> list[str]:
    """Return the pieces of text of a picture, without hover texts."""
    return [(word.text or "") + "".join(child.tail or "" for child in word) for word in root.iter(f"{SVG}text")]


def _check_inside(element: ET.Element, width: float, height: float, shift: float) -> None:
    moved = re.match(r"translate\(([-\d.]+) 0\)", element.get("transform", ""))
    shift += float(moved.group(1)) if moved else 0.0
    for xs, ys in _points(element):
        assert all(-0.01 <= x + shift <= width + 0.01 for x in xs), ET.tostring(element)
        assert all(-0.01 <= y <= height + 0.01 for y in ys), ET.tostring(element)
    for child in element:
        _check_inside(child, width, height, shift)


def _points(element: ET.Element) -> list[tuple[list[float], list[float]]]:
    def read(*names: str) -> list[float]:
        return [float(element.attrib[name]) for name in names]

    match element.tag.removeprefix(SVG):
        case "rect":
            x, y, w, h = read("x", "y", "width", "height")
            assert w >= 0
            assert h >= 0
            return [([x, x + w], [y, y + h])]
        case "line":
            return [(read("x1", "x2"), read("y1", "y2"))]
        case "text":
            return [(read("x"), read("y"))]
        case "path":
            numbers = [float(word) for word in re.findall(r"-?[\d.]+", element.attrib["d"])]
            return [(numbers[::2], numbers[1::2])]
    return []
