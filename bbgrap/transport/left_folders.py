"""Folders of processes that were killed: each was locked by its process, and then by nobody."""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

from bbgrap.file_locks import lock_at

_FRESH_S = 60.0
"""A folder without a lock may be about to get one, for so long after it was made. Chosen."""


def remove_left(place: Path, prefix: str) -> None:
    """Remove what processes of this user that were killed have left: nobody has it locked any more."""
    if sys.platform != "win32":
        for folder in place.glob(f"{prefix}*"):
            with suppress(OSError):  # it is just going
                known = folder.lstat()
                is_left = known.st_uid == os.geteuid() and time.time() - known.st_mtime > _FRESH_S
                if is_left and (lock := lock_at(folder)) is not None:
                    shutil.rmtree(folder, ignore_errors=True)
                    os.close(lock)
