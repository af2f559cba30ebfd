"""A data plane within one process, for tests: the same laws as over TCP, without a socket."""

from __future__ import annotations

import itertools
import queue
from collections import Counter
from collections.abc import Iterable

from bbgrap.protocol.messages import BytesLike
from bbgrap.transport.framing import Admit, Arrival, OnBroken, nobody_listens


class InprocNetwork:
    """What connects the data planes of one test.

    Invariants: `queues` holds the planes that are not closed.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.queues: dict[str, queue.SimpleQueue[Arrival | None]] = {}
        self._numbers = itertools.count()

    def plane(self) -> InprocDataPlane:
        """Open a new data plane."""
        address = f"inproc://{next(self._numbers)}"
        self.queues[address] = queue.SimpleQueue()
        return InprocDataPlane(self, address)


class InprocDataPlane:
    """One process's end; see `bbgrap.transport.tcp.TcpDataPlane` for what its methods promise."""

    def __init__(self, network: InprocNetwork, address: str) -> None:
        """Belong to a network; use `InprocNetwork.plane`."""
        self.address = address
        self.admit: Admit = lambda header, size, peer: True
        self.on_broken: OnBroken = nobody_listens
        self._network = network
        self._queue = network.queues[address]
        self._users: Counter[str] = Counter()

    def connect(self, address: str, fingerprint: str = "") -> None:
        """See `TcpDataPlane.connect`."""
        del fingerprint
        self._users[address] += 1

    def disconnect(self, address: str) -> None:
        """See `TcpDataPlane.disconnect`."""
        if self._users[address]:
            self._users[address] -= 1

    def allow(self, fingerprints: Iterable[str]) -> None:
        """See `TcpDataPlane.allow`."""

    def send(self, address: str, header: BytesLike, *payload: BytesLike) -> None:
        """See `TcpDataPlane.send`."""
        theirs = self._network.queues.get(address)
        if self._users[address] and theirs is not None:
            theirs.put(Arrival(header, b"".join(payload)))

    def round_trip_s(self, address: str) -> float:
        """See `TcpDataPlane.round_trip_s`."""
        del address
        return 0.0

    def receive(self, timeout_s: float | None, spin_s: float = 0.0) -> Arrival | None:
        """See `TcpDataPlane.receive`; it never waits busily."""
        del spin_s
        try:
            return self._queue.get_nowait() if timeout_s == 0 else self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def wake(self) -> None:
        """See `TcpDataPlane.wake`."""
        self._queue.put(None)

    def close(self) -> None:
        """See `TcpDataPlane.close`."""
        self._network.queues.pop(self.address, None)
