"""The map of rows and channels: for every layer a strip that shows which part each device computes, and below it what each one fetches.

    conv1  rows 112   |#### agent0 ####|#### agent1 ####|
                                     ==                        agent0 fetches rows of agent1
                                   ==                          agent1 fetches rows of agent0

Strips are as wide as their layer's axis, whatever its length, so that a boundary that stays where it is forms a line from top to bottom.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from bbgrap.errors import shortened
from bbgrap.report.layers import Fetch, GlobalRanges, LayerReport, LayerTile
from bbgrap.report.svg import COLOURS, picture, rectangle, words

WIDTH, LEFT, RIGHT = 1160.0, 216.0, 132.0
"""Of the picture, of the names on its left, and of what the axes are on its right."""
_TOP, _STRIP, _FETCH, _GAP = 44.0, 13.0, 4.0, 6.0
_TITLE = "Layers, in order"
_NAME = 30
_APART = 0.004
"""Between two fetches in a row, as a part of the width."""
_LEGEND = 10


def layers_svg(layers: Sequence[LayerReport], devices: Sequence[str]) -> str:
    """Return the picture of all layers, for a page; those that are cut like the one before and fetch nothing are counted there."""
    body, y = [words(8, 18, _TITLE, "head", tip=_TITLE), *_legend(layers, devices)], _TOP
    for layer, alike in _grouped(layers):
        rows, height = _layer(layer, devices, y, alike)
        body += rows
        y += height + _GAP
    return picture(WIDTH, y + 4, body, _TITLE, styled=False)


def _grouped(layers: Sequence[LayerReport]) -> list[tuple[LayerReport, list[LayerReport]]]:
    groups: list[tuple[LayerReport, list[LayerReport]]] = []
    for layer in layers:
        if groups and not any(tile.fetches for tile in layer.tiles) and _cuts(layer) == _cuts(groups[-1][0]):
            groups[-1][1].append(layer)
        else:
            groups.append((layer, []))
    return groups


def _cuts(layer: LayerReport) -> object:
    return layer.axis, layer.extent, [(tile.device, tile.computes) for tile in layer.tiles]


def _legend(layers: Sequence[LayerReport], devices: Sequence[str]) -> list[str]:
    used = sorted({tile.device for layer in layers for tile in layer.tiles if tile.device < len(devices)})
    marks: list[str] = []
    for place, device in enumerate(used[:_LEGEND]):
        x = LEFT + 88 * place
        marks += [
            rectangle(x, 26, 11, 11, f"tile {_colour(device)}"),
            words(x + 16, 36, shortened(devices[device], 10), "soft", tip=devices[device]),
        ]
    return marks


def _colour(device: int) -> str:
    return f"d{device % COLOURS}"


def _layer(layer: LayerReport, devices: Sequence[str], y: float, alike: Sequence[LayerReport]) -> tuple[list[str], float]:
    full = f"{layer.name} ({layer.operator})"
    tip = full if not alike else f"{full}; cut alike after it: {', '.join(other.name for other in alike)}"
    more = f" +{len(alike)}" if alike else ""
    rows = [
        words(LEFT - 12, y + 11, f"{shortened(layer.name, _NAME - len(more))}{more}", anchor="end", tip=shortened(tip, 600)),
        rectangle(LEFT, y, WIDTH - LEFT - RIGHT, _STRIP, "band"),
        words(WIDTH - RIGHT + 10, y + 11, "whole" if layer.axis == "whole" else f"{shortened(layer.axis, 12)} {layer.extent}", "soft"),
    ]
    beside = len(layer.tiles) if _overlap(layer.tiles) else 1
    for place, tile in enumerate(layer.tiles):
        top = y + _STRIP * place / beside if beside > 1 else y
        said = f"{_name(devices, tile.device)} computes {_said(layer.axis, tile.computes)} of {full}"
        rows += _bars(tile.computes, layer.extent, top, _STRIP / beside, tile.device, said)
    lanes: list[list[tuple[float, float]]] = []
    for device, fetch in ((tile.device, fetch) for tile in layer.tiles for fetch in tile.fetches):
        lane = _free_lane(lanes, fetch)
        said = f"{_name(devices, device)} fetches {_said(fetch.axis, fetch.ranges)} of {fetch.value}: {fetch.elements:,} elements"
        rows += _bars(fetch.ranges, fetch.extent, y + _STRIP + _FETCH * lane + 1, _FETCH - 1, device, said)
    return rows, _STRIP + _FETCH * len(lanes)


def _free_lane(lanes: list[list[tuple[float, float]]], fetch: Fetch) -> int:
    """Return the first lane where a fetch overlaps nothing, and take its place there."""
    places = [(start / max(fetch.extent, 1), stop / max(fetch.extent, 1)) for start, stop in fetch.ranges]
    for number, lane in enumerate(lanes):
        if all(a >= stop + _APART or b <= start - _APART for a, b in places for start, stop in lane):
            lane.extend(places)
            return number
    lanes.append(places)
    return len(lanes) - 1


def _overlap(tiles: Sequence[LayerTile]) -> bool:
    ranges = sorted(part for tile in tiles for part in tile.computes)
    return any(later[0] < earlier[1] for earlier, later in pairwise(ranges))


def _bars(ranges: GlobalRanges, extent: int, y: float, height: float, device: int, tip: str) -> list[str]:
    scale, right, kind = (WIDTH - LEFT - RIGHT) / max(extent, 1), WIDTH - RIGHT, f"tile {_colour(device)}"
    bars = []
    for start, stop in ranges:
        # A single row of many would be too thin to be seen.
        width = min(max(1.5, (stop - start) * scale), right - LEFT)
        bars.append(rectangle(min(max(LEFT, LEFT + start * scale), right - width), y, width, height, kind, tip))
    return bars


def _said(axis: str, ranges: GlobalRanges) -> str:
    return "all" if axis == "whole" else f"{axis} {', '.join(f'{start}:{stop}' for start, stop in ranges)}"


def _name(devices: Sequence[str], device: int) -> str:
    return devices[device] if device < len(devices) else f"device {device}"
