"""A timeline as a picture: a band per device, computing and waiting above, sending and receiving below, messages as curves.

 0 ms        5 ms        10 ms
agent0       |####### ~~~ ########|          # compute   ~ wait
             |     =     -      = |          = send      - receive
"""

from __future__ import annotations

from math import floor, log10

from bbgrap.costmodel.timeline import LANES, Span, Timeline
from bbgrap.errors import shortened
from bbgrap.report.svg import byte_count, line, milliseconds, number, picture, rectangle, text, words

WIDTH, LEFT, RIGHT = 1160.0, 128.0, 24.0
"""Of the picture, of the names on its left and of the margin on its right."""
_TOP, _BAND, _UPPER, _LOWER = 74.0, 46.0, 20.0, 9.0
_NAME = 17
_TICKS = 10
_FINER = 5


def timeline_svg(timeline: Timeline, title: str, *, until_s: float | None = None, styled: bool = True) -> str:
    """Return the picture of a timeline.

    Args:
        timeline: What to draw.
        title: Its headline.
        until_s: Where the time axis ends, so that several pictures are of one scale; default: with the last span.
        styled: Bring the style along; a page that has it does without.
    """
    end_s = max(timeline.total_s, until_s or 0.0) or 1e-3
    scale = (WIDTH - LEFT - RIGHT) / end_s
    height = _TOP + _BAND * len(timeline.devices) + 8
    bands = [rectangle(LEFT, _row(d), WIDTH - LEFT - RIGHT, _UPPER + _LOWER + 1, "band") for d in range(len(timeline.devices))]
    names = [rectangle(0, _TOP - 6, LEFT - 8, height - _TOP + 6, "page")]
    for device, name in enumerate(timeline.devices):
        names.append(words(LEFT - 14, _row(device) + 14, shortened(name, _NAME), anchor="end", tip=name))
        if busy := _busy(timeline, device):
            names.append(words(LEFT - 14, _row(device) + 28, busy, "soft", anchor="end"))
    body = [
        words(8, 22, shortened(title, 120), "head", tip=title),
        *_legend(),
        '<g class="moving">',
        *bands,
        "</g>",
        *_axis(end_s, scale, height - 8),
        '<g class="moving spans">',
        *(_span(timeline, span, scale) for span in timeline.spans),
        "</g>",
        '<g class="moving flows" pointer-events="none">',
        *_flows(timeline, scale),
        "</g>",
        '<g class="names">',
        *names,
        "</g>",
    ]
    return picture(WIDTH, height, body, title, styled=styled, attributes=f' data-left="{number(LEFT)}"')


def _row(device: int) -> float:
    return _TOP + _BAND * device


def _busy(timeline: Timeline, device: int) -> str:
    computing, total = timeline.busy_s(device, "compute"), timeline.total_s
    return f"computes {100 * computing / total:.0f} %" if computing and total else ""


def _legend() -> list[str]:
    marks: list[str] = []
    for place, lane in enumerate(LANES):
        x = LEFT + 84 * place
        marks += [rectangle(x, 34, 11, 11, lane), words(x + 16, 44, lane, "soft")]
    return marks


def tick(end: float, count: int = _TICKS) -> float:
    """Return a distance of at most `count` ticks up to `end`: 1, 2 or 5 times a power of ten."""
    raw = end / count
    power = 10.0 ** floor(log10(raw))
    return next(power * step for step in (1, 2, 5, 10) if power * step >= raw * (1 - 1e-9))


def _axis(end_s: float, scale: float, bottom: float) -> list[str]:
    step = tick(end_s)
    marks = []
    for count in range(int(end_s / step * _FINER + 1e-6) + 1):
        moment = count * step / _FINER
        fine = " fine" if count % _FINER else ""
        x = LEFT + moment * scale
        inner = line(0, _TOP - 6, 0, bottom, "grid") + words(
            0, _TOP - 10, _moment(moment, step / (_FINER if fine else 1)), "soft", "middle"
        )
        marks.append(f'<g class="tick{fine}" data-x="{number(x)}" transform="translate({number(x)} 0)">{inner}</g>')
    return marks


def _moment(moment_s: float, step_s: float) -> str:
    digits = max(0, -floor(log10(step_s * 1e3) + 1e-9))
    return f"{1e3 * moment_s:.{digits}f} ms"


def _span(timeline: Timeline, span: Span, scale: float) -> str:
    upper = span.lane in {"compute", "wait"}
    y = _row(span.device) + (0 if upper else _UPPER + 1)
    # Thinner than this would not be seen at all.
    width = min(max(0.35, (span.stop_s - span.start_s) * scale), WIDTH - RIGHT - LEFT)
    x = min(max(LEFT, LEFT + span.start_s * scale), WIDTH - RIGHT - width)
    return rectangle(x, y, width, _UPPER if upper else _LOWER, f"span {span.lane}", tip=describe(timeline, span))


def describe(timeline: Timeline, span: Span) -> str:
    """Return what a span is, for people."""
    when = f"{milliseconds(span.stop_s - span.start_s)} from {milliseconds(span.start_s)}"
    said = [f"{timeline.devices[span.device]}: {span.lane}", span.label, when]
    if span.peer is not None:
        said.append(f"{'to' if span.lane == 'send' else 'from'} {timeline.devices[span.peer]}, message {span.message}")
    if span.bytes:
        said.append(byte_count(span.bytes))
    return " · ".join(part for part in said if part)


def _flows(timeline: Timeline, scale: float) -> list[str]:
    ends = {span.message: span for span in timeline.spans if span.lane == "receive"}
    drawn = []
    for span in timeline.spans:
        end = ends.get(span.message) if span.lane == "send" and span.message is not None else None
        if end is None:
            continue
        down = end.device > span.device
        left_s = max(span.start_s, min(span.stop_s, end.start_s))  # a sender may be stopped between the message and the end of its step
        x1, x2 = (min(max(LEFT, LEFT + moment * scale), WIDTH - RIGHT) for moment in (left_s, end.start_s))
        y1, y2 = _edge(span.device, lower=down), _edge(end.device, lower=not down)
        middle = (y1 + y2) / 2
        path = " ".join(map(number, (x1, y1))), " ".join(map(number, (x1, middle, x2, middle, x2, y2)))
        drawn.append(f'<path class="flow" data-message="{text(span.message)}" d="M {path[0]} C {path[1]}"/>')
    return drawn


def _edge(device: int, *, lower: bool) -> float:
    return _row(device) + (_UPPER + _LOWER + 1 if lower else _UPPER + 1)
