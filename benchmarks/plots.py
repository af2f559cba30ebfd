"""Speed-ups as SVG, written by hand: grouped bars and lines over a dashed one, the single node; readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2
from xml.sax.saxutils import escape, quoteattr

from bbgrap.report.gantt import tick

COLOURS = ("#2563eb", "#ea580c", "#16a34a", "#9333ea", "#0891b2", "#ca8a04", "#db2777", "#475569")
_WIDTH, _HEIGHT = 760, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 18, 74, 44
_INK, _FAINT = "#334155", "#cbd5e1"
_LEGEND_COLUMNS = 4


def grouped_bars(title: str, values: Mapping[str, Mapping[str, float | None]]) -> str:
    """Return bars of the speed-ups `values[group][series]`; a missing value leaves a gap."""
    series = list(dict.fromkeys(name for group in values.values() for name in group))
    numbers = [value for group in values.values() for value in group.values() if value is not None]
    picture = _Picture(title, max([*numbers, 1.0]))
    slot = picture.inner_width / max(len(values), 1)
    width = min(46.0, 0.8 * slot / max(len(series), 1))
    for place, (group, of) in enumerate(values.items()):
        middle = _LEFT + slot * (place + 0.5)
        picture.text(middle, _HEIGHT - _BOTTOM + 20, group, anchor="middle")
        for number, name in enumerate(series):
            value = of.get(name)
            if value is None:
                continue
            left = middle + (number - len(series) / 2) * width
            label = f"{group}, {name}: {value:.3g}"
            picture.bar(left + 1, width - 2, value, COLOURS[number % len(COLOURS)], label)
            picture.text(left + width / 2, picture.y(value) - 5, f"{value:.2f}", anchor="middle", size=11)
    picture.legend(series)
    return picture.svg()


def lines(title: str, points: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Return a line per series through its points (nodes, speed-up); nodes run in powers of two, and the ticks are those that occur."""
    ticks = sorted({x for of in points.values() for x, _ in of})
    picture = _Picture(title, max([*(y for of in points.values() for _, y in of), 1.0]))
    first, last = (log2(ticks[0]), log2(ticks[-1])) if ticks else (0.0, 1.0)

    def across(x: float) -> float:
        return _LEFT + 20 + (picture.inner_width - 40) * ((log2(x) - first) / (last - first) if last > first else 0.5)

    for x in ticks:
        picture.text(across(x), _HEIGHT - _BOTTOM + 18, f"{x:g}", anchor="middle")
    picture.text(_LEFT + picture.inner_width / 2, _HEIGHT - 8, "nodes", anchor="middle")
    for number, (name, of) in enumerate(points.items()):
        places = [(across(x), picture.y(y), f"{name}, {x:g}: {y:.3g}") for x, y in sorted(of)]
        picture.line(places, COLOURS[number % len(COLOURS)])
    picture.legend(list(points))
    return picture.svg()


class _Picture:
    """A frame with a vertical scale from 0, and what is drawn into it."""

    def __init__(self, title: str, largest: float) -> None:
        self.inner_width = _WIDTH - _LEFT - _RIGHT
        self._step = tick(largest, 5)
        self._top = self._step * -(-largest * 1.05 // self._step)
        self._parts: list[str] = []
        self.text(_LEFT, 24, title, size=16, weight="600")
        self.text(14, _TOP + (_HEIGHT - _TOP - _BOTTOM) / 2, "speed-up", anchor="middle", turned=True)
        for number in range(round(self._top / self._step) + 1):
            y = self.y(number * self._step)
            self._parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="{_FAINT}" stroke-width="0.7"/>')
            self.text(_LEFT - 6, y + 4, f"{number * self._step:g}", anchor="end")

    def y(self, value: float) -> float:
        """Return the height of a value, in the picture's coordinates."""
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / self._top

    def text(
        self, x: float, y: float, text: str, *, anchor: str = "start", size: int = 13, weight: str = "400", turned: bool = False
    ) -> None:
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
        style = f'text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" fill="{_INK}"'
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}{turn}>{escape(text)}</text>')

    def bar(self, left: float, width: float, value: float, colour: str, label: str) -> None:
        top, bottom = self.y(max(value, 0.0)), self.y(0.0)
        where = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{bottom - top:.1f}"'
        self._parts.append(f'<rect {where} rx="2" fill="{colour}"><title>{escape(label)}</title></rect>')

    def line(self, places: Sequence[tuple[float, float, str]], colour: str) -> None:
        through = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
        self._parts.append(f'<polyline points={quoteattr(through)} fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y, label in places:
            self._parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"><title>{escape(label)}</title></circle>')

    def legend(self, names: Sequence[str]) -> None:
        for number, name in enumerate(names):
            x = _LEFT + (number % _LEGEND_COLUMNS) * self.inner_width / _LEGEND_COLUMNS
            y = 46 + 16 * (number // _LEGEND_COLUMNS)
            self._parts.append(f'<rect x="{x:.1f}" y="{y - 10}" width="11" height="11" rx="2" fill="{COLOURS[number % len(COLOURS)]}"/>')
            self.text(x + 16, y, name, size=12)

    def svg(self) -> str:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="system-ui, sans-serif">'
        page = f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>'
        single = f"M{_LEFT} {self.y(1.0):.1f}H{_WIDTH - _RIGHT}"
        dashes = f'<path d="{single}" stroke="{_INK}" stroke-width="1.3" stroke-dasharray="6 4"/>'
        return "\n".join([head, page, *self._parts, dashes, "</svg>", ""])
