"""The wires: control lines that keep an order, and a data network that loses what is in flight when a connection breaks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.campaign.simulation.clock import Clock

GIVEN_UP_S = 3.0
"""How long a data connection is silent until its sender's kernel gives it up, with what it has not delivered."""

Frame = tuple[Any, ...]
"""("data", epoch, request, message, source, token, recorded), ("state", epoch, request, 0, source, how it begins, recorded),
("keep", epoch, sequence, other), ("ping", number, address) or ("pong", number)."""


class Line:
    """One direction of a control connection: in order, unless a message is lost or comes twice."""

    def __init__(self, clock: Clock, rng: random.Random, latency: float, deliver: Callable[[Any], None]) -> None:
        self.clock, self.rng, self.latency, self.deliver = clock, rng, latency, deliver
        self.extra = 0.0
        self.loss = 0.0
        self.repeat = 0.0
        self.cut = False
        self.lost: list[Any] = []
        """Messages that will never arrive."""
        self._held: list[Any] = []
        self._generation = 0
        self._last = 0.0

    def send(self, message: Any) -> None:  # noqa: ANN401 - of either direction
        """Put a message on its way."""
        if self.cut:
            self._held.append(message)
            return
        copies = 1
        if self.loss and self.rng.random() < self.loss:
            copies = 0
            self.lost.append(message)
        elif self.repeat and self.rng.random() < self.repeat:
            copies = 2
        clock = self.clock
        for _ in range(copies):
            self._last = max(self._last, clock.now + self.latency * (0.5 + self.rng.random()) + self.extra)
            clock.after(self._last - clock.now, self._arrive, self._generation, message)

    def _arrive(self, generation: int, message: Any) -> None:  # noqa: ANN401
        if generation != self._generation:
            self.lost.append(message)
        elif self.cut:
            self._held.append(message)
        else:
            self.deliver(message)

    def heal(self) -> None:
        """Let go on what was held."""
        self.cut = False
        self.extra = self.loss = self.repeat = 0.0
        held, self._held = self._held, []
        for message in held:
            self.send(message)

    def reset(self) -> None:
        """Lose what is on its way."""
        self._generation += 1
        self.lost += self._held
        self._held = []


class Endpoint(Protocol):
    """Who has a data plane."""

    name: str
    address: str

    def arrive(self, frame: Frame) -> None:
        """Take a frame."""

    def link_broken(self, address: str) -> None:
        """Note that a connection broke."""

    def knows(self, address: str) -> bool:
        """Whether it has a connection to that address for a deployment."""


@dataclass(slots=True)
class _Way:
    """One direction between two machines."""

    cut: bool = False
    extra: float = 0.0
    generation: int = 0
    last: float = 0.0
    held: list[tuple[Endpoint, str, Frame]] = field(default_factory=list)


class DataNetwork:
    """All data connections."""

    def __init__(self, clock: Clock, rng: random.Random, latency: float) -> None:
        self.clock, self.rng, self.latency = clock, rng, latency
        self.at: dict[str, Endpoint] = {}
        self.silent: set[str] = set()
        """Addresses of machines without power: nobody refuses a connection there."""
        self._ways: dict[tuple[str, str], _Way] = {}
        self._told: dict[tuple[str, str], float] = {}

    def way(self, sender: str, receiver: str) -> _Way:
        """Return the way between two machines."""
        key = (sender, receiver)
        found = self._ways.get(key)
        if found is None:
            found = self._ways[key] = _Way()
        return found

    def send(self, sender: Endpoint, address: str, frame: Frame) -> None:
        """Put a frame on its way."""
        receiver = self.at.get(address)
        if receiver is None:
            if address not in self.silent:
                self._tell(sender, address)
            return
        way = self.way(sender.name, receiver.name)
        if way.cut:
            way.held.append((receiver, address, frame))
            return
        way.last = max(way.last, self.clock.now + self.latency * (0.5 + self.rng.random()) + way.extra)
        self.clock.after(way.last - self.clock.now, self._arrive, way, way.generation, receiver, address, frame)

    def _arrive(self, way: _Way, generation: int, receiver: Endpoint, address: str, frame: Frame) -> None:
        if generation != way.generation or self.at.get(address) is not receiver:
            return
        if way.cut:
            way.held.append((receiver, address, frame))
        else:
            receiver.arrive(frame)

    def _tell(self, endpoint: Endpoint, address: str) -> None:
        """Tell somebody of a broken connection, at most ten times a second."""
        key = (endpoint.name, address)
        if self.clock.now - self._told.get(key, -1.0) < 0.1:
            return
        self._told[key] = self.clock.now
        self.clock.after(0.002 + 0.01 * self.rng.random(), endpoint.link_broken, address)

    # --- faults -------------------------------------------------------------------------------------------------------------------

    def gone(self, endpoint: Endpoint, *, silent: bool) -> None:
        """A process has ended: what was on its way to it is lost, and who was connected to it is told, unless its machine lost power."""
        if self.at.get(endpoint.address) is endpoint:
            del self.at[endpoint.address]
        if silent:
            self.silent.add(endpoint.address)
            return
        for other in list(self.at.values()):
            if other.knows(endpoint.address):
                self._tell(other, endpoint.address)

    def cut(self, sender: str, receiver: str) -> None:
        """Let nothing through in one direction."""
        way = self.way(sender, receiver)
        way.cut = True
        self.clock.after(GIVEN_UP_S, self._give_up, sender, way, way.generation)

    def _give_up(self, sender: str, way: _Way, generation: int) -> None:
        if not way.cut or way.generation != generation:
            return
        way.generation += 1
        addresses = dict.fromkeys(address for _, address, _ in way.held)
        way.held = []
        self._tell_all(sender, addresses)

    def _tell_all(self, sender: str, addresses: Iterable[str]) -> None:
        """Tell everybody on a machine that connections to these addresses broke."""
        for endpoint in [endpoint for endpoint in self.at.values() if endpoint.name == sender]:
            for address in addresses:
                self._tell(endpoint, address)

    def heal(self, sender: str, receiver: str) -> None:
        """Let through what was held; a process that was started meanwhile knows nothing of its predecessor's connections."""
        way = self.way(sender, receiver)
        way.cut, way.extra = False, 0.0
        held, way.held = way.held, []
        for target, address, frame in held:
            if self.at.get(address) is target:
                self.clock.after(self.latency, self._let_through, way, target, address, frame)
        self._tell_all(sender, dict.fromkeys(address for target, address, _ in held if self.at.get(address) not in {None, target}))

    def _let_through(self, way: _Way, receiver: Endpoint, address: str, frame: Frame) -> None:
        self._arrive(way, way.generation, receiver, address, frame)

    def reset(self, first: str, second: str, told: str) -> None:
        """Lose what is on its way between two machines; the first, the second, both or nobody is told."""
        for sender, receiver in ((first, second), (second, first)):
            way = self.way(sender, receiver)
            way.generation += 1
            way.held = []
        ends = {name: [e for e in self.at.values() if e.name == name] for name in (first, second)}
        for name, other in ((first, second), (second, first)):
            for endpoint in ends[name]:
                for far in ends[other]:
                    if told in {"both", name} and endpoint.knows(far.address):
                        self._tell(endpoint, far.address)
