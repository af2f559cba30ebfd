"""Temporary folders of objects."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path

from bbgrap.errors import UsageError


def folder_of(owner: object, prefix: str) -> Path:
    """Make a folder that ends with its owner; a fork child has but a copy of the owner, and leaves the folder alone.

    Raises:
        UsageError: if there is no place for temporary files.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
    except OSError as error:
        raise UsageError(f"temporary files: {error.strerror}; set TMPDIR to a folder that can be written") from error
    weakref.finalize(owner, _remove, folder, os.getpid())
    return folder


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
