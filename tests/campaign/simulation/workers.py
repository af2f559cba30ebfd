"""The worker of an agent: loads, computes and exchanges messages in simulated time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from bbgrap_agent.worker_timeouts import LOAD_S, apart_s

from bbgrap.cluster.types import LinkProfile, NodeProfile, Speed
from bbgrap.control import agent_events as ae
from bbgrap.protocol import messages as m
from bbgrap.runtime.recording import Record, StepLabel
from bbgrap.runtime.schedule import reading_of
from tests.campaign.simulation.clock import Process
from tests.campaign.simulation.executor import Deployment, Executor, Key
from tests.campaign.simulation.models import cost_of
from tests.campaign.simulation.network import Frame

if TYPE_CHECKING:
    from tests.campaign.simulation.agents import Agent

CONNECT_S = (0.3, 0.3, 0.5, 0.5, 1.0)
"""How long an agent asks its peers before it says `Deployed`."""
TRIES_S = (0.3, 0.5)
STORE_S = 0.001


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
        self.executor = Executor(self, agent.world.data, self._compute, self._done, self._lost, agent.world.story.state_bytes)
        self.loading = 0
        self.load_began = self.load_limit_s = 0.0
        self.hangs = False
        self.computing_since = 0.0
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
        if self.world.story.refuses_joined and _brings_several(frame):
            self.executor.post(partial(self._refuse, frame[1:3]))
        elif frame[0] in {"data", "state", "keep"}:
            self.executor.take(frame)
        elif frame[0] == "ping":
            self.executor.post(partial(self._answer, frame))
        else:
            self.executor.post(self._pongs.pop(frame[1], _nothing))

    def _refuse(self, key: Key) -> None:
        self.executor.end(key)
        self.agent.hear(m.RequestFailed(*key, "it takes one request of a sequence only"))

    def _answer(self, frame: Frame) -> None:
        if frame[2] in self.allowed:
            self.world.data.send(self, frame[2], ("pong", frame[1]))

    def link_broken(self, address: str) -> None:
        """Say so."""
        self.do(self.agent.hear, m.LinkBroken(address, "broken"))

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
        seconds = model.seconds * share / self.agent.speed
        if model.trait == "kills" or (model.trait == "kills in parts" and part) or "!kill" in token:
            self.later(0.001, lambda: self.agent.worker_dies(self, f"it crashed in {name}", m.EndedBy.CRASH))
        elif "!hang" not in token:
            if "!slow" in token:
                seconds += 1.0 * share
            self.later(seconds, self._ended, key, f"{name}({token})" if not token.startswith(name) else token, then, token)

    def _ended(self, key: Key, out: str, then: Callable[[str], None], token: str) -> None:
        self.steps += 1
        if "!fail" in token:
            self.agent.hear(m.RequestFailed(*key, "segment: broken"))
            self.executor.failed(key)
        else:
            then(out)

    def _done(self, key: Key, token: str, recorded: bool) -> None:
        del token
        if recorded:
            device = self.agent.device_of(key[0])
            self.agent.hear(m.Recorded(*key, record_of(device)))

    def _lost(self, key: Key) -> None:
        self.agent.hear(m.RequestFailed(*key, "its state is not here", lost=True))

    # --- what the nanny tells -------------------------------------------------------------------------------------------------------

    def tell(self, instruction: ae.AgentInstruction) -> None:
        """Take an instruction of the nanny."""
        self.do(self._carry_out, instruction)

    def _carry_out(self, instruction: ae.AgentInstruction) -> None:  # noqa: C901 - one branch per instruction
        disk, say = self.agent.disk, self.agent.hear
        match instruction:
            case ae.CheckWeights(epoch, digests):
                self._job(STORE_S, lambda: say(ae.WeightsChecked(epoch, tuple(d for d in digests if d not in disk.complete))))
            case m.WeightChunk():
                self._job(STORE_S, lambda: self._store(instruction))
            case m.Deploy():
                self._begin_load(instruction)
            case m.Release(epoch):
                self.executor.post(lambda: self.executor.remove(epoch))
            case m.Abandon(epoch, request):
                self.executor.post(lambda: self.executor.end((epoch, request)))
            case ae.DropBefore(request):
                self.executor.post(lambda: self.executor.drop_before(request))
            case m.AnswerPings(peers):
                self.executor.post(lambda: self._allow(peers))
            case m.Measure(number):
                profile = NodeProfile(self.name, work=(Speed("matmul", 1e9 * self.agent.speed),))
                self._job(0.5, lambda: say(m.Measured(number, profile, "")))
            case m.MeasureLinks(number, peers):
                links = tuple(LinkProfile(peer.name, 1e9, 1e-4) for peer in peers)
                self._job(0.1 * len(links), lambda: say(m.LinksMeasured(number, links, "")))
            case m.EndMeasuring():
                pass  # it ends soon by itself
            case m.TryLinks():
                self._links.append(instruction)
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
            self.agent.hear(m.LinksTried(trial.trial, tuple(devices[address] for address in missing)))
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
            self.load_limit_s = LOAD_S + apart_s(deploy.schedule.device, deploy.schedule.host)
            model = self.world.models[costs[0][0]] if costs else None
            if model is not None and model.trait == "kills on load":
                self.later(0.01, lambda: self.agent.worker_dies(self, f"it crashed while it loaded {names[0]}", m.EndedBy.CRASH))
                return
            if self.world.loads_hang > self.clock.now:
                self.hangs = True
                return
            seconds = sum(share for _, share, _ in costs) * (model.load_s if model is not None else 0.0)
            self.later(seconds, end, names)

        def end(names: tuple[str, ...]) -> None:
            self.loading = 0
            if self.world.loads_fail > self.clock.now:
                said(ae.DeploymentLoaded(epoch, "no memory"))
                return
            reading = reading_of(deploy.further)[0] if deploy.further and all(segment.whole for segment in deploy.segments) else None
            addresses = {peer.device: peer.address for peer in deploy.peers}
            deployment = Deployment(deploy.schedule, names, addresses, deploy.further, reading)
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
                self.agent.hear(m.LinkBroken(address, "it does not answer"))
            silent = tuple(peer.device for peer in deploy.peers if peer.address in missing)
            self.agent.hear(ae.DeploymentLoaded(epoch, fault, unreachable=silent))

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


def _brings_several(frame: Frame) -> bool:
    """Whether a message is what the coordinator brings, several requests as one."""
    return frame[0] == "data" and frame[5].startswith("x") and frame[5].count(",") > 1


def _nothing() -> None:
    pass


def record_of(device: int) -> Record:
    """What a device would have recorded: one step of a millisecond."""
    return Record(device, (StepLabel("compute", "s: y", 0),), ((1, 2, 1_000_002),), 4)
