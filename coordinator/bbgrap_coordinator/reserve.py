"""Room on the disk that a running coordinator holds for its next start, which has to write before it may serve.

Laws: a start has at least the room that was held before, however full others have made the disk; only who has locked the state directory
calls this.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

RESERVED_BYTES = 1 << 20
"""Chosen: a start writes some 70 KB, nearly all of it the database's log and index, and so does each further one."""

_PIECE_BYTES = 4096


class Reserve:
    """A file in the state directory."""

    def __init__(self, directory: Path) -> None:
        """Use a directory; nothing is held or given up before this is asked for."""
        self._path = directory / "reserve"

    def give_up(self) -> None:
        """Let a start have the room."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def hold(self) -> bool:
        """Hold room, or as much as there is, for the next start; return whether that is all."""
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            while os.fstat(descriptor).st_size < RESERVED_BYTES:
                os.write(descriptor, os.urandom(_PIECE_BYTES))  # no holes, and nothing that a file system makes smaller
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True
