"""By which address others reach this machine, and that it has another one: a laptop that comes into another network."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
import threading
from contextlib import suppress

from bbgrap.errors import ClusterUnavailableError
from bbgrap.protocol.addresses import split_address

LOOK_S = 1.0
"""How often it is looked whether this machine still has its address."""

_log = logging.getLogger("bbgrap.agent")


def own_address(coordinator: str) -> str:
    """Return the address of this machine on the way to the coordinator; nothing is sent.

    Raises:
        ClusterUnavailableError: if the coordinator's host has no address, or there is no way to it, as before a network is up.
    """
    host, port = split_address(coordinator)
    fault = OSError("it has no address")
    try:
        places = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
        for family, kind, _, _, target in sorted(places, key=lambda place: place[0] == socket.AF_INET6):
            with socket.socket(family, kind) as probe:
                try:
                    probe.connect(target)
                except OSError as error:
                    fault = error
                    continue
                found = str(probe.getsockname()[0])
                return f"[{found}]" if family == socket.AF_INET6 else found
    except OSError as error:
        fault = error
    is_unknown = isinstance(fault, socket.gaierror)
    what = "its host cannot be found" if is_unknown else "there is no way to it from here; is the network up?"
    raise ClusterUnavailableError(f"coordinator '{coordinator}': {what}: {fault.strerror or fault}") from fault


def own_host(advertised: str) -> str:
    """Return what to listen at: only what others use if that is an address of this machine, else everything (`*`)."""
    try:
        # A name may stand for a loopback address here, and for another one elsewhere.
        ipaddress.ip_address(advertised.strip("[]"))
        _bind(advertised, socket.SOCK_STREAM)
    except (OSError, ValueError):
        _log.info("data plane: '%s' is no address of this machine, so it listens at all of them", advertised)
        return "*"
    return advertised


def _bind(host: str, kind: socket.SocketKind) -> None:
    """Try to use an address of this machine."""
    literal = host.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in literal else socket.AF_INET, kind) as probe:
        probe.bind((literal, 0))


class AddressWatch:
    """Notices that this machine has lost the address by which others reach it, and what it has instead.

    An address that comes back, as after a cable was pulled, is no change. Names are looked up in a thread: that may take seconds.
    """

    def __init__(self, coordinator: str, host: str) -> None:
        """Take the coordinator's address, and the one that this machine has now."""
        self._coordinator = coordinator
        self._host = host
        self._due = 0.0
        self._search: threading.Thread | None = None
        self.found = ""
        """What it has instead; empty while it has the old one, or none."""

    def look(self, now: float) -> bool:
        """Return whether it has another one; does not wait."""
        if not self.found and now >= self._due and (self._search is None or not self._search.is_alive()):
            self._due = now + LOOK_S
            if self._is_lost():
                self._search = threading.Thread(target=self._look, name="address", daemon=True)
                with suppress(RuntimeError):  # no thread is left: it looks again
                    self._search.start()
        return bool(self.found)

    def _is_lost(self) -> bool:
        try:
            _bind(self._host, socket.SOCK_DGRAM)
        except OSError as error:
            return error.errno == errno.EADDRNOTAVAIL
        return False

    def _look(self) -> None:
        with suppress(ClusterUnavailableError):
            found = own_address(self._coordinator)
            self.found = "" if found == self._host else found
