"""Events for a thread that waits in a poller, from threads that must not touch its sockets."""

from __future__ import annotations

import contextlib
import os
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
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        """The file descriptor to poll."""
        return self._read

    def put(self, item: T) -> None:
        """Add an item and wake the reader."""
        self._items.append(item)
        try:
            os.write(self._write, b"\0")
        except BlockingIOError:
            return  # Full: the reader is being woken already.
        except OSError:
            return  # Closed: nobody reads any more.

    def take(self) -> list[T]:
        """Return all items."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 65536)
        taken = []
        while self._items:
            taken.append(self._items.popleft())
        return taken

    def close(self) -> None:
        """Close the pipe; further items are lost."""
        os.close(self._write)
        os.close(self._read)
