"""A coordinator's status and rates as text of a given width: what `bbgrap status` and `bbgrap top` print."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence

from bbgrap.observing.rates import ModelRates, quantiles_of
from bbgrap.protocol.status_messages import LinkStatus, ModelStatus, NodeStatus, PlanStatus, Status
from bbgrap.report.printable import printable
from bbgrap.report.svg import byte_count, milliseconds

LEAST_WIDTH = 40
"""Columns that text is made for at least."""
_EVENTS = 8
"""Events that are shown."""
_PLANS = 8
"""Plans of a model that are shown one by one."""
_INPUTS = 4
"""Inputs whose shapes are shown: a decoder has dozens, for its state."""
_LINKS = 24
"""Links that are shown one by one: all of four nodes. Twenty have 400."""


def status_text(status: Status, width: int) -> str:
    """Return what there is, what serves and why."""
    models = [line for model in status.models for line in _model(model)]
    lines = [*_head(status), "", *(models or ["no model was brought yet"]), "", *_nodes(status), *_links(status), *_events(status)]
    return "\n".join(_fitted(lines, width))


def top_text(status: Status, rates: Sequence[ModelRates], width: int, height: int = 0) -> str:
    """Return what happens now; at most `height` lines, if it is not 0."""
    rows: list[tuple[str, ...]] = [("model", "req/s", "p50", "p95", "p99", "queue", "running", "failing/s")]
    for rate in rates:
        times = [milliseconds(seconds) if rate.per_s else "-" for seconds in rate.quantiles_s]
        rows.append((rate.name, f"{rate.per_s:.1f}", *times, str(rate.waiting), str(rate.running), f"{rate.failing_per_s:.1f}"))
    serving = [f"{model.name}: {_serves(plan)}" for model in status.models for plan in model.plans[:_PLANS]]
    lines = [*_head(status), "", *_table(rows, right=1), "", *serving, *([""] if serving else []), *_nodes(status), *_events(status)]
    fitted = _fitted(lines, width)
    return "\n".join(fitted[:height] if height else fitted)


def age_text(seconds: float) -> str:
    """Return how long something lasts, in its two largest units."""
    whole = max(0, int(seconds))
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


# --- parts ----------------------------------------------------------------------------------------------------------------------


def memory_text(count: int) -> str:
    """Return how much memory that is, in the larger unit that does not round it to nothing."""
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):,.0f} MiB"


def _head(status: Status) -> list[str]:
    alive = [node for node in status.nodes if node.state == "alive"]
    counts = [_count(len(alive), "node"), _count(len(status.models), "model")]
    lines = [f"bbgrap {status.version}, up {age_text(status.uptime_s)}, {', '.join(counts)}"]
    versions = sorted({node.version for node in alive} | {status.version})
    return lines if len(versions) == 1 else [*lines, f"different versions run: {', '.join(versions)}"]


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _model(model: ModelStatus) -> Iterator[str]:
    ended = ", ".join(f"{count:,} {how}" for how, count in model.requests.items() if count) or "none yet"
    yield f"{model.name} ({model.model[:8]})"
    yield f"  requests: {ended}; {model.waiting} waiting, {model.running} running"
    if model.requests.get("done"):
        p50, p95, p99 = quantiles_of(model.latency, (0.5, 0.95, 0.99))
        yield f"  took: p50 {milliseconds(p50)}, p95 {milliseconds(p95)}, p99 {milliseconds(p99)}"
    if model.sequences or model.recovered:
        yield f"  sequences: {model.sequences:,} open; {model.recovered:,} recovered, by running {_count(model.replayed, 'request')} again"
    yield f"  standby: {', '.join(model.standby) or 'none'}"
    for plan in model.plans[:_PLANS]:
        yield f"  {_shapes(plan)}: {_serves(plan)}"
        yield f"    why: {plan.why}"
        if plan.weight_bytes:
            yield f"    weights: {', '.join(f'{node} {byte_count(size)}' for node, size in plan.weight_bytes.items())}"
    if len(model.plans) > _PLANS:
        yield f"  and {len(model.plans) - _PLANS} further plans (--json has them)"


def _shapes(plan: PlanStatus) -> str:
    told = [f"{name} {'x'.join(map(str, shape))}".rstrip() for name, shape in plan.shapes.items()]
    more = [f"{len(told) - _INPUTS} more inputs"] if len(told) > _INPUTS else []
    return ", ".join((*told[:_INPUTS], *more)) or "no inputs"


def _serves(plan: PlanStatus) -> str:
    if plan.serves == "nobody":
        return "nobody serves"
    times = ((plan.measured_s, "lately"), (plan.predicted_s, "predicted"))
    known = ", ".join(f"{milliseconds(seconds)} {how}" for seconds, how in times if seconds)
    nodes = ", ".join(plan.nodes)
    where = "" if not nodes or plan.variant.endswith(f" on {nodes}") else f" on {nodes}"
    return f"{plan.variant} serves{where}{f' ({known})' if known else ''}"


def _nodes(status: Status) -> list[str]:
    if not status.nodes:
        return ["no agents yet; on each machine: bbgrap-agent --join tcp://HOST:PORT"]
    rows = [("node", "state", "version", "cores", "busy", "free", "running", "since")]
    return _table([*rows, *(_node(node, status.now) for node in status.nodes)])


def _node(node: NodeStatus, now: float) -> tuple[str, ...]:
    if node.state != "alive":
        return node.name, node.state, node.version, "-", "-", "-", "-", f"{age_text(now - node.since)} ago"
    free = memory_text(node.free_bytes) if node.free_bytes else "-"
    return node.name, node.condition, node.version, str(node.cores), f"{node.busy:.0%}", free, str(node.running), age_text(now - node.since)


def _links(status: Status) -> list[str]:
    """Return all links of few nodes, of many those that are down or slowest."""
    shown = status.links
    if len(shown) > _LINKS:
        shown = tuple(sorted(shown, key=lambda link: (link.is_up, link.bandwidth_bytes_per_s))[:_LINKS])
    rows = [(f"{link.source} -> {link.destination}", *_link(link)) for link in shown]
    more = len(status.links) - len(shown)
    left = f"and {more} links that are no slower (--json has them)"
    return ["", *_table([("link", "bandwidth", "round trip"), *rows]), *([left] if more else [])] if rows else []


def _link(link: LinkStatus) -> tuple[str, str]:
    if not link.is_up:
        return "DOWN", "-"
    return f"{link.bandwidth_bytes_per_s * 8 / 1e6:,.0f} Mbit/s", milliseconds(link.round_trip_s)


def _events(status: Status) -> list[str]:
    shown = status.events[-_EVENTS:]
    return ["", *(f"{time.strftime('%H:%M:%S', time.localtime(event.at))} {event.text}" for event in shown)] if shown else []


# --- layout ---------------------------------------------------------------------------------------------------------------------


def _table(rows: Sequence[Sequence[str]], right: int = 99) -> list[str]:
    """Return rows with aligned columns; those from `right` on are aligned to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    aligned = (
        [cell.rjust(width) if column >= right else cell.ljust(width) for column, (cell, width) in enumerate(zip(row, widths, strict=True))]
        for row in rows
    )
    return ["  ".join(cells).rstrip() for cells in aligned]


def _fitted(lines: Iterable[str], width: int) -> list[str]:
    """Return lines that are no longer than a width; what is, goes on in the next, indented."""
    fitted: list[str] = []
    for line in lines:
        safe = printable(line)
        indent = " " * (len(safe) - len(safe.lstrip()) + 4)
        wrapped = textwrap.wrap(safe, max(width, LEAST_WIDTH), subsequent_indent=indent, drop_whitespace=True, replace_whitespace=False)
        fitted += wrapped or [""]
    return fitted
