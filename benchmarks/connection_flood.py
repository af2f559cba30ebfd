"""Strangers that knock at ports, from one process: what `benchmarks.strangers` lets loose on a cluster.

    python -m benchmarks.connection_flood --manner hostile --connections 512 --at 127.0.0.1:7070 --per-s 2000

    idle      connects and says nothing; connects again when it is turned away
    slow      says a byte of a right beginning now and then
    hostile   garbage, half handshakes, unfinished large frames, resets; connects again at once
    unknown   knows the coordinator's public key, but has no valid key of its own; whole handshakes, again and again

It comes from many addresses of the loopback network, none of which a peer has; it runs only when nobody else wants the processor, and
makes at most `--per-s` connections a second. It ends when its standard input does, and prints what it did as JSON.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import resource
import selectors
import socket
import struct
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, cycle
from random import Random

import zmq

from bbgrap.transport.process import allow_many_descriptors

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
"""How a ZeroMQ connection that wants CURVE begins."""
_HELLO = b"\x04\xc8\x05HELLO\x01\x00" + bytes(72)
_LARGE = b"\x06" + struct.pack(">Q", 1 << 20)
_TLS_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
_ABORT = struct.pack("ii", 1, 0)
_BYTE_EVERY_S = 0.2
_HELD_S = 1.0
"""How long a hostile one waits for an answer until it comes anew."""
_TURNED_AWAY_S = 0.05
"""How long one that does not hurry waits until it comes again."""
MANNERS = ("idle", "slow", "hostile", "unknown")


@dataclass(slots=True, eq=False)
class _Stranger:
    """A connection, and what it has still to say."""

    socket: socket.socket
    words: memoryview
    pace: int
    born: int


class Crowd:
    """Strangers at some addresses.

    Invariants: `_due` holds when something is to be done for whom, the earliest first; of one that has gone, nothing is done.
    """

    def __init__(self, manner: str, addresses: list[tuple[str, int]], most: int, per_s: float, seed: int = 0) -> None:
        """Connect nothing yet."""
        self.counts: Counter[str] = Counter()
        self._manner, self._most, self._per_s = manner, most, per_s
        self._addresses = cycle(addresses)
        self._hosts = cycle([f"127.9.{a}.{b}" for a in range(1, 5) for b in range(1, 251)])
        self._chance = Random(seed)
        self._selector = selectors.DefaultSelector()
        self._open: dict[_Stranger, None] = {}
        self._due: list[tuple[float, int, _Stranger]] = []
        self._numbers = count()
        self._next = 0.0

    def step(self, timeout_s: float) -> None:
        """Do what is due, and wait for at most so long."""
        now = time.monotonic()
        self._next = max(self._next, now - 0.1)
        while len(self._open) < self._most and self._next <= now:
            self._next += 1 / self._per_s
            self._come(now)
        while self._due and self._due[0][0] <= now:
            _, _, stranger = heapq.heappop(self._due)
            if stranger in self._open:
                self._act(stranger, now)
        soon = now + timeout_s
        if len(self._open) < self._most:
            soon = min(soon, self._next)
        if self._due:
            soon = min(soon, self._due[0][0])
        for key, _ in self._selector.select(max(0.0, soon - now)):
            self._hear(key.data)

    def _come(self, now: float) -> None:
        connection = socket.socket()
        connection.setblocking(False)
        try:
            connection.setsockopt(socket.SOL_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT: the port is chosen when it connects
            connection.bind((next(self._hosts), 0))
            address = next(self._addresses)
            connection.connect(address)
        except BlockingIOError:
            pass
        except OSError as error:
            self.counts[f"not connected: {error.strerror}"] += 1
            connection.close()
            return
        self.counts["connections"] += 1
        stranger = _Stranger(connection, memoryview(self._words()), 1 if self._manner == "slow" else 1 << 20, next(self._numbers))
        self._open[stranger] = None
        self._selector.register(connection, selectors.EVENT_READ, stranger)
        self._later(stranger, now + (0.002 if self._manner == "hostile" else _BYTE_EVERY_S))
        self.counts["most at once"] = max(self.counts["most at once"], len(self._open))

    def _words(self) -> bytes:
        if self._manner == "idle":
            return b""
        draw = self._chance.randbytes
        right = (GREETING + _HELLO + draw(120), _TLS_HELLO + draw(506), b"\x67\xbb" + bytes(6))
        if self._manner == "slow":
            return self._chance.choice(right)
        return self._chance.choice(
            (*right, draw(500), b"", GREETING + _LARGE + bytes(1 << 15), b"\x67\xbb\x20\x00" + struct.pack("<I", 1 << 30))
        )

    def _later(self, stranger: _Stranger, when: float) -> None:
        heapq.heappush(self._due, (when, stranger.born, stranger))

    def _act(self, stranger: _Stranger, now: float) -> None:
        try:
            if stranger.words:
                said = stranger.socket.send(stranger.words[: stranger.pace])
                stranger.words = stranger.words[said:]
            elif self._manner == "hostile":
                self._go(stranger, abruptly=self._chance.random() < 0.5)
                return
        except BlockingIOError:
            pass
        except OSError:
            self._go(stranger)
            return
        if stranger.words or self._manner == "hostile":
            self._later(stranger, now + (_BYTE_EVERY_S if self._manner == "slow" else _HELD_S))

    def _hear(self, stranger: _Stranger) -> None:
        try:
            if heard := stranger.socket.recv(4096):
                self.counts["bytes heard"] += len(heard)
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.counts["turned away"] += 1
        self._go(stranger)
        if self._manner != "hostile":
            self._next = max(self._next, time.monotonic() + _TURNED_AWAY_S / self._most)

    def _go(self, stranger: _Stranger, *, abruptly: bool = False) -> None:
        del self._open[stranger]
        self._selector.unregister(stranger.socket)
        if abruptly:
            with suppress(OSError):
                stranger.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        stranger.socket.close()


class Unknown:
    """Whole handshakes with keys that nobody knows; `server` is the coordinator's public key, as text."""

    def __init__(self, addresses: list[tuple[str, int]], most: int, per_s: float, server: bytes) -> None:
        """Connect nothing yet."""
        self.counts: Counter[str] = Counter()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.max_sockets = 60_000
        self._addresses, self._most, self._per_s, self._server = addresses, most, per_s, server
        self._public, self._secret = zmq.curve_keypair()
        self._open: list[zmq.Socket[bytes]] = []

    def step(self, timeout_s: float) -> None:
        """Connect once more, in place of the oldest."""
        host, port = self._addresses[0]
        peer = self._context.socket(zmq.DEALER)
        peer.linger = 0
        peer.curve_serverkey, peer.curve_publickey, peer.curve_secretkey = self._server, self._public, self._secret
        peer.connect(f"tcp://{host}:{port}")
        self._open.append(peer)
        if len(self._open) > self._most:
            self._open.pop(0).close()
        self.counts["connections"] += 1
        time.sleep(min(timeout_s, 1 / self._per_s))


