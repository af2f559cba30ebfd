"""Temporary folders of objects.

Law: one goes with its owner, or if that is killed, when the next one of its kind is made: its lock has gone with the process.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import weakref
from contextlib import suppress
from pathlib import Path

from bbgrap.errors import UsageError
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


def folder_of(owner: object, prefix: str) -> Path:
    """Make a folder that ends with its owner; a fork child has but a copy of the owner, and leaves the folder alone.

    What tidies up old temporary files, as systemd does after ten days, leaves it alone, too, for it is locked.

    Raises:
        UsageError: if there is no place for temporary files.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
    except OSError as error:
        raise UsageError(f"temporary files: {error.strerror}; set TMPDIR to a folder that can be written") from error
    remove_left(folder.parent, prefix)
    weakref.finalize(owner, _remove, folder, lock_at(folder), os.getpid())
    return folder


def _remove(folder: Path, lock: int | None, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)
