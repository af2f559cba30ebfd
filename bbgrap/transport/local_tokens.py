"""Where commands find the token of a coordinator on their own machine: its user needs to paste nothing there.

A coordinator notes, in a folder of its user, the file with its token by the address it listens at. Laws: a note is believed only if it
belongs to this user alone; an address of another machine never finds one. There are none on Windows, where no coordinator runs.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bbgrap.protocol.addresses import ALL_ADDRESSES, split_address
from bbgrap.user_folders import write_private

_MAX_PATH = 4096
"""Characters of the path in a note. Linux takes no longer one."""


def _folder() -> Path:
    """Return the folder of this user's notes, which others cannot replace where they cannot rename: the sticky bit sees to that.

    Raises:
        OSError: if there is no folder for temporary files.
    """
    if sys.platform == "win32":
        raise NotImplementedError("coordinators do not run on Windows")
    return Path(tempfile.gettempdir()) / f"bbgrap-{os.geteuid()}-coordinators"


def _is_own(path: Path, kind: Callable[[int], bool]) -> bool:
    """Whether something belongs to this user alone, and is what it seems to be, no link."""
    if sys.platform == "win32":
        return False
    status = path.lstat()
    return kind(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _name(address: str) -> str:
    host, port = split_address(address)
    return f"{'any' if host in ALL_ADDRESSES else host.strip('[]')}_{port}".replace("/", "_")


def note_token(address: str, token_file: Path) -> Path:
    """Note where the token of the coordinator at an address is; return the note, which is removed with it.

    Raises:
        OSError: if it cannot be written.
    """
    if sys.platform == "win32":
        raise NotImplementedError("coordinators do not run on Windows")
    folder = _folder()
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not _is_own(folder, stat.S_ISDIR):
        raise PermissionError(errno.EPERM, f"'{folder}' is not this user's alone")
    note = folder / _name(address)
    write_private(note, str(token_file.absolute()))
    return note


def find_token(address: str) -> Path | None:
    """Return the file with the token of the coordinator at an address, if that is this user's on this machine."""
    host, port = split_address(address)
    if not hasattr(os, "geteuid") or not _is_here(host.strip("[]")):
        return None
    names = (address, f"tcp://127.0.0.1:{port}", f"tcp://*:{port}") if host in {"localhost", "127.0.0.1"} else (address, f"tcp://*:{port}")
    for name in names:
        with suppress(OSError, ValueError):  # also where this user has no folder for temporary files
            note = _folder() / _name(name)
            if _is_own(note.parent, stat.S_ISDIR) and _is_own(note, stat.S_ISREG):
                with note.open() as stream:
                    path = stream.read(_MAX_PATH + 1)
                if len(path) <= _MAX_PATH and (file := Path(path)).exists():  # a coordinator that was killed leaves its note
                    return file
    return None


def _is_here(host: str) -> bool:
    """Whether a host is this machine, under one of its addresses."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(place)
    except (OSError, UnicodeError):
        return False
    return True
