"""Names of hosts, looked up without waiting: for control connections (`HostAddresses`), and for the data plane (`NameResolver`).

ZeroMQ tries the first address that a name has for ever, and it may be one where nobody listens; so it is given one after the other:

    tcp://head:7070  ──► tcp://10.0.0.5:7070  ──► tcp://192.168.1.5:7070  ──► tcp://head:7070, looked up anew  ──► ...

Laws: nobody waits for a look-up here, so a name server that does not answer stops nobody who has another address; for ZeroMQ, which looks
up names as IPv4 only, a numeric address stays as it is, and so does the name of a host that has one of IPv4, and addresses of IPv6 come
last. On the data plane a name has a thread while it is asked for, a numeric address never; every answer and every failure is kept for some
seconds; a name that has an IPv4 address stands for that one: who is told no IPv6 address listens at IPv4 ones.
"""

from __future__ import annotations

import ipaddress
import queue
import socket
import threading
import time
from collections.abc import Callable

from bbgrap.protocol.addresses import split_address


class HostAddresses:
    """Where to connect to for an address `tcp://HOST:PORT`.

    Invariants: `current` is the address itself, or one of those that its host had when it was looked up last; used by one thread.
    """

    def __init__(self, address: str) -> None:
        """Begin with the address itself."""
        self.current = address
        self.is_name = _is_name(split_address(address)[0])
        self._address = address
        self._left: list[str] = []
        self._left_behind: set[str] = set()
        self._found: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        self._is_looking = self._has_failed = False

    def failed(self, address: str) -> None:
        """Note that nobody takes connections at an address; one that has been left is still tried for a moment, which says nothing."""
        if address != self.current and address in self._left_behind:
            return
        self._has_failed = self.is_name
        if self.is_name and self.current == self._address and not self._is_looking:
            try:
                threading.Thread(target=self._look_up, name="addresses", daemon=True).start()
                self._is_looking = True
            except RuntimeError:  # no thread is left: it stays
                pass

    def succeeded(self) -> None:
        """Note that somebody does."""
        self._has_failed = False

    def move_on(self) -> bool:
        """Go on to the next one if the current one has failed; return whether there is one."""
        if self._is_looking and not self._found.empty():
            self._left, self._is_looking = self._found.get(), False
        if not self._has_failed or (self.current == self._address and not self._left):
            return False
        self._left_behind.add(self.current)
        self.current = self._left.pop(0) if self._left else self._address
        self._has_failed = False
        return True

    def _look_up(self) -> None:
        host, port = split_address(self._address)
        hosts: list[str] = []
        try:
            found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
            hosts = [f"[{target[0]}]" if family == socket.AF_INET6 else str(target[0]) for family, *_, target in found]
            hosts = sorted(dict.fromkeys(hosts), key=lambda each: each.startswith("["))
        except (OSError, UnicodeError, OverflowError, ValueError):  # ZeroMQ meets the same, and it is told of by others
            pass
        is_same = len(hosts) == 1 and not hosts[0].startswith("[")
        self._found.put([] if is_same else [f"tcp://{each}:{port}" for each in hosts])


def _is_name(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return True
    return False


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
