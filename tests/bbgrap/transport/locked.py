"""Data planes with certificates of one cluster, for tests."""

from __future__ import annotations

import errno
import os
import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bbgrap.transport.certificates import Authority
from bbgrap.transport.memory_broker import start_broker
from bbgrap.transport.tcp import TcpDataPlane


class LockedCluster:
    """Planes that know each other by their fingerprints.

    Invariants: `planes` are those that were opened, by address; each lets all of them in. With `shares_memory` payloads are laid in memory.
    """

    def __init__(self, *, shares_memory: bool = False) -> None:
        self.authority = Authority.make()
        self.shares_memory = shares_memory
        self.planes: dict[str, LockedPlane] = {}

    def open(self, *, computes: bool = False, bind: str = "tcp://127.0.0.1:0") -> LockedPlane:
        plane = LockedPlane(self, computes=computes, bind=bind)
        self.planes[plane.address] = plane
        for other in self.planes.values():
            other.allow([each.fingerprint for each in self.planes.values()])
        return plane


class LockedPlane(TcpDataPlane):
    """A plane that looks up whose fingerprint is at an address, as an agent is told in `Peer`."""

    def __init__(self, cluster: LockedCluster, *, computes: bool, bind: str) -> None:
        identity = cluster.authority.identity("node")
        memories = start_broker() if cluster.shares_memory else None
        super().__init__(bind, "127.0.0.1", computes=computes, identity=identity, memories=memories)
        self.identity = identity
        self.fingerprint = identity.fingerprint
        self.told: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self.on_broken = lambda *broken: self.told.put(broken)
        self.connect = lambda address, fingerprint="": self._outbox.connect(
            address, fingerprint or (cluster.planes[address].fingerprint if address in cluster.planes else "")
        )


@contextmanager
def pair(*, computes: bool = False) -> Iterator[tuple[LockedPlane, LockedPlane]]:
    """Open a plane that is connected to another one."""
    cluster = LockedCluster()
    sender, target = cluster.open(), cluster.open(computes=computes)
    sender.connect(target.address)
    try:
        yield sender, target
    finally:
        sender.close()
        target.close()


def port_of(plane: TcpDataPlane) -> int:
    return int(plane.address.rpartition(":")[2])


def told_until(plane: LockedPlane, text: str) -> str:
    """Return the first reason that has this text, of those that a plane tells of broken connections."""
    while text not in (reason := plane.told.get(timeout=5)[1]):
        pass
    return reason


def forbidden(*_: object) -> int:
    """Answer as a call that a sandbox forbids."""
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def share_memory(sender: LockedPlane, target: LockedPlane) -> None:
    """Let planes that are connected go on until the first lays its payloads in memory that the second has."""
    deadline = time.monotonic() + 10
    while (memory := sender._outbox._outgoing[target.address].memory) is None or not memory._numbers[0]:
        assert time.monotonic() < deadline
        sender.receive(0)
        target.receive(0)
        time.sleep(0.001)
