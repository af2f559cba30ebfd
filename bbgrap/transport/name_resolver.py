"""Looking up names of hosts without waiting: a name server that does not answer stops nobody who has another address.

Laws: `look_up` never waits; numeric addresses need no thread; every answer and every failure is kept for some seconds; a name that has an
IPv4 address stands for that one, as on control connections: who is told no IPv6 address listens at IPv4 ones.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable

SocketAddress = tuple[socket.AddressFamily, tuple[str | int, ...] | tuple[int, bytes]]
"""What a socket needs to connect."""

_KNOWN_S = 10.0
_UNKNOWN_S = 1.0
_THREADS = 8
"""So many names are looked up at once, and that many that are not answered for hold up the others. Chosen."""


class NameResolver:
    """Names that were looked up lately.

    Invariants: `look_up` is called by one thread; `_answers` has nothing that is older than `_KNOWN_S` when something is added.
    """

    def __init__(self, answered: Callable[[], None]) -> None:
        """Call `answered` from another thread when it may help to look up again."""
        self._answered = answered
        self._answers: dict[tuple[str, int], tuple[float, SocketAddress | OSError]] = {}
        self._questions: queue.SimpleQueue[tuple[str, int] | None] = queue.SimpleQueue()
        self._asked: set[tuple[str, int]] = set()
        self._lock = threading.Lock()
        self._threads = 0

    def look_up(self, host: str, port: int) -> SocketAddress | None:
        """Return where a host is; None if that is not known yet: `answered` is called when it is.

        Raises:
            OSError: if there is no such host, or nobody is left to look it up.
        """
        try:
            return _find(host, port, socket.AI_NUMERICHOST)
        except socket.gaierror:
            pass
        name = (host, port)
        until, answer = self._answers.get(name, (0.0, None))
        if answer is not None and time.monotonic() < until:
            if isinstance(answer, OSError):
                raise answer
            return answer
        if name not in self._asked:
            if self._threads <= min(len(self._asked), _THREADS - 1):
                self._start_thread()
            self._asked.add(name)
            self._questions.put(name)
        return None

    def _start_thread(self) -> None:
        try:
            threading.Thread(target=self._run, name="names", daemon=True).start()
        except RuntimeError as error:  # this process may have no more threads
            if not self._threads:
                raise OSError(f"names cannot be looked up: {error}") from error
        else:
            self._threads += 1

    def close(self) -> None:
        """End the threads, once they have the answers that they wait for; nobody waits for that."""
        for _ in range(self._threads):
            self._questions.put(None)

    def _run(self) -> None:
        while (name := self._questions.get()) is not None:
            answer: SocketAddress | OSError
            try:
                answer, kept_s = _find(*name, 0), _KNOWN_S
            except OSError as error:
                answer, kept_s = error, _UNKNOWN_S
            now = time.monotonic()
            with self._lock:
                self._answers = {other: kept for other, kept in self._answers.items() if kept[0] > now} | {name: (now + kept_s, answer)}
            self._asked.discard(name)
            self._answered()


def _find(host: str, port: int, flags: int) -> SocketAddress:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except (ValueError, OverflowError) as error:  # no text or number that may be asked for
        raise OSError(f"no host has the address {host[:80]!r}, port {port}: {error}") from error
    family, _, _, _, target = next((each for each in found if each[0] == socket.AF_INET), found[0])
    return family, target