def _be_humble() -> None:
    """Run when nobody else wants the processor: what is measured is the victim's work, not the loss of a shared processor."""
    with suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def main() -> None:
    """Knock until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.connection_flood", description=__doc__)
    parser.add_argument("--manner", choices=MANNERS, required=True)
    parser.add_argument("--connections", type=int, default=512)
    parser.add_argument("--per-s", type=float, default=2000.0)
    parser.add_argument("--at", action="append", required=True, metavar="HOST:PORT")
    parser.add_argument("--server-key", default="", help="of the coordinator, in Z85; for 'unknown'")
    given = parser.parse_args()
    allow_many_descriptors()
    _be_humble()
    addresses = [(host, int(port)) for host, _, port in (at.rpartition(":") for at in given.at)]
    crowd: Crowd | Unknown = (
        Unknown(addresses, given.connections, given.per_s, given.server_key.encode())
        if given.manner == "unknown"
        else Crowd(given.manner, addresses, given.connections, given.per_s)
    )
    stop = selectors.DefaultSelector()
    stop.register(sys.stdin, selectors.EVENT_READ)
    began = time.monotonic()
    while not stop.select(0):
        until = time.monotonic() + _TURNED_AWAY_S
        while time.monotonic() < until:
            crowd.step(_TURNED_AWAY_S)
    used = resource.getrusage(resource.RUSAGE_SELF)
    took = time.monotonic() - began
    sys.stdout.write(json.dumps({"seconds": took, "cpu": (used.ru_utime + used.ru_stime) / took, **crowd.counts}) + "\n")


if __name__ == "__main__":
    main()
