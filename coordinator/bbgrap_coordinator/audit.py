"""The audit log: one JSON object a line, in files of a bounded size that only their owner can read.

    {"time": "2026-11-23T08:15:02.120+00:00", "event": "joined", "who": {"agent": "left", "id": "01ab..."}, "address": ..., ...}

A thread of its own writes. Laws: whoever tells something never waits; a line is one line, whatever peers call themselves and their models;
what one kind of event fills in a minute is bounded, so nobody pushes the others out of the files; what is left out is counted.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import stat
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from math import isfinite
from pathlib import Path
from typing import Any

from bbgrap.control.coordinator_instructions import Audit

MAX_FILE_BYTES = 10 << 20
MAX_OLD_FILES = 5
MAX_LINE_BYTES = 8192
MAX_PER_MINUTE = 250
"""Lines of one kind of event. Chosen: a large cluster starts within it, and a peer that fills it takes hours to fill the files."""
MAX_QUEUED = 10_000
_COUNTED = frozenset({"ran", "verified", "started", "stopped"})
"""Events that are told a bounded number of times in any case."""
_SIZES = ((200, 32), (64, 8), (64, 2))
"""How many characters a text keeps, and how many entries a list, if the line is too long otherwise; a digest has 64."""

_log = logging.getLogger("bbgrap.coordinator")


class AuditLog:
    """The audit log of a coordinator.

    Invariants: `_omitted` are the lines that were not written, by their event or by what kept them out, since it was told last.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_FILE_BYTES) -> None:
        """Begin to write; nothing is opened before there is a line."""
        self._handler = _Lines(path, max_bytes)
        self._queue: queue.Queue[tuple[str, Audit] | None] = queue.Queue(MAX_QUEUED)
        self._minute = 0
        self._told: Counter[str] = Counter()
        self._omitted: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="audit", daemon=True)
        self._thread.start()

    def write(self, audit: Audit) -> None:
        """Have a line written; from any thread, at once."""
        when = datetime.now(UTC).isoformat(timespec="milliseconds")
        minute = int(time.monotonic() // 60)
        with self._lock:
            if minute != self._minute:
                self._minute = minute
                self._told.clear()
            self._told[audit.event] += 1
            if self._told[audit.event] > MAX_PER_MINUTE and audit.event not in _COUNTED:
                self._omitted[audit.event] += 1
                return
            try:
                self._queue.put_nowait((when, audit))
            except queue.Full:
                self._omitted["slow disk"] += 1

    def close(self) -> None:
        """Write what was told, and end."""
        self._queue.put(None)
        self._thread.join()
        self._handler.close()

    def _work(self) -> None:
        while (told := self._queue.get()) is not None:
            self._say_what_is_missing()
            if not self._handler.put(line_of(*told)):
                with self._lock:
                    self._omitted["full disk"] += 1
        self._say_what_is_missing()

    def _say_what_is_missing(self) -> None:
        with self._lock:
            omitted, self._omitted = self._omitted, Counter()
        if not omitted:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        if not self._handler.put(line_of(now, Audit("omitted", {}, {"lines": dict(omitted)}))):
            with self._lock:
                self._omitted.update(omitted)


def line_of(when: str, audit: Audit) -> str:
    """Return the line of an event, without its end; ASCII, of at most `MAX_LINE_BYTES`."""
    for characters, entries in _SIZES:
        shown = {
            "time": when,
            "event": audit.event,
            "who": _bounded(audit.who, characters, entries),
            **_bounded(audit.detail, characters, max(entries, 8)),
        }
        line = json.dumps(shown)
        if len(line) <= MAX_LINE_BYTES:
            return line
    return json.dumps({"time": when, "event": audit.event, "who": {}, "cut": True})


def _bounded(value: object, characters: int, entries: int) -> Any:  # noqa: ANN401 - what JSON can say
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if isfinite(value) else str(value)
        case Mapping():
            return {str(key)[:characters]: _bounded(value[key], characters, entries) for key in list(value)[:entries]}
        case list() | tuple():
            return [_bounded(item, characters, entries) for item in value[:entries]]
        case _:
            return str(value)[:characters]


class _Lines(RotatingFileHandler):
    """The files; what cannot be written is told once, until something can be again."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        super().__init__(path, maxBytes=max_bytes, backupCount=MAX_OLD_FILES, encoding="ascii", delay=True)
        self._fault = ""
        self._was_told = False

    def put(self, line: str) -> bool:
        """Write a line; whether it could be."""
        self._fault = ""
        self.emit(logging.makeLogRecord({"msg": line}))
        if self._fault and not self._was_told:
            _log.warning("audit log '%s': it cannot be written; until it can, lines are only counted: %s", self.baseFilename, self._fault)
        self._was_told = bool(self._fault)
        return not self._fault

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Begin anew with the next line: what the stream still holds must not come later, in pieces."""
        self._fault = str(sys.exc_info()[1])
        stream, self.stream = self.stream, None
        with suppress(OSError, ValueError):
            if stream is not None:
                stream.close()

    def _open(self) -> TextIOWrapper:
        is_cut = _ends_within_a_line(Path(self.baseFilename))
        stream = open(self.baseFilename, "a", encoding="ascii", opener=_private)  # noqa: SIM115 - Path.open has no opener
        if is_cut:
            stream.write("\n")
        return stream


def _private(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, 0o600)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.fchmod(descriptor, 0o600)
    return descriptor


def _ends_within_a_line(path: Path) -> bool:
    """Whether the last line is not complete: the disk was full, or the power went."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
