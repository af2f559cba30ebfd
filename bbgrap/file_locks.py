"""Locks on files and folders that processes of several containers share: unlike numbers of processes, they mean the same to all."""

from __future__ import annotations

import os
from pathlib import Path


def lock_at(path: Path) -> int | None:
    """Lock a file or folder until the descriptor that is returned is closed, or this process ends.

    None if somebody else has locked it, it is gone, or it cannot be locked here.
    """
    try:
        # Network file systems lock files that may be written only.
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    except OSError:
        return None
    if lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def lock(descriptor: int) -> bool:
    """Lock an open file; whether that could be done."""
    try:
        import fcntl  # not on every system

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True
