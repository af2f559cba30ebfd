"""Machines on one: a network namespace for each, joined by a bridge, and faults of the links between them.

    [hub: bridge, clients]──┬── [coordinator]
                            ├── [agent0]
                            └── [agent1] ...

A process enters with `nsenter`, which leaves `/sys` as it is: `ip netns exec` would hide the control groups. Laws: names carry the process
number, so two runs do not meet; everything is gone when the context ends; a fault that is healed leaves no trace.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import zmq

from bbgrap.errors import UsageError

HUB = "hub"
"""The host with the bridge; clients live there."""

_CLONE_NEWNET = 0x40000000
_NETWORK = "10.78.0"
_HUB_NUMBER = 254
_NOBODY = "02:00:00:00:00:fe"
"""A hardware address that no machine has: what is sent there is lost."""

_DROP_ALL = "1,6 0 0 2"
_DROP_PORT = "8,40 0 0 12,21 0 5 2048,48 0 0 23,21 0 3 6,40 0 0 36,21 0 1 {port},6 0 0 2,6 0 0 0"
"""Classic BPF that sees Ethernet frames: what is IPv4, TCP and goes to a port is dropped (2), all else passes."""


@dataclass
class Lan:
    """Hosts with addresses of their own.

    Invariants: `filtered` are the hosts whose incoming frames are looked at.
    """

    hosts: tuple[str, ...]
    filtered: set[str] = field(default_factory=set)

    def address(self, host: str) -> str:
        """Return the address of a host."""
        return f"{_NETWORK}.{_HUB_NUMBER if host == HUB else 1 + self.hosts.index(host)}"

    def prefix(self, host: str) -> list[str]:
        """Return what a command begins with to run on a host."""
        return ["nsenter", f"--net=/var/run/netns/{self.namespace(host)}"]

    def namespace(self, host: str) -> str:
        """Return the name of a host's network namespace."""
        return f"bbgrap{os.getpid()}-{host}"

    # --- faults -----------------------------------------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Lose what a host sends to another from now on; what comes back passes."""
        self._ip(source, "neigh", "replace", self.address(target), "lladdr", _NOBODY, "dev", "eth0", "nud", "permanent")

    def join(self, source: str, target: str) -> None:
        """Undo `cut`."""
        self._ip(source, "neigh", "del", self.address(target), "dev", "eth0", check=False)

    def isolate(self, host: str) -> None:
        """Lose whatever comes to a host."""
        self._filter(host, _DROP_ALL)

    def block(self, host: str, port: int) -> None:
        """Lose what comes to a port of a host, as behind a firewall."""
        self._filter(host, _DROP_PORT.format(port=port))

    def _filter(self, host: str, bytecode: str) -> None:
        if host not in self.filtered:
            run("tc", "-n", self.namespace(host), "qdisc", "add", "dev", "eth0", "clsact")
            self.filtered.add(host)
        run("tc", "-n", self.namespace(host), "filter", "add", "dev", "eth0", "ingress", "prio", "1", "bpf", "da", "bytecode", bytecode)

    def open(self, host: str) -> None:
        """Undo `isolate` and `block`."""
        if host in self.filtered:
            run("tc", "-n", self.namespace(host), "qdisc", "del", "dev", "eth0", "clsact")
            self.filtered.discard(host)

    def slow(self, host: str, rate: str) -> None:
        """Limit what a host sends, for example to `1mbit`."""
        run(
            "tc", "-n", self.namespace(host), "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "16kb", "latency", "50ms"
        )

    def hasten(self, host: str) -> None:
        """Undo `slow`."""
        run("tc", "-n", self.namespace(host), "qdisc", "del", "dev", "eth0", "root", check=False)

    def reset(self, host: str, other: str) -> None:
        """Reset all TCP connections between two hosts; both ends are told."""
        # The exit status says nothing: ss also looks at sockets that cannot be reset.
        run(*self.prefix(host), "ss", "-t", "-K", "dst", self.address(other), check=False)

    # --- making -----------------------------------------------------------------------------------------------------------------

    def make(self) -> None:
        """Make hosts and links."""
        hub = self.namespace(HUB)
        run("ip", "netns", "add", hub)
        self._ip(HUB, "link", "add", "eth0", "type", "bridge")
        for host in self.hosts:
            run("ip", "netns", "add", self.namespace(host))
            port = f"to{self.hosts.index(host)}"
            run("ip", "link", "add", "eth0", "netns", self.namespace(host), "type", "veth", "peer", "name", port, "netns", hub)
            self._ip(HUB, "link", "set", port, "master", "eth0", "up")
        for host in (HUB, *self.hosts):
            self._ip(host, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                self._ip(host, "link", "set", device, "up")

    def remove(self) -> None:
        """Remove what there is of it."""
        for host in (*self.hosts, HUB):
            run("ip", "netns", "del", self.namespace(host), check=False)

    def _ip(self, host: str, *words: str, check: bool = True) -> None:
        run("ip", "-n", self.namespace(host), *words, check=check)


@contextmanager
def lan_of(hosts: Sequence[str]) -> Iterator[Lan]:
    """Make a network of hosts as long as the context lasts.

    Raises:
        UsageError: if this process may not, or a program is missing.
    """
    lan = Lan(tuple(hosts))
    try:
        lan.make()
        yield lan
    finally:
        lan.remove()


@contextmanager
def in_hub(lan: Lan) -> Iterator[None]:
    """Have this thread at the hub as long as the context lasts, with the threads and processes that it starts."""
    with Path("/proc/thread-self/ns/net").open("rb") as before, Path(f"/var/run/netns/{lan.namespace(HUB)}").open("rb") as hub:
        enter_network(hub)
        try:
            yield
        finally:
            zmq.Context.instance().destroy(0)  # its threads are at this hub, and would stay there
            enter_network(before)


def enter_network(namespace: BinaryIO) -> None:
    """Move this thread, and the threads and processes that it starts from now on, to a network namespace.

    Raises:
        OSError: if this process may not.
    """
    if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, f"{os.strerror(code)}: namespace", namespace.name)


def run(*command: str, check: bool = True) -> None:
    """Run a command of the system.

    Raises:
        UsageError: if it fails, where that is looked at.
    """
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if check and done.returncode:
        raise UsageError(f"network: '{' '.join(command)}' failed: {done.stderr.strip()}")
