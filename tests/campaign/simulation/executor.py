"""The thread that runs requests, on agents and on the host: one kernel at a time, the oldest request first.

After `bbgrap_agent.executor`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from bbgrap_agent.sequence_states import SequenceStates

from bbgrap.protocol.data import SequenceStart
from bbgrap.runtime.schedule import LocalJoin, LocalReceive, LocalRun, LocalSend, LocalStep, Schedule
from tests.campaign.simulation.models import MIXED, joined, state_of, text_of
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


class Append(NamedTuple):
    """Make a state of the one before and what comes to it."""

    output: int
    buffers: tuple[int, ...]


class Program(NamedTuple):
    """What a schedule does, with what its steps need at hand."""

    feeds: tuple[int, ...]
    results: tuple[int, ...]
    steps: tuple[Receive | Run | Send | Join | Append, ...]


class Deployment:
    """Schedules, the names of their segments, and where all devices are.

    `further` is for requests of a sequence after the first one, `reading` for those that tell its state; none without state.
    """

    __slots__ = ("addresses", "first", "further", "reading", "schedule")

    def __init__(
        self,
        schedule: Schedule,
        names: tuple[str, ...],
        addresses: Mapping[int, str],
        further: Schedule | None = None,
        reading: Schedule | None = None,
    ) -> None:
        self.schedule, self.addresses = schedule, addresses
        self.first, self.further, self.reading = (
            None if each is None else Program(each.feeds, each.results, tuple(_step(step, each, names, addresses) for step in each.steps))
            for each in (schedule, further, reading)
        )

    @property
    def is_host(self) -> bool:
        """Whether it is the coordinator's part."""
        return self.schedule.device == self.schedule.host

    @property
    def destinations(self) -> tuple[str, ...]:
        """Where it sends to."""
        return tuple({self.addresses[step.destination]: None for step in self.schedule.steps if isinstance(step, LocalSend)})

    def program(self, start: SequenceStart | None) -> Program | None:
        """Return what a request does that begins so."""
        if start is None or not start.before:
            return self.first
        return self.reading if start.reads else self.further


def _step(
    step: LocalStep, schedule: Schedule, names: tuple[str, ...], addresses: Mapping[int, str]
) -> Receive | Run | Send | Join | Append:
    match step:
        case LocalReceive():
            return Receive(step.message, step.buffers)
        case LocalRun():
            return Run(names[step.segment], step.inputs, step.outputs)
        case LocalSend():
            return Send(step.message, addresses[step.destination], tuple(part.buffer for part in step.parts))
        case LocalJoin():
            kind = Join if schedule.device == schedule.host else Append
            return kind(step.output, tuple(part.buffer for part, _ in step.pieces))


class _Run:
    __slots__ = ("buffers", "deployment", "heirs", "inbox", "place", "program", "recorded", "sequence")

    def __init__(self, deployment: Deployment, program: Program, held: Sequence[str], recorded: bool, sequence: int) -> None:
        self.deployment, self.program, self.recorded, self.sequence = deployment, program, recorded, sequence
        self.place = 0
        self.buffers = dict(zip(program.feeds, held, strict=False))
        self.inbox: dict[int, str] = {}
        self.heirs: list[int] = []


