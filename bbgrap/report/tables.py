"""The tables of a report: what the nodes do with their time, what travels between them, and every segment, predicted and measured."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import exp, fsum, log

from bbgrap.costmodel.timeline import LANES, Span, Timeline
from bbgrap.errors import shortened
from bbgrap.report.svg import byte_count, milliseconds, text
from bbgrap.report.trace import segment_seconds

_REGION = re.compile(r"\[[^\]]*\](?:#\d+)?")
_NAME = 70


@dataclass(frozen=True, slots=True)
class Exchange:
    """The messages that carry parts of the same values: when the first was sent and the last received, and the longest wait for one."""

    values: str
    messages: int
    bytes: int
    first_s: float
    last_s: float
    longest_wait_s: float


def exchanges_of(timeline: Timeline) -> tuple[Exchange, ...]:
    """Return the exchanges of a request, in the order in which they begin."""
    groups: defaultdict[str, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        if span.lane == "send":
            groups[values_of(span.label)].append(span)
    received = {span.message: span.stop_s for span in timeline.spans if span.lane == "receive"}
    waited = {span.message: span.stop_s - span.start_s for span in timeline.spans if span.lane == "wait"}
    found = [
        Exchange(
            values,
            len(sends),
            sum(send.bytes for send in sends),
            min(send.start_s for send in sends),
            max(received.get(send.message, send.stop_s) for send in sends),
            max(waited.get(send.message, 0.0) for send in sends),
        )
        for values, sends in groups.items()
    ]
    return tuple(sorted(found, key=lambda exchange: exchange.first_s))


def values_of(label: str) -> str:
    """Return the values that a message's label names, without their regions, each once."""
    return ", ".join(dict.fromkeys(_REGION.sub("", label).split(", ")))


def traffic(timeline: Timeline) -> Mapping[tuple[int, int], int]:
    """Return the bytes sent from each device to each other one."""
    sums: Counter[tuple[int, int]] = Counter()
    for span in timeline.spans:
        if span.lane == "send" and span.peer is not None:
            sums[span.device, span.peer] += span.bytes
    return sums


def node_bars(timelines: Mapping[str, Timeline]) -> Iterator[str]:
    """Yield the table of what every node does with its time, a bar for each; of one scale for all timelines."""
    longest = max((timeline.total_s for timeline in timelines.values()), default=0.0) or 1e-3
    yield "<table><thead><tr><th>node</th><th></th><th class='wide'></th>"
    yield "".join(f"<th class='n'>{lane}</th>" for lane in LANES) + "</tr></thead><tbody>"
    devices = next(iter(timelines.values())).devices if timelines else ()
    for device, name in enumerate(devices):
        for kind, timeline in timelines.items():
            busy = [timeline.busy_s(device, lane) for lane in LANES]
            bars = "".join(
                f"<span class='b {lane}' style='width:{100 * took / longest:.2f}%' title='{lane} {text(milliseconds(took))}'></span>"
                for lane, took in zip(LANES, busy, strict=True)
            )
            cells = "".join(f"<td class='n'>{milliseconds(took)}</td>" for took in busy)
            yield f"<tr><td>{_named(name, 30)}</td><td class='soft'>{text(kind)}</td><td><div class='bar'>{bars}</div></td>{cells}</tr>"
    yield "</tbody></table>"


def traffic_table(timeline: Timeline) -> Iterator[str]:
    """Yield the table of bytes between nodes: a row per sender, a column per receiver."""
    sums = traffic(timeline)
    largest = max(sums.values(), default=0) or 1
    heads = "".join(f"<th class='n'>{_named(name, 16)}</th>" for name in timeline.devices)
    yield f"<table><thead><tr><th>from \\ to</th>{heads}<th class='n'>all</th></tr></thead><tbody>"
    for sender, name in enumerate(timeline.devices):
        row = [sums.get((sender, receiver), 0) for receiver in range(len(timeline.devices))]
        cells = "".join(
            f"<td class='n heat' style='--heat:{100 * count / largest:.0f}%'>{byte_count(count) if count else '·'}</td>" for count in row
        )
        yield f"<tr><th>{_named(name, 30)}</th>{cells}<td class='n'>{byte_count(sum(row))}</td></tr>"
    yield "</tbody></table>"


