"""Lines of logs: as text for people, or as JSON, an object a line, for what collects logs.

What a line speaks of comes with the record (`extra=`): `model` (its digest), `node`, `epoch`, `request`.

Law: nobody waits for who reads the lines, as in a terminal that was stopped. Those that find no room are lost, and counted. A
single one that is longer than a page of memory may wait. A file that was opened for a process has bounded size, however long that runs.
"""

from __future__ import annotations

import json
import logging
import os
import select
import shutil
import sys
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TextIO

from bbgrap.report.printable import printable

_KNOWN = ("model", "node", "epoch", "request")
_VARIABLE = "BBGRAP_LOG_FORMAT"
"""Tells processes that are started by this one."""
LOG_FILE = "BBGRAP_LOG_FILE"
"""Tells a process where the file is that its lines are appended to, if whoever started it has opened one."""
MOST_FILE_BYTES = 8 << 20
"""Then what is in it becomes FILE.1, and it begins anew. Chosen: a month where nodes and models stay, a day of a restless cluster."""
MOST_LETTERS = 4000
"""Of the message of a line of text. The line fits a page then: for so much there is room in a pipe, if there is any."""
_PATIENCE_S = 0.1
"""With a reader that was quick until now. Chosen: one that is alive reads a full pipe in less."""


class LogFormat(Enum):
    """What lines look like."""

    TEXT = "text"
    JSON = "json"


class JsonLines(logging.Formatter):
    """An object a line: `time` (ISO 8601, UTC), `level`, `logger`, `message`, what the line speaks of, and `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as JSON."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name in _KNOWN if (value := getattr(record, name, None))}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextLines(logging.Formatter):
    """Time, level, logger and message; the model and the epoch where the message does not name them."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """Return the line without a traceback."""
        known = {"model": str(getattr(record, "model", "") or "")[:8], "epoch": str(getattr(record, "epoch", "") or "")}
        message = record.getMessage()
        others = ", ".join(f"{name} {value}" for name, value in known.items() if value and value not in message)
        # Some of it was said by peers: no line of theirs may look like one of ours.
        record.message = printable(record.message, also="\n\t")[:MOST_LETTERS].replace("\n", "\n    ")
        return super().formatMessage(record) + (f" [{others}]" if others else "")


class LinesWithoutWaiting(logging.StreamHandler[TextIO]):
    """Writes lines as long as there is room for them, and how many were lost as soon as there is some again."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lost = 0
        self._file = Path(os.environ[LOG_FILE]) if LOG_FILE in os.environ else None

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it."""
        with suppress(OSError):  # it was removed, perhaps; others append to it, too, so it keeps its place
            if self._file and self._file.stat().st_size > MOST_FILE_BYTES:
                shutil.copyfile(self._file, f"{self._file}.1")
                os.truncate(self._file, 0)
        if not self._has_room():
            self._lost += 1
            return
        if self._lost:
            lost, self._lost = self._lost, 0
            text = f"{lost} lines of this log are lost: nobody read them; was the terminal stopped?"
            super().emit(logging.LogRecord("bbgrap", logging.WARNING, "", 0, text, None, None))
        super().emit(record)

    def _has_room(self) -> bool:
        if sys.platform == "win32":  # there, sockets alone can be asked
            return True
        try:
            return bool(select.select([], [self.stream.fileno()], [], 0 if self._lost else _PATIENCE_S)[1])
        except (
            AttributeError,
            OSError,
            ValueError,
        ):  # nothing at all, a text in memory, or a file that was closed: logging knows what to do
            return True


def write_logs(form: LogFormat, *, verbose: bool = False) -> None:
    """Write the lines of this process, and of those that it starts, to standard error in this form; `verbose`: more of them."""
    handler = LinesWithoutWaiting(sys.stderr)
    handler.setFormatter(JsonLines() if form is LogFormat.JSON else TextLines())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    os.environ[_VARIABLE] = form.value


def name_node(name: str) -> None:
    """Let all lines of this process speak of a node, where they speak of no other."""

    def named(record: logging.LogRecord) -> bool:
        record.node = getattr(record, "node", "") or name
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(named)


def inherited_format() -> LogFormat:
    """Return the form that whoever started this process writes in."""
    return LogFormat.JSON if os.environ.get(_VARIABLE) == LogFormat.JSON.value else LogFormat.TEXT
