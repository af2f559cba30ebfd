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

_FRESH_S = 60.0
"""A folder without a lock may be about to get one, for so long after it was made. Chosen."""


def folder_of(owner: object, prefix: str) -> Path:
    """Make a folder that ends with its owner; a fork child has but a copy of the owner, and leaves the folder alone.

    What tidies up old temporary files, as systemd does after ten days, leaves it alone, too.

    Raises:
        UsageError: if there is no place for temporary files.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
    except OSError as error:
        raise UsageError(f"temporary files: {error.strerror}; set TMPDIR to a folder that can be written") from error
    _remove_left(folder.parent, prefix)
    weakref.finalize(owner, _remove, folder, _locked(folder), os.getpid())
    return folder


def _locked(folder: Path) -> int | None:
    """Lock a folder, by which systemd's tmpfiles know that it is in use; return the descriptor that has the lock."""
    if sys.platform != "win32":
        import fcntl

        with suppress(OSError):  # no descriptor is left, or its file system has no locks
            descriptor = os.open(folder, os.O_RDONLY)
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            return descriptor
    return None


def _remove_left(place: Path, prefix: str) -> None:
    """Remove what processes of this user that were killed have left: nobody has it locked any more."""
    if sys.platform != "win32":
        import fcntl

        for folder in place.glob(f"{prefix}*"):
            with suppress(OSError):  # it is another user's, just going, or in use
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    known = os.fstat(descriptor)
                    if known.st_uid == os.geteuid() and time.time() - known.st_mtime > _FRESH_S:
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(descriptor)


def _remove(folder: Path, lock: int | None, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)
