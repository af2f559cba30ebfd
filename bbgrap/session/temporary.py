"""Temporary folders of objects.

Law: one goes with its owner, or if that is killed, when the next one of its kind is made: its lock has gone with the process.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path

from bbgrap.errors import UsageError
from bbgrap.file_locks import lock_at
from bbgrap.transport.left_folders import remove_left


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
