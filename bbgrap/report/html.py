"""A report on one model on one cluster, as a single HTML file that loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bbgrap.costmodel.timeline import Timeline
from bbgrap.report.gantt import timeline_svg
from bbgrap.report.layer_map import layers_svg
from bbgrap.report.layers import LayerReport
from bbgrap.report.svg import STYLE, milliseconds, text
from bbgrap.report.tables import exchange_table, facts_list, node_bars, prediction_error, segment_table, traffic_table
from bbgrap.report.trace import SegmentTime

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def report_html(
    title: str,
    *,
    measured: Timeline | None = None,
    predicted: Timeline | None = None,
    segments: Sequence[SegmentTime] = (),
    layers: Sequence[LayerReport] = (),
    facts: Mapping[str, object] | None = None,
) -> str:
    """Return the page.

    Args:
        title: Its headline.
        measured: A request as it was; the devices of both timelines are the same.
        predicted: A request as the cost model sees it.
        segments: Measured times of segments over several requests, which go before those of the one timeline.
        layers: What the map of rows and channels shows.
        facts: What else is to be said, by name.
    """
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"/>',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        f"<title>{text(title)}</title>",
        f"<style>{STYLE}{_beside('page.css')}</style></head>",
        f'<body class="bbgrap"><main><h1>{text(title)}</h1>',
        *facts_list(facts or {}),
        *_sections(measured, predicted, segments, layers),
        '</main><div id="tip"></div>',
        f"<script>{_beside('page.js')}</script></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _beside(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _sections(
    measured: Timeline | None, predicted: Timeline | None, segments: Sequence[SegmentTime], layers: Sequence[LayerReport]
) -> Iterator[str]:
    timelines = {kind: timeline for kind, timeline in (("measured", measured), ("predicted", predicted)) if timeline is not None}
    shown = measured or predicted
    if shown is not None:
        yield from _timelines(timelines)
        yield _head("What the nodes do", "Time of one request, by what it goes into; the rest is the time between steps, and idleness.")
        yield from node_bars(timelines)
    if layers:
        devices = shown.devices if shown else [f"node {n}" for n in range(1 + max(s.device for layer in layers for s in layer.tiles))]
        said = "Each strip is a layer, from its first to its last row or channel; below it, what each node fetches of other nodes' parts."
        yield _head("Rows and channels per node", f"{said} '+2' counts the layers that are cut alike and fetch nothing.")
        yield f'<figure><div class="view">{layers_svg(layers, devices)}</div></figure>'
    if shown is not None:
        yield _head("Bytes per exchange", "What travels between nodes, by the values that it is part of.")
        yield _scrolled(traffic_table(shown))
        yield "<br/>"
        yield _scrolled(exchange_table(shown))
        yield from _segments(shown, "measured" if measured else "predicted", predicted if measured else None, segments)


def _timelines(timelines: Mapping[str, Timeline]) -> Iterator[str]:
    until_s = max(timeline.total_s for timeline in timelines.values())
    tools = '<button class="wider" aria-label="show more time">−</button><button class="closer" aria-label="look closer">+</button>'
    box = '<label><input type="checkbox" class="halos" checked="checked"/> halos</label><span>point at anything to read what it is</span>'
    yield _head("Timeline", "One request. Upper row of a node: computing, waiting. Lower row: sending, receiving. Curves are messages.")
    for kind, timeline in timelines.items():
        drawn = timeline_svg(timeline, f"{kind}: {milliseconds(timeline.total_s)}", until_s=until_s, styled=False)
        yield f'<figure class="time"><div class="tools">{tools}{box}</div><div class="view">{drawn}</div></figure>'


def _segments(shown: Timeline, kind: str, predicted: Timeline | None, segments: Sequence[SegmentTime]) -> Iterator[str]:
    medians = {(entry.device, entry.segment): entry.median_s for entry in segments}
    said = "A segment is everything that a node computes between two exchanges."
    if predicted is not None:
        error = prediction_error(shown, predicted, medians)
        said += f" Predictions are off by a factor of {error:.2f} (geometric mean)." if error else ""
    yield _head("Segments: measured and predicted" if predicted else "Segments", said)
    yield _scrolled(segment_table(shown, kind, predicted, medians))


def _head(title: str, said: str) -> str:
    return f"<h2>{text(title)}</h2><p>{text(said)}</p>"


def _scrolled(table: Iterator[str]) -> str:
    return f'<div class="scroll">{"".join(table)}</div>'
