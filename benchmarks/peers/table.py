"""What was measured of the peers, as tables: on a terminal, and in `docs/peers.md` from `benchmarks/results/peers.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bbgrap.cli.output import print_table
from benchmarks.peers.known import ALL
from benchmarks.speedups import LINKS, MODELS, ROOT

PAGE = ROOT / "docs" / "peers.md"
BEGIN, END = "<!-- peers -->", "<!-- end -->"
KEY = ("model", "link", "peer")
"""What makes two rows the same measurement."""

_NAMES = {model: name for (model, batch), name in MODELS.items() if batch == 1} | {"mobilenet_v2": "MobileNetV2"}
_MEASURED = {
    "latency": ("p50_ms", "Latency of single requests, median, ms"),
    "throughput": ("per_s", "Requests per second, 8 on their way"),
}


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the table of a measurement; what is marked `ahead` is better than bbgrap."""
    columns = ("model", "link", "peer", "p50 ms", "per second", "to bbgrap: latency", "throughput", "ahead", "answers", "idle %", "MiB")
    cells = []
    for row in rows:
        keys = ("p50_ms", "per_s", "latency_against_bbgrap", "throughput_against_bbgrap")
        ahead = "-" if row["informative"] else ", ".join(row.get("ahead", ()))
        answers = row["failure"].partition("\n")[0] or (row["same_by"] if row["verified"] else f"WRONG: {row['fault']}")
        numbers = (row.get(key) for key in keys)
        cells.append((row["model"], row["link"], row["title"], *numbers, ahead, answers, row["idle_percent"], row["memory_mib"]))
    print_table(columns, cells, title="two nodes of one core each; ratios above 1 are better than bbgrap")


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of latencies and one of throughputs; bold is who was ahead of bbgrap."""
    found = {tuple(row[key] for key in KEY): row for row in rows}
    places = dict.fromkeys((model, link) for model, link, _ in found)
    peers = [name for name in ALL if any(name == peer for *_, peer in found)]
    lines = []
    for what, (key, title) in _MEASURED.items():
        lines += [f"{title}:", "", f"| | | {' | '.join(peers)} |", f"|---|---|{'---|' * len(peers)}"]
        for model, link in places:
            name = _NAMES.get(model, model)
            cells = [_cell(found.get((model, link, peer)), what, key) for peer in peers]
            lines.append(f"| {name} | {LINKS.get(link, link)} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join([*lines, _caption(rows)])


def _cell(row: Mapping[str, Any] | None, what: str, key: str) -> str:
    if row is None:
        return ""
    if row["failure"]:
        return "failed"
    if not row["verified"]:
        return "wrong"
    text = f"{row[key]:.1f}"
    return f"**{text}**" if what in row.get("ahead", ()) else text


def _caption(rows: Sequence[Mapping[str, Any]]) -> str:
    days = sorted({row["facts"]["date"][:10] for row in rows})
    processors = sorted({row["facts"]["processor"] for row in rows})
    versions = sorted({f"{name} {number}" for row in rows for name, number in row["versions"].items()})
    busy = "; others were using the machine" if any(row["facts"]["busy"] for row in rows) else ""
    return f"{' to '.join(dict.fromkeys((days[0], days[-1])))}, {', '.join(processors)}; {', '.join(versions)}{busy}."


def write_page(rows: Sequence[Mapping[str, Any]]) -> None:
    """Put the tables between the marks of the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{markdown(rows)}\n{END}{after}")
