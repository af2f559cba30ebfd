"""Writing a timeline to a file, in the form that its name asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bbgrap.cli.output import check_writable
from bbgrap.errors import UsageError

if TYPE_CHECKING:
    from bbgrap.costmodel.timeline import Timeline

SUFFIXES = (".json", ".svg", ".html")
"""A trace for Chrome and Perfetto, a picture, a report."""


def check_target(path: Path | None, *allowed: str) -> None:
    """Refuse a file whose form nobody knows, or that cannot be written, before anything is computed; folders are made.

    Raises:
        UsageError: if the name ends otherwise.
        OSError: if it cannot be written.
    """
    if path is None:
        return
    known = allowed or SUFFIXES
    if path.suffix.lower() not in known:
        raise UsageError(f"'{path}': expected a name that ends in {' or '.join(known)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    check_writable(path)


def write_timeline(path: Path, timeline: Timeline, title: str, *, predicted: bool = False) -> None:
    """Write a timeline as a Chrome trace (.json), a picture (.svg) or a report (.html, which says if it is predicted); folders are made.

    Raises:
        OSError: if it cannot be written.
    """
    match path.suffix.lower():
        case ".json":
            import json

            from bbgrap.report.chrome import chrome_trace

            content = json.dumps(chrome_trace(timeline, title)) + "\n"
        case ".svg":
            from bbgrap.report.gantt import timeline_svg

            content = timeline_svg(timeline, title) + "\n"
        case _:
            from bbgrap.report.html import report_html

            content = report_html(title, predicted=timeline) if predicted else report_html(title, measured=timeline)
    write_text(path, content)


def write_text(path: Path, content: str) -> None:
    """Write a text file whole or not at all; folders are made.

    Raises:
        OSError: if it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.part")
    draft.write_text(content, encoding="utf-8")
    draft.replace(path)
