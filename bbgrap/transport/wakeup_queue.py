"""Events for a thread that waits in a poller, from threads that must not touch its sockets."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class WakeupQueue(Generic[T]):
    """A queue whose `fileno` is readable while something is in it.

    Invariants: items come out in the order they went in; `put` may be called from any thread and from signal handlers.
    """

    def __init__(self) -> None:
        """Open the pipe behind it."""
        self._items: deque[T] = deque()
        self._pipe = _Pipe() if hasattr(select, "poll") else _Sockets()

    def fileno(self) -> int:
        """The file descriptor to poll."""
        return self._pipe.fileno()

    def put(self, item: T) -> None:
        """Add an item and wake the reader."""
        self._items.append(item)
        with contextlib.suppress(OSError):  # full: the reader is being woken already; or closed: nobody reads any more
            self._pipe.write()

    def take(self) -> list[T]:
        """Return all items."""
        with contextlib.suppress(BlockingIOError):
            self._pipe.read()
        taken = []
        while self._items:
            taken.append(self._items.popleft())
        return taken

    def close(self) -> None:
        """Close the pipe; further items are lost."""
        self._pipe.close()


class _Pipe:
    """A pipe. Where processes are confined it is all they may have."""

    _read = _write = -1  # where the system grants none, what was begun here is forgotten like all else

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        if sys.platform != "win32":
            for end in (self._read, self._write):
                os.set_blocking(end, False)

    def fileno(self) -> int:
        return self._read

    def write(self) -> None:
        os.write(self._write, b"\0")

    def read(self) -> None:
        os.read(self._read, 65536)

    def close(self) -> None:
        # Their numbers are soon somebody else's, and another thread may still put something in.
        ends, self._write, self._read = (self._write, self._read), -1, -1
        for end in ends:
            if end >= 0:
                os.close(end)

    def __del__(self) -> None:
        """End with whoever has forgotten it without closing it, as sockets do: numbers of descriptors have no owner that would."""
        self.close()


class _Sockets:
    """Two sockets, for Windows, where pollers take nothing else."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        for end in (self._read, self._write):
            end.setblocking(False)

    def fileno(self) -> int:
        return self._read.fileno()

    def write(self) -> None:
        self._write.send(b"\0")

    def read(self) -> None:
        self._read.recv(65536)

    def close(self) -> None:
        self._write.close()
        self._read.close()
