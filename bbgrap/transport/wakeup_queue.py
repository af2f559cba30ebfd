"""Events for a thread that waits in a poller, from threads that must not touch its sockets."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class WakeupQueue(Generic[T]):
    """A queue whose `fileno` is readable while something is in it.

    Invariants: items come out in the order they went in; `put` may be called from any thread and from signal handlers.
    """

    def __init__(self) -> None:
        """Open the two sockets behind it: pollers of Windows take nothing else."""
        self._items: deque[T] = deque()
        self._read, self._write = socket.socketpair()
        for end in (self._read, self._write):
            end.setblocking(False)

    def fileno(self) -> int:
        """The file descriptor to poll."""
        return self._read.fileno()

    def put(self, item: T) -> None:
        """Add an item and wake the reader."""
        self._items.append(item)
        with contextlib.suppress(OSError):  # full: the reader is being woken already; or closed: nobody reads any more
            self._write.send(b"\0")

    def take(self) -> list[T]:
        """Return all items."""
        with contextlib.suppress(BlockingIOError):
            self._read.recv(65536)
        taken = []
        while self._items:
            taken.append(self._items.popleft())
        return taken

    def close(self) -> None:
        """Close the sockets; further items are lost."""
        self._write.close()
        self._read.close()

    def __del__(self) -> None:
        """End with whoever has forgotten it without closing it; there may be none, where the system grants no descriptors."""
        with contextlib.suppress(AttributeError):
            self.close()