class Executor:
    """Runs requests. `compute(key, segment name, token, then)` begins a kernel and calls `then` with what came of it, or never.

    `lost(key)` is called for a request whose state is not here.
    """

    def __init__(
        self,
        owner: Endpoint,
        network: DataNetwork,
        compute: Callable[[Key, str, str, Callable[[str], None]], None],
        done: Callable[[Key, str, bool], None],
        lost: Callable[[Key], None],
        state_bytes: int,
    ) -> None:
        self.owner, self.network, self.compute, self.done, self.lost = owner, network, compute, done, lost
        self.states = SequenceStates(state_bytes)
        self.deployments: dict[int, Deployment] = {}
        self.running: dict[Key, _Run] = {}
        self.computing: Key | None = None
        self._early: dict[Key, dict[int, str]] = {}
        self._awaiting: dict[Key, tuple[SequenceStart, bool]] = {}
        self._ended: OrderedDict[Key, None] = OrderedDict()
        self._void_before = 0
        self._commands: list[Callable[[], None]] = []
        self._arrived: list[Frame] = []

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
        for key in [key for key in (*self._awaiting, *self.running, *self._early) if key[0] == epoch]:
            self.end(key)
        self.states.drop_all(epoch)

    def end(self, key: Key) -> None:
        """Forget a request; what awaits its state begins."""
        self.running.pop(key, None)
        self._awaiting.pop(key, None)
        self._early.pop(key, None)
        self._ended[key] = None
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        for other in [other for other, (start, _) in self._awaiting.items() if (other[0], start.before) == key]:
            start, recorded = self._awaiting.pop(other)
            if (deployment := self.deployments.get(other[0])) is not None:
                self._begin(other, deployment, start, recorded)

    def drop_before(self, request: int) -> None:
        """Forget the requests with lower numbers, and begin none of them."""
        self._void_before = request
        for key in [key for key in (*self._awaiting, *self.running) if key[1] < request]:
            self.end(key)

    def begin(self, key: Key, *, recorded: bool, feed: str, start: SequenceStart | None) -> None:
        """Begin a request on the host, which has its input; agents are told of which sequence it is."""
        deployment = self.deployments[key[0]]
        program = deployment.program(start)
        assert program is not None, f"request {key[1]}: the host has no program for {start}"
        run = self.running[key] = _Run(deployment, program, [feed] * len(program.feeds), recorded, 0)
        if start is not None:
            for address in deployment.addresses.values():
                self.network.send(self.owner, address, ("state", *key, 0, deployment.schedule.device, start, recorded))
        self._go_on(key, run)

    def tell_heir(self, epoch: int, sequence: int, other: int) -> None:
        """Tell agents that another sequence has the state of one, too; 0: that nobody is to have it."""
        deployment = self.deployments.get(epoch)
        for address in () if deployment is None else deployment.addresses.values():
            self.network.send(self.owner, address, ("keep", epoch, sequence, other))

    def take(self, frame: Frame) -> None:
        """Take a message of a request or about a sequence, now or after the kernel that is computed."""
        if self.computing is not None and frame[1:3] not in self.running:
            self._arrived.append(frame)
        else:
            self._take(frame)
            run = self.running.get(frame[1:3])
            if run is not None and frame[0] != "keep":
                self._go_on(frame[1:3], run)

    def _take(self, frame: Frame) -> None:
        kind, epoch, request, message, *rest = frame
        deployment = self.deployments.get(epoch)
        if kind == "keep":
            if deployment is not None:
                self._share((epoch, request), message)
            return
        key, (source, content, recorded) = (epoch, request), rest
        run = self.running.get(key)
        if run is None:
            if deployment is None or key in self._ended or request < self._void_before or deployment.is_host:
                return
            if source != deployment.schedule.host or key in self._awaiting:
                self._early.setdefault(key, {})[message] = content
                return
            self._begin(key, deployment, content if kind == "state" else None, recorded)
            run = self.running.get(key)
        if run is not None and kind == "data":
            run.inbox[message] = content

    def _begin(self, key: Key, deployment: Deployment, start: SequenceStart | None, recorded: bool) -> None:
        """Begin a request on an agent, or wait for the one that it goes on from."""
        if start is not None and (key[0], start.before) in self.running:
            self._awaiting[key] = start, recorded
            return
        sequence = 0 if start is None else start.sequence
        found = None if start is None else self.states.begin((key[0], sequence), start.before)
        program = deployment.program(start)
        if program is None or (start is not None and start.before and found is None):
            self.end(key)
            self.lost(key)
            return
        run = self.running[key] = _Run(deployment, program, [text_of(array) for array in found or ()], recorded, sequence)
        run.inbox.update(self._early.pop(key, {}))

    def _share(self, owner: Key, sequence: int) -> None:
        self.states.share(owner, sequence)
        for (epoch, _), run in self.running.items():
            if (epoch, run.sequence) == owner:
                run.heirs.append(sequence)

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
        steps = run.program.steps
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
            elif kind is Append:
                buffers[step.output] = "".join(buffers[place] for place in step.buffers)
            else:
                buffers[step.output] = joined(buffers, step.buffers)
            run.place += 1
        self._finish(key, run)

    def _finish(self, key: Key, run: _Run) -> None:
        """Keep the state that a request leaves, and tell that it has ended."""
        buffers, results = run.buffers, run.program.results
        if run.sequence:
            owner = (key[0], run.sequence)
            self.states.keep(owner, key[1], [state_of(buffers[place]) for place in results])
            for sequence in run.heirs:
                self.states.share(owner, sequence)
        awaited = bool(self._awaiting)
        self.end(key)
        self.done(key, joined(buffers, results) if results else MIXED, run.recorded)
        if awaited:
            self.pump()

    def _computed(self, key: Key, run: _Run, outputs: tuple[int, ...], out: str) -> None:
        self.computing = None
        for buffer in outputs:
            run.buffers[buffer] = out
        run.place += 1
        self._go_on_after_kernel()

    def failed(self, key: Key) -> None:
        """A kernel has raised an error."""
        self.computing = None
        self.end(key)
        self._go_on_after_kernel()

    def _go_on_after_kernel(self) -> None:
        """Do what was posted during a kernel, then take what has arrived."""
        commands, self._commands = self._commands, []
        for command in commands:
            command()
        arrived, self._arrived = self._arrived, []
        for frame in arrived:
            self._take(frame)
        self.pump()
