"""The pictures of a plan and of the latest request that was recorded on it, for the page: SVG of `bbgrap.report`."""

from __future__ import annotations

import json
from typing import Any

from bbgrap.costmodel.timeline import Timeline, read_timeline
from bbgrap.errors import RemoteProtocolError
from bbgrap.protocol.status_messages import PlanShown
from bbgrap.report.gantt import timeline_svg
from bbgrap.report.layer_map import layers_svg
from bbgrap.report.layers import read_layers
from bbgrap.report.svg import milliseconds
from bbgrap.report.tables import exchanges_of, traffic
from bbgrap.report.trace import clock_error_s, timeline_of

_MAX_LAYERS, _MAX_SPANS = 600, 4000
"""What a browser still draws quickly."""
_MAX_EXCHANGES = 100
_NOTHING = Timeline((), ())


def drawn(shown: PlanShown) -> dict[str, Any]:
    """Return what the page shows of a plan, as plain values.

    Raises:
        RemoteProtocolError: if the report or the records make no sense.
    """
    report = _report(shown.report)
    agents = [str(name) for name in report.get("agents", [])]
    layers = read_layers(report.get("layers", []))
    predicted = read_timeline(report["predicted_timeline"]) if "predicted_timeline" in report else _NOTHING
    measured = timeline_of(shown.records, shown.devices) if shown.records else _NOTHING
    until_s, names = max(measured.total_s, predicted.total_s), measured.devices
    return {
        "agents": agents,
        "layers": len(layers),
        "layers_svg": layers_svg(layers[:_MAX_LAYERS], agents) if layers else "",
        "recorded_at": shown.recorded_at,
        "clock_error_s": clock_error_s(shown.records),
        "measured_s": measured.total_s,
        "measured_svg": _picture(measured, "measured", until_s),
        "predicted_svg": _picture(predicted, "predicted", until_s),
        "traffic": [[names[source], names[target], size] for (source, target), size in sorted(traffic(measured).items())],
        "exchanges": [[e.values, e.messages, e.bytes, e.longest_wait_s] for e in exchanges_of(measured)[:_MAX_EXCHANGES]],
    }


def _report(text: str) -> dict[str, Any]:
    try:
        report = json.loads(text or "{}")
    except ValueError as error:
        raise RemoteProtocolError(f"report: it is no JSON: {error}") from None
    if not isinstance(report, dict):
        raise RemoteProtocolError(f"report: expected an object, got {type(report).__name__}")
    return report


def _picture(timeline: Timeline, kind: str, until_s: float) -> str:
    if not timeline.spans or len(timeline.spans) > _MAX_SPANS:
        return ""
    return timeline_svg(timeline, f"{kind}: {milliseconds(timeline.total_s)}", until_s=until_s, styled=False)
