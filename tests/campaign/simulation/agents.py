"""Agents: the real `AgentMachine` in a nanny, and a worker that loads, computes and exchanges messages in simulated time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from bbgrap.cluster.types import LinkProfile, NodeProfile, Speed
from bbgrap.control import agent_events as ae
from bbgrap.control.agent import AgentMachine
from bbgrap.errors import RemoteProtocolError
from bbgrap.protocol import messages as m
from bbgrap.runtime.recording import Record, StepLabel
from tests.campaign.simulation.clock import Process
from tests.campaign.simulation.executor import Deployment, Executor, Key
from tests.campaign.simulation.models import MEMORY, cost_of
from tests.campaign.simulation.network import Frame, Line

if TYPE_CHECKING:
    from tests.campaign.simulation.world import World

EARLIER_S = 10.0
LOAD_LIMIT_S = 60.0
APART_S = 5.0
CONNECT_S = (0.3, 0.3, 0.5, 0.5, 1.0)
"""How long an agent asks its peers before it says `Deployed`."""
TRIES_S = (0.3, 0.5)
STORE_S = 0.001
IDLE = m.Heartbeat()


@dataclass(slots=True)
class Disk:
    """What an agent of a name has stored: bytes of weights by digest."""

    bytes: dict[str, int] = field(default_factory=dict)
    complete: set[str] = field(default_factory=set)


class Worker(Process):
    """The process that computes."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent.clock)
        self.agent, self.world = agent, agent.world
        self.name, self.address = agent.name, agent.address
        self.executor = Executor(self, agent.world.data, self._compute, self._done)
        self.loading = 0
        self.load_began = self.load_limit_s = 0.0
        self.hangs = False
        self.computing_since = 0.0
        self.recent: dict[int, None] = {}
        """The epochs that have computed, the last one last."""
        self.steps = 0
        self.allowed: set[str] = set()
        self._jobs: deque[tuple[float, Callable[[], None]]] = deque()
        self._busy = False
        self._links: deque[m.TryLinks] = deque()
        self._pongs: dict[int, Callable[[], None]] = {}
        self._numbers = count(1)

    # --- data plane ---------------------------------------------------------------------------------------------------------------

    def arrive(self, frame: Frame) -> None:
        """Take a frame."""
        self.do(self._take, frame)

    def _take(self, frame: Frame) -> None:
        if frame[0] == "data":
            self.executor.take(frame)
        elif frame[0] == "ping":
            self.executor.post(partial(self._answer, frame))
        else:
            self.executor.post(self._pongs.pop(frame[1], _nothing))

    def _answer(self, frame: Frame) -> None:
        if frame[2] in self.allowed:
            self.world.data.send(self, frame[2], ("pong", frame[1]))

    def link_broken(self, address: str) -> None:
        """Say so."""
        self.do(self.agent.hear, ae.Outcome(m.LinkBroken(address, "broken")))

    def knows(self, address: str) -> bool:
        """Whether a deployment is connected to it."""
        return self.executor.knows(address)

    def ask(self, addresses: Iterable[str], tries: tuple[float, ...], then: Callable[[tuple[str, ...]], None]) -> None:
        """Ask peers for an answer; `then` gets those that gave none."""
        missing = dict.fromkeys(addresses)
        ended = False

        def end() -> None:
            nonlocal ended
            if not ended:
                ended = True
                then(tuple(missing))

        def answered(address: str) -> None:
            missing.pop(address, None)
            if not missing:
                end()

        def send(turn: int) -> None:
            for address in missing:
                number = next(self._numbers)
                self._pongs[number] = partial(answered, address)
                self.world.data.send(self, address, ("ping", number, self.address))
            self.later(tries[turn], attempt, turn + 1)

        def attempt(turn: int) -> None:
            if ended:
                return
            if not missing or turn == len(tries):
                end()
            else:
                self.executor.post(lambda: send(turn))

        attempt(0)

    # --- kernels ------------------------------------------------------------------------------------------------------------------

    def _compute(self, key: Key, segment: str, token: str, then: Callable[[str], None]) -> None:
        name, share, part = cost_of(segment)
        model = self.world.models[name]
        self.computing_since = self.clock.now
        self.recent.pop(key[0], None)
        self.recent[key[0]] = None
        seconds = model.seconds * share / self.agent.speed
        if model.trait == "kills" or (model.trait == "kills in parts" and part) or "!kill" in token:
            self.later(0.001, lambda: self.agent.worker_dies(self, f"it crashed in {name}", guilty=True))
        elif "!hang" not in token:
            if "!slow" in token:
                seconds += 1.0 * share
            self.later(seconds, self._ended, key, f"{name}({token})" if not token.startswith(name) else token, then, token)

    def _ended(self, key: Key, out: str, then: Callable[[str], None], token: str) -> None:
        self.steps += 1
        if "!fail" in token:
            self.agent.hear(ae.Outcome(m.RequestFailed(*key, "segment: broken")))
            self.executor.failed(key)
        else:
            then(out)

    def _done(self, key: Key, token: str, recorded: bool) -> None:
        del token
        if recorded:
            device = self.agent.device_of(key[0])
            self.agent.hear(ae.Outcome(m.Recorded(*key, record_of(device))))

    # --- what the nanny tells -------------------------------------------------------------------------------------------------------

    def tell(self, instruction: ae.AgentInstruction) -> None:
        """Take an instruction of the nanny."""
        self.do(self._carry_out, instruction)

    def _carry_out(self, instruction: ae.AgentInstruction) -> None:  # noqa: C901 - one branch per instruction
        disk, say = self.agent.disk, self.agent.hear
        match instruction:
            case ae.CheckWeights(epoch, digests):
                self._job(STORE_S, lambda: say(ae.WeightsChecked(epoch, tuple(d for d in digests if d not in disk.complete))))
            case ae.StoreChunk(chunk):
                self._job(STORE_S, lambda: self._store(chunk))
            case ae.Load(deploy):
                self._begin_load(deploy)
            case ae.Unload(epoch):
                self.executor.post(lambda: self.executor.remove(epoch))
            case ae.Drop(epoch, request, _):
                self.executor.post(lambda: self.executor.end((epoch, request)))
            case ae.DropBefore(request):
                self.executor.post(lambda: self.executor.drop_before(request))
            case ae.Perform(m.AnswerPings(peers)):
                self.executor.post(lambda: self._allow(peers))
            case ae.Perform(m.Measure(number)):
                profile = NodeProfile(self.name, work=(Speed("matmul", 1e9 * self.agent.speed),))
                self._job(0.5, lambda: say(ae.Outcome(m.Measured(number, profile, ""))))
            case ae.Perform(m.MeasureLinks(number, peers)):
                links = tuple(LinkProfile(peer.name, 1e9, 1e-4) for peer in peers)
                self._job(0.1 * len(links), lambda: say(ae.Outcome(m.LinksMeasured(number, links, ""))))
            case ae.Perform(m.TryLinks() as trial):
                self._links.append(trial)
                if len(self._links) == 1:
                    self._try()

    def _allow(self, peers: tuple[m.Peer, ...]) -> None:
        self.allowed = {peer.address for peer in peers}

    def _try(self) -> None:
        if not self._links:
            return
        trial = self._links[0]
        devices = {peer.address: peer.device for peer in trial.peers}

        def tried(missing: tuple[str, ...]) -> None:
            self.agent.hear(ae.Outcome(m.LinksTried(trial.trial, tuple(devices[address] for address in missing))))
            self._links.popleft()
            self._try()

        self.ask(devices, TRIES_S, tried)

    # --- loader -------------------------------------------------------------------------------------------------------------------

    def _job(self, seconds: float, work: Callable[[], None]) -> None:
        self._jobs.append((seconds, work))
        self._next_job()

    def _next_job(self) -> None:
        if self._busy or not self._jobs:
            return
        self._busy = True
        seconds, work = self._jobs.popleft()

        def end() -> None:
            self._busy = False
            work()
            self._next_job()

        self.later(seconds, end)

    def _store(self, chunk: m.WeightChunk) -> None:
        disk = self.agent.disk
        have = disk.bytes.get(chunk.digest, 0)
        if chunk.offset == have:
            have += sum(map(len, chunk.payload))
        elif chunk.offset == 0:
            have = sum(map(len, chunk.payload))
        disk.bytes[chunk.digest] = have
        if have == chunk.size:
            disk.complete.add(chunk.digest)
        self.agent.hear(ae.WeightArrived(chunk.digest, have, have == chunk.size))

    def _begin_load(self, deploy: m.Deploy) -> None:
        epoch = deploy.epoch

        def begin() -> None:
            names = tuple(segment.name for segment in deploy.segments)
            costs = [cost_of(name) for name in names]
            self.loading, self.load_began = epoch, self.clock.now
            self.load_limit_s = LOAD_LIMIT_S + APART_S * deploy.schedule.device
            model = self.world.models[costs[0][0]] if costs else None
            if model is not None and model.trait == "kills on load":
                self.later(0.01, lambda: self.agent.worker_dies(self, f"it crashed while it loaded {names[0]}", guilty=True))
                return
            if self.world.loads_hang > self.clock.now:
                self.hangs = True
                return
            seconds = sum(share for _, share, _ in costs) * (model.load_s if model is not None else 0.0)
            self.later(seconds, end, names)

        def end(names: tuple[str, ...]) -> None:
            self.loading = 0
            if self.world.loads_fail > self.clock.now:
                said(ae.DeploymentLoaded(epoch, 0.1, "no memory"))
                return
            deployment = Deployment(deploy.schedule, names, {peer.device: peer.address for peer in deploy.peers})
            self.executor.post(lambda: install(deployment))

        def install(deployment: Deployment) -> None:
            self.executor.deployments[epoch] = deployment
            # Asked are those that know this one; the loader does not wait for them.
            self.ask([address for address in deployment.destinations if address in self.allowed], CONNECT_S, connected)
            self._busy = False
            self._next_job()

        def connected(missing: tuple[str, ...]) -> None:
            fault = f"peer at {missing[0]} does not answer" if missing else ""
            for address in missing:
                self.agent.hear(ae.Outcome(m.LinkBroken(address, "it does not answer")))
            self.agent.hear(ae.DeploymentLoaded(epoch, 0.1, fault))

        def said(event: ae.DeploymentLoaded) -> None:
            self._busy = False
            self.agent.hear(event)
            self._next_job()

        # The loader is taken until `said`.
        self._jobs.append((0.0, lambda: self._hold(begin)))
        self._next_job()

    def _hold(self, begin: Callable[[], None]) -> None:
        self._busy = True
        begin()


