"""Coordinators on the local network, found by multicast DNS (extra `mdns`): `bbgrap-coordinator --announce`, `bbgrap-agent --join mdns`.

Laws: an announcement gives an address and nothing else. Who listens there must prove, in the handshake, to have the key that the token (or
the node's own key) is for; a stranger who announces itself proves nothing and learns nothing. Without locks there is nothing to prove, so
then there must be one announcement only. IPv4.
"""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import ModuleType
from typing import Any

import zmq

from bbgrap.errors import AccessError, ClusterUnavailableError, UsageError
from bbgrap.protocol.addresses import ALL_ADDRESSES, split_address
from bbgrap.transport.control_sockets import read_monitor
from bbgrap.transport.locks import ClientLock

MDNS = "mdns"
"""What stands for a coordinator's address: look for it."""
SERVICE = "_bbgrap._tcp.local."
WITHIN_S = 5.0
"""How long is looked. Chosen: announcements are answered within a second, on wireless networks at the second question."""
MOST = 64
"""Addresses that are tried; strangers may announce as many as they like."""
_TICK_MS = 50


def _zeroconf() -> ModuleType:
    try:
        import zeroconf
    except ImportError:
        raise UsageError("mdns: it needs an extra package on this machine: pip install 'bbgrap[mdns]'; or give the address") from None
    return zeroconf


@contextmanager
def announce(address: str, advertise: str = "") -> Iterator[None]:
    """Say on the local network that a coordinator listens at an address, as long as the context lasts.

    Raises:
        UsageError: if the extra is not installed, or the address is none of IPv4.
    """
    zeroconf = _zeroconf()
    host, port = split_address(address)
    try:
        bound = [] if host in ALL_ADDRESSES else [socket.gethostbyname(host)]
        reached = [socket.gethostbyname(advertise)] if advertise else bound or zeroconf.get_all_addresses()
        # On a network that it does not listen on, nobody needs to hear of it.
        own = zeroconf.Zeroconf(interfaces=bound or zeroconf.InterfaceChoice.All, ip_version=zeroconf.IPVersion.V4Only)
    except OSError as error:
        raise UsageError(f"--announce: {address} cannot be announced, an address of IPv4 is needed: {error.strerror or error}") from None
    name = f"{socket.gethostname().partition('.')[0][:40]}-{port}"
    info = zeroconf.ServiceInfo(SERVICE, f"{name}.{SERVICE}", port=int(port), parsed_addresses=reached, server=f"{name}.local.")
    try:
        own.register_service(info, allow_name_change=True)
        yield
    finally:
        own.close()


def discover(find_lock: Callable[[str], ClientLock | None], within_s: float = WITHIN_S) -> str:
    """Return the address of the coordinator that `find_lock` has keys for; where it returns None, of the only one there is.

    Raises:
        UsageError: if the extra is not installed, or nothing says which of several is meant.
        AccessError: if there are no keys, or none of those that announce themselves is the coordinator that they are for.
        ClusterUnavailableError: if nobody announces itself.
    """
    zeroconf = _zeroconf()
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    refused: AccessError | None = None
    open_ones: list[str] = []
    with ExitStack() as stack:
        own = zeroconf.Zeroconf(ip_version=zeroconf.IPVersion.V4Only)
        stack.callback(own.close)
        stack.callback(zeroconf.ServiceBrowser(own, SERVICE, handlers=[_listener(zeroconf, heard)]).cancel)  # else its thread stays
        handshakes = _Handshakes(stack)
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            with suppress(queue.Empty):
                while len(handshakes.tried) + len(open_ones) < MOST:
                    address = heard.get_nowait()
                    try:
                        lock = find_lock(address)
                    except AccessError as error:
                        refused = refused or error
                        continue
                    if lock is None:
                        open_ones.append(address)
                    else:
                        handshakes.begin(address, lock)
            if proven := handshakes.proven():
                return proven
    return _only(open_ones, handshakes.tried, refused)


def _only(open_ones: list[str], tried: list[str], refused: AccessError | None) -> str:
    hosts = sorted(set(open_ones))
    if len(hosts) == 1:
        return hosts[0]
    if hosts:
        raise UsageError(f"mdns: there are several ({', '.join(hosts)}), and without keys nothing says which is meant; give the address")
    if tried:
        raise AccessError(f"mdns: what announces itself at {', '.join(tried)} is not the coordinator that the token or key here is for")
    if refused is not None:
        raise refused
    raise ClusterUnavailableError("mdns: no coordinator announces itself; start it with --announce in this network, or give its address")


def _listener(zeroconf: ModuleType, heard: queue.SimpleQueue[str]) -> Callable[..., None]:
    def changed(zeroconf: Any, service_type: str, name: str, state_change: object) -> None:  # noqa: ANN401 - called with these names
        if state_change is not added:
            return
        info = zeroconf.get_service_info(service_type, name, 1000)
        for host in info.parsed_addresses(v4) if info is not None and info.port else ():
            heard.put(f"tcp://{host}:{info.port}")

    added, v4 = zeroconf.ServiceStateChange.Added, zeroconf.IPVersion.V4Only
    return changed


class _Handshakes:
    """Handshakes that have been begun, to see who has which key; nothing is sent after them."""

    def __init__(self, stack: ExitStack) -> None:
        """Begin none; all end with a stack."""
        self.tried: list[str] = []
        self._stack = stack
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        stack.callback(self._context.term)
        self._poller = zmq.Poller()
        self._monitors: dict[object, str] = {}

    def begin(self, address: str, lock: ClientLock) -> None:
        """Begin one."""
        if address in self.tried:
            return
        self.tried.append(address)
        dealer = self._stack.enter_context(self._context.socket(zmq.DEALER))
        dealer.linger = 0
        lock.set_on(dealer)
        monitor = dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._stack.callback(monitor.close, 0)
        self._stack.callback(dealer.disable_monitor)
        self._monitors[monitor] = address
        self._poller.register(monitor, zmq.POLLIN)
        dealer.connect(address)

    def proven(self) -> str:
        """Return an address where somebody has the key; empty if nobody has shown it yet. Waits a moment."""
        if not self._monitors:
            time.sleep(_TICK_MS / 1e3)
            return ""
        for monitor, _ in self._poller.poll(_TICK_MS):
            if isinstance(monitor, zmq.Socket) and read_monitor(monitor)[0] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return self._monitors[monitor]
        return ""
