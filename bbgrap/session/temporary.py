"""Temporary folders of objects."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from bbgrap.errors import UsageError


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


def _remove(folder: Path, lock: int | None, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)
