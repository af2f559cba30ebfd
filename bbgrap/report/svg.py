"""What all pictures have in common: escaping, numbers for people, colours, and the one place where SVG elements are written.

Names come from models and from the network: whatever they hold, they are text in the picture and nothing else.
"""

from __future__ import annotations

from html import escape

from bbgrap.report.printable import printable

LIGHT = """
  --page: #ffffff; --ink: #1d2530; --soft: #5b6675; --line: #dfe3e8; --band: #f4f6f8;
  --compute: #3f78c3; --send: #d9822b; --receive: #2f9d72; --wait: #c5ccd5;
  --d0: #3f78c3; --d1: #d9822b; --d2: #2f9d72; --d3: #b4508c; --d4: #8a6fd1; --d5: #b09a1f; --d6: #2a9fb5; --d7: #c4564a;
"""
DARK = """
  --page: #14181d; --ink: #e4e8ed; --soft: #9aa5b3; --line: #2c343e; --band: #1b2128;
  --compute: #5b93dc; --send: #e39a4c; --receive: #45b88a; --wait: #434d59;
  --d0: #5b93dc; --d1: #e39a4c; --d2: #45b88a; --d3: #cf74aa; --d4: #a48de3; --d5: #cdb740; --d6: #45b8cd; --d7: #dc766a;
"""
"""Colours: of the surroundings, of what devices do, and of the devices themselves."""

COLOURS = 8
"""Colours of devices; more devices begin again with the first one."""

STYLE = (
    ":root { color-scheme: light dark; }\n"
    f"svg.bbgrap, body.bbgrap {{{LIGHT}"
    '  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;\n}\n'
    f"@media (prefers-color-scheme: dark) {{ svg.bbgrap, body.bbgrap {{{DARK}}} }}\n"
    """
svg.bbgrap text { fill: var(--ink); font-size: 12px; }
svg.bbgrap .soft { fill: var(--soft); font-size: 11px; }
svg.bbgrap .head { font-size: 15px; font-weight: 600; }
svg.bbgrap .page { fill: var(--page); }
svg.bbgrap .band { fill: var(--band); }
svg.bbgrap .grid { stroke: var(--line); stroke-width: 1; }
svg.bbgrap .flow { fill: none; stroke: var(--soft); stroke-width: 0.8; opacity: 0.45; vector-effect: non-scaling-stroke; }
svg.bbgrap .fine { display: none; }
svg.bbgrap .span:hover, svg.bbgrap .tile:hover { filter: brightness(1.15); }
"""
    + "".join(f"svg.bbgrap .{lane} {{ fill: var(--{lane}); }}\n" for lane in ("compute", "send", "receive", "wait"))
    + "".join(f"svg.bbgrap .d{device} {{ fill: var(--d{device}); }}\n" for device in range(COLOURS))
)
"""Colours and letters of every picture, for light and dark surroundings."""


def text(value: object) -> str:
    """Return a value as the text of an element or attribute; what XML cannot hold is replaced."""
    return escape(printable(str(value)), quote=True)


def number(value: float) -> str:
    """Return a coordinate: two digits after the point are finer than any screen."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


def milliseconds(seconds: float) -> str:
    """Return a time for people, in milliseconds with three digits that mean something."""
    ms = 1e3 * seconds
    digits = 0 if abs(ms) >= 100 else 1 if abs(ms) >= 10 else 2 if abs(ms) >= 1 else 3
    return f"{ms:,.{digits}f} ms"


def byte_count(count: int) -> str:
    """Return a number of bytes for people."""
    if count < 1000:
        return f"{count} B"
    return f"{count / 1e3:,.1f} KB" if count < 1_000_000 else f"{count / 1e6:,.2f} MB"


def rectangle(x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> str:
    """Return a rectangle of a class; `tip` is shown when one points at it."""
    head = f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" class="{kind}"'
    return f"{head}><title>{text(tip)}</title></rect>" if tip else f"{head}/>"


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Return a straight line of a class."""
    return f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" class="{kind}"/>'


def words(x: float, y: float, value: str, kind: str = "", anchor: str = "start", tip: str = "") -> str:
    """Return a piece of text of a class, with its baseline at y."""
    inner = f"<title>{text(tip)}</title>{text(value)}" if tip else text(value)
    return f'<text x="{number(x)}" y="{number(y)}" text-anchor="{anchor}" class="{kind}">{inner}</text>'


def picture(width: float, height: float, body: list[str], label: str, *, styled: bool, attributes: str = "") -> str:
    """Return a whole SVG; `styled`: it stands alone and brings its style along."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="bbgrap" viewBox="0 0 {number(width)} {number(height)}" role="img"'
    head += f' aria-label="{text(label)}"{attributes}>'
    style = [f"<style>{STYLE}</style>", rectangle(0, 0, width, height, "page")] if styled else []
    return "\n".join([head, *style, *body, "</svg>"])
