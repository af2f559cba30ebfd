"""Looking up names of hosts without waiting: a name server that does not answer stops nobody who has another address.

Laws: `look_up` never waits; a name has a thread while it is asked for, a numeric address never; every answer and every failure is kept
for some seconds; a name that has an IPv4 address stands for that one, as on control connections: who is told no IPv6 address listens at
IPv4 ones.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

SocketAddress = tuple[socket.AddressFamily, tuple[str | int, ...] | tuple[int, bytes]]
"""What a socket needs to connect."""

_KNOWN_S = 2.0
"""Chosen: who waits for a host that has moved, as a pod does, is looked for where it was for no longer than that."""
_UNKNOWN_S = 1.0


class NameResolver:
    """Names that were looked up lately.

    Invariants: `look_up` is called by one thread; `_answers` has nothing that is older than `_KNOWN_S` when something is added.
    """

    def __init__(self, answered: Callable[[], None]) -> None:
        """Call `answered` from another thread when it may help to look up again."""
        self._answered = answered
        self._answers: dict[tuple[str, int], tuple[float, SocketAddress | OSError]] = {}
        self._asked: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

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
            self._asked.add(name)
            try:
                threading.Thread(target=self._ask, args=name, name="names", daemon=True).start()
            except RuntimeError as error:  # this process may have no more threads
                self._asked.remove(name)
                raise OSError(f"names cannot be looked up: {error}") from error
        return None

    def _ask(self, host: str, port: int) -> None:
        answer: SocketAddress | OSError
        try:
            answer, kept_s = _find(host, port, 0), _KNOWN_S
        except OSError as error:
            answer, kept_s = error, _UNKNOWN_S
        now, name = time.monotonic(), (host, port)
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
