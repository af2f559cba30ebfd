"""The thread that runs requests, on agents and on the host: one kernel at a time, the oldest request first.

After `bbgrap_agent.executor`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from bbgrap.runtime.schedule import LocalJoin, LocalReceive, LocalRun, LocalSend, LocalStep, Schedule
from tests.campaign.simulation.models import MIXED, joined
from tests.campaign.simulation.network import DataNetwork, Endpoint, Frame

Key = tuple[int, int]
MAX_ENDED = 1024


class Receive(NamedTuple):
    """Take a message into buffers."""

    message: int
    buffers: tuple[int, ...]


class Run(NamedTuple):
    """Compute a segment."""

    segment: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Send(NamedTuple):
    """Send what comes of buffers."""

    message: int
    address: str
    buffers: tuple[int, ...]


class Join(NamedTuple):
    """Make one buffer of several."""

    output: int
    buffers: tuple[int, ...]


class Deployment:
    """A schedule, the names of its segments, and where all devices are; `steps` are the schedule's, with what they need at hand."""

    __slots__ = ("addresses", "schedule", "steps")

    def __init__(self, schedule: Schedule, names: tuple[str, ...], addresses: Mapping[int, str]) -> None:
        self.schedule, self.addresses = schedule, addresses
        self.steps = tuple(_step(step, names, addresses) for step in schedule.steps)

    @property
    def destinations(self) -> tuple[str, ...]:
        """Where it sends to."""
        return tuple({self.addresses[step.destination]: None for step in self.schedule.steps if isinstance(step, LocalSend)})


def _step(step: LocalStep, names: tuple[str, ...], addresses: Mapping[int, str]) -> Receive | Run | Send | Join:
    match step:
        case LocalReceive():
            return Receive(step.message, step.buffers)
        case LocalRun():
            return Run(names[step.segment], step.inputs, step.outputs)
        case LocalSend():
            return Send(step.message, addresses[step.destination], tuple(part.buffer for part in step.parts))
        case LocalJoin():
            return Join(step.output, tuple(part.buffer for part, _ in step.pieces))


class _Run:
    __slots__ = ("buffers", "deployment", "inbox", "place", "recorded", "token")

    def __init__(self, deployment: Deployment, recorded: bool) -> None:
        self.deployment, self.recorded, self.place = deployment, recorded, 0
        self.buffers: dict[int, str] = {}
        self.inbox: dict[int, str] = {}


class Executor:
    """Runs requests. `compute(key, segment name, token, then)` begins a kernel and calls `then` with what came of it, or never."""

    def __init__(
        self,
        owner: Endpoint,
        network: DataNetwork,
        compute: Callable[[Key, str, str, Callable[[str], None]], None],
        done: Callable[[Key, str, bool], None],
    ) -> None:
        self.owner, self.network, self.compute, self.done = owner, network, compute, done
        self.deployments: dict[int, Deployment] = {}
        self.running: dict[Key, _Run] = {}
        self.computing: Key | None = None
        self._early: dict[Key, dict[int, str]] = {}
        self._ended: OrderedDict[Key, None] = OrderedDict()
        self._void_before = 0
        self._commands: list[Callable[[], None]] = []

    def post(self, command: Callable[[], None]) -> None:
        """Do something between two kernels."""
        if self.computing is not None:
            self._commands.append(command)
        else:
            command()

    def knows(self, address: str) -> bool:
        """Whether a deployment sends there, or hears from there."""
        return any(address in deployment.addresses.values() for deployment in self.deployments.values())

    def remove(self, epoch: int) -> None:
        """Forget a deployment."""
        self.deployments.pop(epoch, None)
        for key in [key for key in (*self.running, *self._early) if key[0] == epoch]:
            self.end(key)

    def end(self, key: Key) -> None:
        """Forget a request."""
        self.running.pop(key, None)
        self._early.pop(key, None)
        self._ended[key] = None
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    def drop_before(self, request: int) -> None:
        """Forget the requests with lower numbers, and begin none of them."""
        self._void_before = request
        for key in [key for key in self.running if key[1] < request]:
            self.end(key)

    def begin(self, key: Key, *, recorded: bool, feed: str = "") -> None:
        """Begin a request; the host has its input."""
        deployment = self.deployments[key[0]]
        run = self.running[key] = _Run(deployment, recorded)
        for buffer in deployment.schedule.feeds:
            run.buffers[buffer] = feed
        run.inbox.update(self._early.pop(key, {}))
        self._go_on(key, run)

    def take(self, frame: Frame) -> None:
        """Take a message of a request, or drop it."""
        _, epoch, request, message, source, token, recorded = frame
        key = (epoch, request)
        run = self.running.get(key)
        deployment = self.deployments.get(epoch)
        if run is None:
            if deployment is None or key in self._ended or request < self._void_before:
                return
            if deployment.schedule.device == deployment.schedule.host:
                return
            if source != deployment.schedule.host:
                self._early.setdefault(key, {})[message] = token
                return
            run = self.running[key] = _Run(deployment, recorded)
            run.inbox.update(self._early.pop(key, {}))
        run.inbox[message] = token
        self._go_on(key, run)

    def _go_on(self, key: Key, run: _Run) -> None:
        """Go on with one run: without a kernel, all others wait for messages."""
        if self.computing is None:
            self._advance(key, run)

    def pump(self) -> None:
        """Go on with whatever can go on."""
        if self.computing is not None:
            return
        for key in list(self.running):
            run = self.running.get(key)
            if run is not None:
                self._advance(key, run)
                if self.computing is not None:
                    return

    def _advance(self, key: Key, run: _Run) -> None:
        deployment, buffers, inbox = run.deployment, run.buffers, run.inbox
        steps = deployment.steps
        while run.place < len(steps):
            step = steps[run.place]
            kind = type(step)
            if kind is Receive:
                if step.message not in inbox:
                    return
                token = inbox.pop(step.message)
                for buffer in step.buffers:
                    buffers[buffer] = token
            elif kind is Run:
                self.computing = key
                self.compute(key, step.segment, joined(buffers, step.inputs), partial(self._computed, key, run, step.outputs))
                return
            elif kind is Send:
                frame = ("data", *key, step.message, deployment.schedule.device, joined(buffers, step.buffers), run.recorded)
                self.network.send(self.owner, step.address, frame)
            else:
                buffers[step.output] = joined(buffers, step.buffers)
            run.place += 1
        self.end(key)
        results = deployment.schedule.results
        self.done(key, joined(buffers, results) if results else MIXED, run.recorded)

    def _computed(self, key: Key, run: _Run, outputs: tuple[int, ...], out: str) -> None:
        self.computing = None
        for buffer in outputs:
            run.buffers[buffer] = out
        run.place += 1
        self.run_commands()
        self.pump()

    def failed(self, key: Key) -> None:
        """A kernel has raised an error."""
        self.computing = None
        self.end(key)
        self.run_commands()
        self.pump()

    def run_commands(self) -> None:
        """Do what was posted during a kernel."""
        while self._commands and self.computing is None:
            self._commands.pop(0)()
