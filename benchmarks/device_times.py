"""What every step of a device's schedule takes, measured with that device alone on one core, or with company on another.

Segments are compiled as agents compile them, and the walk is an agent's: a message that is sent is packed and given to a real connection,
one that is received is read from one and unpacked, and before, what is there of the next joins is copied. What the network does in
between is left out: that is the clock's part.

Times are measured in turns with the single node, as ratios to it, and the medians of the ratios count: what slows the machine for a while
slows both. A device walks several times in a row, since its caches hold on its own machine what it needs again. All walks are kept, too:
devices that wait for each other in every layer wait for whichever is slower just then, so their request takes longer than medians tell.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, cast

import numpy as np
from bbgrap_agent.deployment import Deployment
from bbgrap_agent.loading import load
from bbgrap_agent.weights import WeightStore

from bbgrap.compiler.artifacts import DeviceArtifacts
from bbgrap.costmodel.clock import Act, Await, Busy, Post
from bbgrap.errors import ExecutionError
from bbgrap.graph.mapped_files import FilePart
from bbgrap.graph.types import Array, TensorType
from bbgrap.protocol.data import Frame, Kind
from bbgrap.protocol.message_layout import MessageLayout, pack, unpack
from bbgrap.protocol.messages import Deploy, Peer
from bbgrap.runtime.execution import Execution, SlicePlan
from bbgrap.runtime.schedule import LocalReceive, LocalRun, LocalSend, Schedule
from bbgrap.transport.framing import Arrival
from bbgrap.transport.tcp import TcpDataPlane
from benchmarks.contention import Company

TURNS = 7
WALKS = 3
"""In a row, of which the first is not counted."""
_WAIT_S = 5.0
_HEADER = Frame(Kind.DATA, 0, 1, 1, 0).to_bytes()


@dataclass(frozen=True)
class Walk:
    """A schedule with the seconds of its steps: the medians of all walks that were measured, or those of one of them.

    Invariants: `seconds` has two entries for a `LocalReceive`, what is done before its message is looked for and after, and one for others.
    """

    schedule: Schedule
    seconds: tuple[float, ...]
    names: tuple[str, ...] = ()
    """Of the segments."""
    measured: tuple[tuple[float, ...], ...] = ()
    """The seconds of the steps of every walk."""

    def drawn(self, random: Random) -> Walk:
        """Return one of the measured walks."""
        return replace(self, seconds=random.choice(self.measured), measured=())

    def acts(self, sizes: Mapping[int, int]) -> Iterator[Act]:
        """Yield what the clock needs; `sizes` are the bytes of the messages."""
        seconds = iter(self.seconds)
        for step in self.schedule.steps:
            match step:
                case LocalReceive():
                    yield Busy(next(seconds), "join")
                    yield Await(step.message, step.source, sizes[step.message])
                    yield Busy(next(seconds), "unpack")
                case LocalSend():
                    yield Busy(next(seconds), "pack")
                    yield Post(step.message, step.destination, sizes[step.message])
                case LocalRun():
                    yield Busy(next(seconds), self.names[step.segment], step.segment)
                case _:
                    yield Busy(next(seconds), "join")


@dataclass
class Stopwatch:
    """Measures devices against a single node, and remembers those that were measured.

    Invariants: `known` has the ratios of every step to the single node, by the device's content; `singles` all seconds of the latter.
    """

    single: Callable[[], float]
    """Runs the model on the single node once, and returns the seconds."""
    turns: int = TURNS

    def __post_init__(self) -> None:
        """Know nothing yet."""
        self.singles: list[float] = []
        self._known: dict[str, tuple[Schedule, tuple[tuple[float, ...], ...], tuple[str, ...]]] = {}

    @property
    def single_s(self) -> float:
        """Seconds of the single node."""
        return statistics.median(self.singles)

    def device(self, device: DeviceArtifacts, weights: Mapping[str, Array], company: Company | None = None) -> Callable[[], Walk]:
        """Measure a device, alone or in company; returns what tells its times in seconds, once all are measured."""
        key = f"{_digest(device)} {'alone' if company is None else id(company)}"
        return self._measured(key, lambda: loaded(device, weights), (), company)

    def host(self, schedule: Schedule, feeds: Sequence[Array]) -> Callable[[], Walk]:
        """Measure the host's part; otherwise like `device`."""
        return self._measured(f"host {schedule!r}", lambda: Deployment(1, schedule, SlicePlan(schedule), {}, (), ()), feeds, None)

    def _measured(self, key: str, make: Callable[[], Deployment], feeds: Sequence[Array], company: Company | None) -> Callable[[], Walk]:
        if key not in self._known:
            deployment = make()
            self._known[key] = (deployment.schedule, self._ratios(deployment, feeds, company), deployment.names)
        return lambda: self._walk(key)

    def _walk(self, key: str) -> Walk:
        schedule, ratios, names = self._known[key]
        measured = tuple(tuple(ratio * self.single_s for ratio in walk) for walk in ratios)
        return Walk(schedule, tuple(map(statistics.median, zip(*measured, strict=True))), names, measured)

    def _ratios(self, deployment: Deployment, feeds: Sequence[Array], company: Company | None) -> tuple[tuple[float, ...], ...]:
        turns: list[tuple[float, ...]] = []
        with closing(Peers(deployment)) as peers:
            peers.walk(feeds)
            for _ in range(self.turns):
                self.single()
                single = self.single()
                self.singles.append(single)
                with nullcontext() if company is None else company.at_work():
                    walks = [peers.walk(feeds) for _ in range(WALKS)][1:]
                turns += [tuple(seconds / single for seconds in walk) for walk in walks]
        return tuple(turns)


