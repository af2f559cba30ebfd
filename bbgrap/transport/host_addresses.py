"""The addresses of a host, one after the other: ZeroMQ tries the first that a name has for ever, and it may be one where nobody listens.

    tcp://head:7070  ──► tcp://10.0.0.5:7070  ──► tcp://192.168.1.5:7070  ──► tcp://head:7070, looked up anew  ──► ...

Laws: nobody waits for a look-up here; a numeric address stays as it is, and so does the name of a host that has one of IPv4: ZeroMQ looks
up names as IPv4 only. Addresses of IPv6 come last.
"""

from __future__ import annotations

import ipaddress
import queue
import socket
import threading

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
