"""What the commands print: results on stdout, everything else (progress, remarks, errors) on stderr.

On a terminal progress is one line that is rewritten; elsewhere (a pipe, a CI log) every step is a line of its own. Nothing moves by
itself while something is measured: an animation would take time from what it reports on.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from bbgrap.report.printable import printable

if TYPE_CHECKING:  # messages, which `--help` can do without
    from bbgrap.protocol.client_messages import Progress

_REWRITE = "\r\x1b[2K"
"""Back to the first column, and clear the line."""

_LINE_EVERY_S = 5.0
"""Where lines cannot be rewritten, how often one is printed while a step goes on."""

_PIPE_WIDTH = 140
"""Columns of a table that no terminal limits."""


def print_result(text: str = "") -> None:
    """Print a line of the result."""
    sys.stdout.write(f"{_shown(text)}\n")


def print_json(value: object) -> None:
    """Print a value as JSON, alone on stdout; in ASCII where its encoding lacks a letter."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2)
    sys.stdout.write(text + "\n")


def check_writable(path: Path | None) -> None:
    """Make sure that a file can be written, before anything slow is done.

    Raises:
        OSError: if it cannot.
    """
    if path is None or (path.exists() and not path.is_file() and not path.is_dir()):  # opening a pipe may wait
        return
    target, is_new = path.resolve(), not path.exists()
    target.open("a").close()
    if is_new:
        target.unlink()


def print_sentences(text: str) -> None:
    """Print lines of the result that are sentences."""
    sys.stdout.write(f"{_wrapped(text, sys.stdout)}\n")


def say(text: str) -> None:
    """Print a remark."""
    _Line.end()
    sys.stderr.write(f"{_wrapped(text, sys.stderr)}\n")
    sys.stderr.flush()


def _shown(text: str) -> str:
    """Return text without what a terminal would obey: names come from models and from the network."""
    return printable(text, also="\n\t")


def _wrapped(text: str, stream: TextIO) -> str:
    """Return lines that break between words where a terminal would break them anywhere; elsewhere, as they are."""
    text = _shown(text)
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    lines = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        filler = textwrap.TextWrapper(width, subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False)
        lines += filler.wrap(line) or [""]
    return "\n".join(lines)


def report_error(text: str) -> None:
    """Print an error in one line; what follows, the end of a log, is indented."""
    first, *rest = text.strip().splitlines() or ["failed"]
    say("\n".join([f"bbgrap: {first}", *(f"    {line}" for line in rest)]))


class _Line:
    """The line of progress that is not finished yet, if there is one."""

    is_open = False

    @classmethod
    def end(cls) -> None:
        if cls.is_open:
            sys.stderr.write("\n")
            cls.is_open = False


class StepProgress:
    """One step of a command, while it goes on."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._rewrites = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._start = self._shown = time.monotonic()
        self._show(f"{title} ...")

    def update(self, detail: str) -> None:
        """Say how far the step is; as often as one likes."""
        now = time.monotonic()
        if self._rewrites or now - self._shown >= _LINE_EVERY_S:
            self._shown = now
            self._show(f"{self._title} ... {detail}")

    def report(self, now: Progress) -> None:
        """Say how far a cluster is with what it was asked."""
        self.update(now.text)

    def finish(self) -> None:
        """Say how long the step took."""
        took = f"{time.monotonic() - self._start:.1f} s"
        if _Line.is_open and not self._rewrites:
            sys.stderr.write(f" {took}")
        else:
            self._show(f"{self._title} ... {took}")
        _Line.end()
        sys.stderr.flush()

    def _show(self, text: str) -> None:
        text = _shown(text)
        if self._rewrites:
            text = f"{_REWRITE}{text}"
        else:
            _Line.end()
        sys.stderr.write(text)
        sys.stderr.flush()
        _Line.is_open = True


@contextmanager
def step(title: str) -> Iterator[StepProgress]:
    """Show a step of a command while it runs, and how long it took."""
    progress = StepProgress(title)
    try:
        yield progress
    except BaseException:
        _Line.end()
        raise
    progress.finish()


def columns() -> int:
    """Return how wide what is printed may be."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
    """Print a table; columns whose cells are all numbers are aligned to the right."""
    from rich.console import Console
    from rich.table import Table

    if title:
        print_result(title)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        numeric = all(row[number] is None or isinstance(row[number], (int, float)) for row in rows)
        table.add_column(printable(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else _PIPE_WIDTH, markup=False, highlight=False).print(table)


def before_and_after(report: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Return the rows of the table that says what the passes saved, from the report of a plan."""
    from bbgrap.program.statistics import LABELS

    initial, optimized = report["initial"], report["optimized"]
    return [(label, initial[key], optimized[key]) for key, label in LABELS.items() if key in initial]


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.3g}" if abs(value) < 0.01 else f"{value:,.2f}"
        case _:
            return printable(str(value))