class _Weights:
    """What loading uses of a store."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self.get = weights.get

    def parts(self, digests: Mapping[str, str]) -> dict[str, FilePart]:
        """None is in a file."""
        return {}

    def loaded(self, digests: Iterable[str]) -> None:
        """They stay."""


def loaded(device: DeviceArtifacts, weights: Mapping[str, Array]) -> Deployment:
    """Compile a device's segments as an agent does."""
    store = cast("WeightStore", _Weights(weights))
    return load(Deploy(1, (), device.schedule, device.segments), store, 1, "127.0.0.1")


class Peers:
    """A device, and one peer that stands for all others: takes what it sends, and sends what it waits for."""

    def __init__(self, deployment: Deployment) -> None:
        """Connect both over loopback."""
        self._mine, self._theirs = (TcpDataPlane("tcp://127.0.0.1:0", "127.0.0.1") for _ in range(2))
        self._deployment = replace(deployment, peers={n: Peer(n, "", self._theirs.address) for n in range(deployment.schedule.host + 1)})
        self._mine.connect(self._theirs.address)
        self._theirs.connect(self._mine.address)
        random = np.random.default_rng(0)
        self._payloads = {number: made_up(layout, random) for number, layout in deployment.received.items()}

    def close(self) -> None:
        """End the connections."""
        self._mine.close()
        self._theirs.close()

    def walk(self, feeds: Sequence[Array]) -> list[float]:
        """Do all steps of one request, and return their seconds, those of a `LocalReceive` in two parts."""
        deployment = self._deployment
        execution = Execution(deployment.schedule, feeds, deployment.slices)
        send = partial(deployment.send, self._mine, 0)
        times = []
        for step in deployment.schedule.steps:
            if isinstance(step, LocalReceive):
                began = time.perf_counter()
                execution.advance(deployment.compute, send, limit=1)  # waits, and copies what is there of the next joins
                times.append(time.perf_counter() - began)
                self._theirs.send(self._mine.address, _HEADER, self._payloads[step.message])
            began = time.perf_counter()
            if isinstance(step, LocalReceive):
                arrival = _arrival(self._mine)
                Frame.parse(arrival.header)
                execution.deliver(step.message, unpack(deployment.received[step.message], arrival.payload))
            execution.advance(deployment.compute, send, limit=1)
            times.append(time.perf_counter() - began)
            if isinstance(step, LocalSend):
                _arrival(self._theirs)
        return times


def _arrival(plane: TcpDataPlane) -> Arrival:
    arrival = plane.receive(_WAIT_S, _WAIT_S)
    if arrival is None:
        raise ExecutionError(f"measuring: a message over loopback did not arrive in {_WAIT_S:g} s")
    return arrival


def made_up(layout: MessageLayout, random: np.random.Generator) -> bytes:
    """Return the payload of a message with normal numbers, and ones where they are not floats."""
    return b"".join(bytes(piece) for piece in pack(layout, [_drawn(kind, random) for kind in layout.types]))


def _drawn(kind: TensorType, random: np.random.Generator) -> Array:
    dtype: np.dtype[Any] = kind.dtype.numpy
    if dtype.kind == "f":
        return random.standard_normal(kind.known_shape).astype(dtype)
    return np.ones(kind.known_shape, dtype)


def _digest(device: DeviceArtifacts) -> str:
    """Return the same text for devices that do the same with weights of the same shapes; peers and values do not matter."""
    content = hashlib.sha256()
    for step in device.schedule.steps:
        steps = (type(step).__name__, step.parts if isinstance(step, LocalSend) else getattr(step, "buffers", step))
        content.update(repr(steps).encode())
    content.update(repr([(spec.dtype, spec.shape) for spec in device.schedule.buffers]).encode())
    for segment in device.segments:
        content.update(segment.digest.encode())
    return content.hexdigest()
