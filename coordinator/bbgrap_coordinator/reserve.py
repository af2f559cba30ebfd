"""Room on the disk that a running coordinator holds for its next start, which has to write before it may serve.

Laws: a start has at least the room that was held before, however full others have made the disk; where that has little room, no more is
held than before; only who has locked the state directory calls this.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

RESERVED_BYTES = 1 << 20
"""Chosen: a start writes some 70 KB, nearly all of it the database's log and index, and so does each further one."""

_PIECE_BYTES = 4096
_LITTLE_BYTES = 16 * RESERVED_BYTES
"""Of a disk with less, nothing is taken from others."""


class Reserve:
    """A file in the state directory."""

    def __init__(self, directory: Path) -> None:
        """Use a directory; nothing is held or given up before this is asked for."""
        self._path = directory / "reserve"
        self._had = 0

    def give_up(self) -> None:
        """Let a start have the room."""
        with suppress(OSError):
            self._had = self._path.stat().st_size
            self._path.unlink()

    def hold(self) -> bool:
        """Hold room, or as much as there is, for the next start; return whether that is all."""
        try:
            most = RESERVED_BYTES if shutil.disk_usage(self._path.parent).free >= _LITTLE_BYTES else self._had
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            while os.fstat(descriptor).st_size < most:
                os.write(descriptor, os.urandom(_PIECE_BYTES))  # no holes, and nothing that a file system makes smaller
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return most >= RESERVED_BYTES