def exchange_table(timeline: Timeline) -> Iterator[str]:
    """Yield the table of exchanges."""
    exchanges = exchanges_of(timeline)
    largest = max((exchange.bytes for exchange in exchanges), default=0) or 1
    yield "<table><thead><tr><th>exchange of</th><th class='n'>messages</th><th class='n'>bytes</th><th class='wide'></th>"
    yield "<th class='n'>first sent</th><th class='n'>last received</th><th class='n'>longest wait</th></tr></thead><tbody>"
    for exchange in exchanges:
        bar = f"<div class='bar'><span class='b send' style='width:{100 * exchange.bytes / largest:.2f}%'></span></div>"
        times = (exchange.first_s, exchange.last_s, exchange.longest_wait_s)
        cells = "".join(f"<td class='n'>{milliseconds(moment)}</td>" for moment in times)
        counts = f"<td class='n'>{exchange.messages}</td><td class='n'>{byte_count(exchange.bytes)}</td>"
        yield f"<tr><td>{_named(exchange.values, _NAME)}</td>{counts}<td>{bar}</td>{cells}</tr>"
    yield "</tbody></table>"


def segment_table(shown: Timeline, kind: str, predicted: Timeline | None, medians_s: Mapping[tuple[int, int], float]) -> Iterator[str]:
    """Yield the table of segments of a timeline of some kind; `medians_s`, by device and segment, go before what it says itself."""
    here, there = segment_seconds(shown), segment_seconds(predicted) if predicted else {}
    longest = (
        max([*(medians_s.get(key, took) for key, (_, took) in here.items()), *(took for _, took in there.values())], default=0) or 1e-9
    )
    extra = "<th class='n'>predicted</th><th class='n'>measured / predicted</th>" if predicted else ""
    yield f"<table><thead><tr><th>node</th><th>segment</th><th class='n'>{kind}</th>{extra}<th class='wide'></th></tr></thead><tbody>"
    for key, (label, took) in sorted(here.items()):
        seconds = medians_s.get(key, took)
        bars, cells = [("compute", seconds)], f"<td class='n'>{milliseconds(seconds)}</td>"
        if predicted:
            guess = there.get(key, ("", 0.0))[1]
            ratio = f"{seconds / guess:.2f}" if guess else "–"
            cells += f"<td class='n'>{milliseconds(guess) if guess else '–'}</td><td class='n'>{ratio}</td>"
            bars.append(("wait", guess))
        drawn = "".join(
            f"<div class='bar thin'><span class='b {kind}' style='width:{100 * s / longest:.2f}%'></span></div>" for kind, s in bars
        )
        yield f"<tr><td>{_named(shown.devices[key[0]], 30)}</td><td>{_named(label, _NAME)}</td>{cells}<td>{drawn}</td></tr>"
    yield "</tbody></table>"


def prediction_error(measured: Timeline, predicted: Timeline, medians_s: Mapping[tuple[int, int], float]) -> float | None:
    """Return the geometric mean of how far off, up or down, the predictions of the segments are: 1.1 is 10 %; None without segments."""
    here, there = segment_seconds(measured), segment_seconds(predicted)
    pairs = [(medians_s.get(key, took), there[key][1]) for key, (_, took) in here.items() if key in there]
    factors = [abs(log(mine / theirs)) for mine, theirs in pairs if mine > 0 and theirs > 0]
    return exp(fsum(factors) / len(factors)) if factors else None


def _named(name: str, length: int) -> str:
    short = shortened(name, length)
    return text(name) if short == name else f"<span title='{text(name)}'>{text(short)}</span>"


def facts_list(facts: Mapping[str, object]) -> Iterator[str]:
    """Yield the list of what the report is of."""
    yield "<dl>"
    yield from (f"<div><dt>{text(key)}</dt><dd>{text(shortened(str(value), 200))}</dd></div>" for key, value in facts.items())
    yield "</dl>"
