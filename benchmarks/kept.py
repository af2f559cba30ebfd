"""Rows of results in files: what is measured again takes the place of what was measured before."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

Row = Mapping[str, Any]


def keep(rows: Iterable[Row], path: Path, key: Sequence[str], order: Callable[[Row], Any] | None = None) -> list[Row]:
    """Add rows to a file, and return all that it has now.

    Args:
        rows: Of these, and those of the file, the last one with the same values of `key` stays.
        path: A list in JSON.
        key: What makes two rows the same measurement.
        order: By what rows are sorted, if they are.
    """
    old = json.loads(path.read_text()) if path.exists() else []
    together = list({tuple(row[part] for part in key): row for row in (*old, *rows)}.values())
    if order is not None:
        together.sort(key=order)
    path.write_text(json.dumps(together, indent=1) + "\n")
    return together


def keep_by_model(
    kind: str,
    rows: Sequence[Row],
    key: Sequence[str],
    order: Callable[[Row], Any],
    draw: Callable[[Sequence[Row]], str],
    folder: Path = RESULTS,
) -> list[Path]:
    """Add rows to `KIND-MODEL.json`, a file for each model and batch, and draw what each has now; returns all that was written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for label in dict.fromkeys(map(label_of, rows)):
        path = folder / f"{kind}-{label}.json"
        together = keep([row for row in rows if label_of(row) == label], path, key, order)
        path.with_suffix(".svg").write_text(draw(together))
        written += [path, path.with_suffix(".svg")]
    return written


def label_of(row: Row) -> str:
    """Return what a row's model and batch are called in names of files."""
    return Path(row["model"]).stem + (f"-batch{row['batch']}" if row["batch"] > 1 else "")