class Agent(Process):
    """The nanny of a worker, with its control connection. What it has told others is `world.log`."""

    def __init__(self, world: World, name: str, number: int, speed: float, address: str) -> None:
        super().__init__(world.clock)
        self.world, self.name, self.speed, self.address = world, name, speed, address
        self.identity = f"{name}/{number}".encode()
        self.disk = world.disks.setdefault(name, Disk())
        self.machine: AgentMachine | None = None
        self.worker: Worker | None = None
        self.quit: str | None = None
        self.to_head = Line(world.clock, world.rng, world.control_latency(), partial(world.from_peer, self.identity))
        self.from_head = Line(world.clock, world.rng, world.control_latency(), self._received)
        self._dropped: dict[Key, tuple[float, float]] = {}
        self._before = (0, 0.0)
        self._tick = 0
        self._start_worker()
        self._look()

    # --- worker -------------------------------------------------------------------------------------------------------------------

    def _start_worker(self) -> None:
        worker = Worker(self)
        starting = self.world.worker_start()

        def ready() -> None:
            self.worker = worker
            self.world.data.silent.discard(self.address)
            self.world.data.at[self.address] = worker
            join = m.Join(self.name, m.PROTOCOL_VERSION, "0.1.0", "1.31.1", 26, 1, 1, MEMORY, self.address, None)
            if self.machine is None:
                self.machine = AgentMachine(join, self.clock.now)
                self._on_tick()
            else:
                self._handle(ae.WorkerReady(join))

        self.later(starting, ready)

    def worker_dies(self, worker: Worker, reason: str, *, guilty: bool, only: str = "") -> None:
        """A worker ends; `only` is what the nanny ended it for, a "kernel" or a "load"."""
        if worker is not self.worker or not worker.alive:
            return
        worker.end()
        self.worker = None
        epoch, request = (worker.executor.computing or (0, 0)) if only != "load" else (0, 0)
        loading = worker.loading if only != "kernel" else 0
        self.world.data.gone(worker, silent=False)
        self.do(self._worker_died, ae.WorkerDied(f"it ended: {reason}", epoch, request, loading, guilty, tuple(reversed(worker.recent))))

    def _worker_died(self, event: ae.WorkerDied) -> None:
        self._handle(event)
        self._start_worker()

    def hear(self, event: ae.AgentEvent) -> None:
        """Take what the worker says."""
        self.do(self._handle, event)

    def _look(self) -> None:
        """End kernels that nobody wants and loads that do not end."""
        worker = self.worker
        if worker is not None and worker.alive and not worker.paused:
            key = worker.executor.computing
            dropped = None if key is None else self._dropped.get(key)
            if key is not None and key[1] < self._before[0]:
                dropped = min(dropped or (self._before[1], EARLIER_S), (self._before[1], EARLIER_S), key=sum)
            if key is not None and dropped is not None and self.clock.now - max(dropped[0], worker.computing_since) > dropped[1]:
                self.worker_dies(worker, f"a kernel of request {key[1]} did not end", guilty=True, only="kernel")
            elif worker.loading and self.clock.now - worker.load_began > worker.load_limit_s:
                self.worker_dies(worker, f"the load of epoch {worker.loading} did not end", guilty=True, only="load")
        # Only while there is something to look at: time is cheap in a simulation, but not free.
        self.tick_later(0.1 if self._dropped or (worker is not None and worker.loading) else 0.5, self._look)

    # --- control ------------------------------------------------------------------------------------------------------------------

    def _received(self, message: m.AgentCommand) -> None:
        self.do(self._handle, ae.Received(message))

    def _on_tick(self) -> None:
        machine = self.machine
        if machine is None:
            return
        worker = self.worker
        beat: m.Heartbeat | None = IDLE
        if worker is not None:
            key = worker.executor.computing
            if worker.paused:
                beat = None
            elif key is not None:
                beat = m.Heartbeat(*key, max(1e-6, self.clock.now - worker.computing_since), worker.steps, 0)
            elif worker.steps:
                beat = m.Heartbeat(0, 0, 0.0, worker.steps, 0)
        self._handle(ae.AgentTick(beat))
        if self.alive:
            self.tick_later(machine.next_tick_s, self._on_tick)

    def _handle(self, event: ae.AgentEvent) -> None:
        if self.machine is None or not self.alive:
            return
        try:
            done = self.machine.handle(event, self.clock.now)
        except RemoteProtocolError as error:
            self.world.surprise(f"agent {self.name}: {type(event).__name__}: {error}")
            return
        for instruction in done:
            self._carry_out(instruction)

    def _carry_out(self, instruction: ae.AgentInstruction) -> None:
        match instruction:
            case ae.ToCoordinator(message):
                self.to_head.send(self.world.through_codec(message, "head"))
            case ae.Quit(fault):
                self.quit = fault
                self.world.log(f"agent {self.name} quits: {fault}")
                self.world.end_agent(self, silent=False)
            case ae.LogLine(text):
                self.world.log(f"agent {self.name}: {text}")
            case ae.Reconnect():
                self.to_head.reset()
                self.from_head.reset()
            case _:
                if isinstance(instruction, ae.Drop):
                    self._dropped.setdefault((instruction.epoch, instruction.request), (self.clock.now, instruction.patience_s))
                    while len(self._dropped) > 64:
                        self._dropped.pop(next(iter(self._dropped)))
                if isinstance(instruction, ae.DropBefore):
                    self._before = (instruction.request, self.clock.now)
                if self.worker is not None:
                    self.worker.tell(instruction)

    def device_of(self, epoch: int) -> int:
        """Which device it is."""
        machine = self.machine
        assert machine is not None
        deployment = machine._deployments.by_epoch.get(epoch)
        return 0 if deployment is None else deployment.deploy.schedule.device

    def loaded(self) -> set[int]:
        """The epochs that its worker has."""
        return set() if self.worker is None else set(self.worker.executor.deployments)


def _nothing() -> None:
    pass


def record_of(device: int) -> Record:
    """What a device would have recorded: one step of a millisecond."""
    return Record(device, (StepLabel("compute", "s: y", 0),), ((1, 2, 1_000_002),), 4)
