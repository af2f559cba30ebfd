"""A name for an agent that was given none: its machine's, so that what is known of it by name holds after a restart.

    host, host-2, host-3 ...     the first that no other agent of this machine has

Law: who holds the lock on the file has the name; the system gives the lock back however a process ends.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import IO

from bbgrap.errors import BbgrapError, UsageError
from bbgrap.protocol.key_messages import MAX_KEY_NAME_BYTES

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_MOST = 4096


def checked_name(name: str) -> str:
    """Return a name that was given.

    Raises:
        UsageError: if no coordinator would understand it: it would never answer.
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise UsageError("name: expected text in UTF-8; choose another with --name") from error
    if size > MAX_KEY_NAME_BYTES:
        raise UsageError(f"name: it has {size} bytes, the limit is {MAX_KEY_NAME_BYTES}; choose another with --name")
    return name


class OwnName:
    """A name that no other agent with the same folder has, for as long as this object lives."""

    def __init__(self, directory: Path, host: str | None = None) -> None:
        """Take the first free one.

        Raises:
            BbgrapError: if the folder cannot be written to now, which may pass, or has no lock files.
        """
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self.name, self._lock = _first_free(directory, _UNSAFE.sub("-", host or socket.gethostname()) or "agent")
        except (OSError, ImportError) as error:
            raise BbgrapError(f"name: no lock can be taken in {directory}: {error}; choose a name with --name") from error

    def close(self) -> None:
        """Let others have the name."""
        self._lock.close()


def _first_free(directory: Path, host: str) -> tuple[str, IO[bytes]]:
    import fcntl  # not on every system

    for number in range(1, _MOST + 1):
        name = host if number == 1 else f"{host}-{number}"
        lock = (directory / f"{name}.lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        return name, lock
    raise OSError(f"{_MOST} agents of this machine have their names there")
