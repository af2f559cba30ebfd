"""The table of speed-ups in README and docs/benchmarks.md: `python -m benchmarks.speedups` writes it from `benchmarks/results/`.

One cell is one deployment: planner `auto`, two agents of one core each, against one such core of plain onnxruntime.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kept import RESULTS

ROOT = Path(__file__).parents[1]
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")
BEGIN, END = "<!-- speed-up table -->", "<!-- end -->"

LINKS = {"loopback": "loopback", "10gbit": "10 Gbit/s", "1gbit": "1 Gbit/s", "100mbit": "100 Mbit/s"}
MODELS = {
    ("resnet50", 1): "ResNet50",
    ("vgg16", 1): "VGG16",
    ("unet", 1): "U-Net",
    ("vit_b16", 1): "ViT-B/16",
    ("yolo", 1): "YOLO-style",
    ("resnet50", 10): "ResNet50, 10 images",
}


def rows_of_auto(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Return what was measured of `auto` for the latency of requests, with exact transfers and inputs of any values."""
    asked = {"planner": "auto", "objective": "latency", "transfer_dtype": "exact", "inputs": "floats"}
    rows = [row for path in sorted(folder.glob("network-*.json")) for row in json.loads(path.read_text())]
    return [row for row in rows if all(row[key] == value for key, value in asked.items())]


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the table in Markdown, with the dates and the processor it was measured on."""
    cells = {(row["model"], row["batch"], row["link"]): row for row in rows}
    lines = [f"| | {' | '.join(LINKS.values())} |", f"|---|{'---|' * len(LINKS)}"]
    shown: list[Mapping[str, Any]] = []
    for (model, batch), name in MODELS.items():
        found = [cells.get((model, batch, link)) for link in LINKS]
        shown += [row for row in found if row is not None]
        if any(found):
            lines.append(f"| {name} | {' | '.join('' if row is None else format(row['speedup'], '.2f') for row in found)} |")
    return "\n".join([*lines, "", _caption(shown)])


def _caption(rows: Sequence[Mapping[str, Any]]) -> str:
    days = sorted({row["facts"]["date"][:10] for row in rows})
    processors = sorted({row["facts"]["processor"] for row in rows})
    versions = sorted({row["facts"]["onnxruntime"] for row in rows})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"{when}, {', '.join(processors)}, onnxruntime {', '.join(versions)}; planner `auto`, one deployment a cell."


def write_table(documents: Sequence[Path] = DOCUMENTS, folder: Path = RESULTS) -> list[Path]:
    """Put the table between its marks in the documents; returns those that have marks."""
    found = []
    for path in documents:
        before, begin, rest = path.read_text().partition(BEGIN)
        _, end, after = rest.partition(END)
        if begin and end:
            path.write_text(f"{before}{BEGIN}\n{table(rows_of_auto(folder))}\n{END}{after}")
            found.append(path)
    return found


if __name__ == "__main__":
    for document in write_table():
        print(document.relative_to(ROOT))
