"""A coordinator, agents and a client joined by a fake wire that a test can make lose, repeat and reorder messages.

Everything here is synchronous and without a clock: `now` is a number that the test advances. Codecs are in the path, so only what can be
sent is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from bbgrap.cluster.types import COORDINATOR, NodeProfile
from bbgrap.control import agent_events as ae
from bbgrap.control import client as cm
from bbgrap.control import coordinator_events as ce
from bbgrap.control import coordinator_instructions, coordinator_settings
from bbgrap.control.agent import AgentMachine
from bbgrap.control.coordinator import CoordinatorMachine
from bbgrap.control.planned_variant import PlannedVariant
from bbgrap.control.planning import plan_key
from bbgrap.control.saved_state import SavedState, StoredPlan
from bbgrap.errors import RemoteProtocolError
from bbgrap.graph.types import DType
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import inspection as i
from bbgrap.protocol import messages as m
from bbgrap.protocol.directions import TO_AGENT, TO_CLIENT, TO_COORDINATOR
from tests.bbgrap.control.tiny_plans import FILE, MODEL, plan_of, record_of, standby_of
from tests.messages import FACTS

CLIENT = b"client"


def introduction(name: str) -> m.Join:
    """What an agent says first."""
    return m.Join(name, "0.1.0", "1.31.1", 26, 1, 1, 1 << 30, f"tcp://{name}:1", None)


@dataclass
class FakeAgent:
    """An agent's machine with a process around it that does everything at once."""

    name: str
    identity: bytes
    machine: AgentMachine
    loaded: set[int] = field(default_factory=set)
    dropped: set[tuple[int, int]] = field(default_factory=set)
    measuring: list[m.Measure | m.MeasureLinks] = field(default_factory=list)
    answering: frozenset[str] = frozenset()
    """Whose pings it answers."""
    stopped: bool = False
    ahead_s: float | None = 0.0
    """How far its clock is ahead; None: it does not say how its machine is."""
    quit: str | None = None


@dataclass
class Wire:
    """All of it.

    `queues` holds what is on its way: for each (sender, receiver) frames in the order they were sent.
    """

    settings: coordinator_settings.Settings = field(default_factory=lambda: coordinator_settings.Settings("0.1.0", "tcp://head:1"))
    now: float = 0.0
    queues: dict[tuple[bytes, bytes], list[list[m.Buffer]]] = field(default_factory=dict)
    agents: dict[bytes, FakeAgent] = field(default_factory=dict)
    started: dict[int, coordinator_instructions.StartRequest] = field(default_factory=dict)
    parts: dict[int, tuple[m.Peer, ...]] = field(default_factory=dict)
    answers: dict[int, list[c.FinalAnswer]] = field(default_factory=dict)
    weights: dict[str, set[str]] = field(default_factory=dict)
    options: PlanOptions = field(default_factory=PlanOptions)
    seconds: dict[tuple[str, ...], float] = field(default_factory=dict)
    """How long a request takes on these nodes."""
    told: list[str] = field(default_factory=list)
    audits: list[coordinator_instructions.Audit] = field(default_factory=list)
    lies: dict[str, bytes] = field(default_factory=dict)
    """What nodes answer that answer wrongly."""
    jobs: list[coordinator_instructions.StartPlanning] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    cut: set[frozenset[str]] = field(default_factory=set)
    """Pairs of names that do not reach each other on the data plane."""
    made: dict[int, tuple[PlannedVariant, ...]] = field(default_factory=dict)
    kept: dict[int, StoredPlan] = field(default_factory=dict)
    pingers: list[str] = field(default_factory=list)
    moving: frozenset[str] = frozenset()
    """The fingerprints of those from or to whom tensors are on their way."""
    calls: int = 0
    joined: int = 0
    epochs: int = 1
    fresh: bool = True
    """Whether nothing has happened yet to the coordinator since it was started."""

    def __post_init__(self) -> None:
        self.models: dict[str, tuple[c.ModelFile, ...]] = {}
        self.profiles: tuple[dict[str, NodeProfile], dict[str, NodeProfile]] = ({}, {})
        self.coordinator = CoordinatorMachine(self.settings, SavedState({FILE.digest: FILE.size}))
        self.standby: Callable[[coordinator_instructions.StartStandby], ce.Planned | ce.PlanFailed | None] = standby_of
        self.plan: Callable[[coordinator_instructions.StartPlanning], ce.Planned | None] = plan_of
        self.client = cm.ClientMachine("tcp://head:7070", silence_s=1e9)

    # --- the wire -----------------------------------------------------------------------------------------------------------------

    def send(self, sender: bytes, receiver: bytes, frames: list[m.Buffer]) -> None:
        self.queues.setdefault((sender, receiver), []).append([bytes(frame) for frame in frames])

    def deliver(self, key: tuple[bytes, bytes], place: int = 0, *, keep: bool = False) -> None:
        frames = self.queues[key][place] if keep else self.queues[key].pop(place)
        sender, receiver = key
        if receiver == b"":
            self.to_coordinator(ce.FromPeer(sender, TO_COORDINATOR.decode(frames)))
        elif receiver == CLIENT:
            self.carry_client(self.client.received(TO_CLIENT.decode(frames), self.now))
        elif receiver in self.agents:
            self.to_agent(self.agents[receiver], ae.Received(TO_AGENT.decode(frames)))

    def pending(self) -> list[tuple[bytes, bytes]]:
        return [key for key, queue in self.queues.items() if queue]

    def deliver_all(self) -> None:
        """Deliver everything; requests go on."""
        while keys := self.pending():
            for key in keys:
                self.deliver(key)

    def settle(self) -> None:
        """Deliver everything, and finish every request that can be."""
        for _ in range(10_000):
            keys = self.pending()
            if not keys and not self.finish_requests():
                return
            for key in keys:
                while self.queues[key]:
                    self.deliver(key)
        raise AssertionError("the processes talk without end")

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for agent in list(self.agents.values()):
            if not agent.stopped:
                self.to_agent(agent, ae.AgentTick())
        self.to_coordinator(ce.Tick(self.moving))
        self.carry_client(self.client.tick(self.now))

    def until_answered(self, call: int) -> c.FinalAnswer:
        """Let things happen, and time pass where they wait for it, until a call is answered; return its answer."""
        for _ in range(300):
            self.settle()
            if self.answers[call]:
                return self.answer(call)
            self.pass_time(0.1)
        raise AssertionError(f"call {call} is not answered")

    def wait(self, seconds: float) -> None:
        """Let things happen for a while; requests go on, but none finishes."""
        for _ in range(round(10 * seconds)):
            self.pass_time(0.1)
            self.deliver_all()

    def settle_for(self, seconds: float) -> None:
        """Let things happen for a while; requests finish."""
        for _ in range(round(10 * seconds)):
            self.pass_time(0.1)
            self.settle()

    def nodes_of(self, start: coordinator_instructions.StartRequest) -> tuple[str, ...]:
        """Who works on a request."""
        return tuple(peer.name for peer in self.parts[start.epoch])

    def say(self, name: str, message: m.AgentMessage) -> None:
        """Have an agent's message arrive, whatever its machine would say."""
        self.to_coordinator(ce.FromPeer(self.coordinator.members.by_name[name].identity, message))

    def agent(self, name: str) -> FakeAgent:
        """The living agent of that name."""
        return next(agent for agent in self.agents.values() if agent.name == name)

    # --- processes ----------------------------------------------------------------------------------------------------------------

    def add_agent(self, name: str, fingerprint: str = "") -> FakeAgent:
        self.joined += 1
        identity = f"{name}/{self.joined}".encode()
        agent = self.agents[identity] = FakeAgent(
            name, identity, AgentMachine(replace(introduction(name), fingerprint=fingerprint), self.now)
        )
        self.to_agent(agent, ae.AgentTick())
        return agent

    def crash(self, agent: FakeAgent) -> None:
        """End an agent without a word; its disk stays."""
        del self.agents[agent.identity]

    def restart_coordinator(self) -> None:
        self.epochs += 100_000
        plans = tuple((plan, self.made[job]) for job, plan in self.kept.items())
        stored = SavedState({FILE.digest: FILE.size}, dict(self.models), *map(dict, self.profiles), plans, saw_agents=True)
        self.coordinator = CoordinatorMachine(replace(self.settings, first_epoch=self.epochs), stored, self.now)
        self.started.clear()
        self.parts.clear()
        self.fresh = True

    def to_coordinator(self, event: ce.CoordinatorEvent) -> None:
        self.fresh = False
        try:
            instructions = self.coordinator.handle(event, self.now)
        except RemoteProtocolError:
            return
        for instruction in instructions:
            self.carry_coordinator(instruction)

    def carry_coordinator(self, instruction: coordinator_instructions.CoordinatorInstruction) -> None:  # noqa: C901 - one branch per instruction
        match instruction:
            case coordinator_instructions.ToAgent(identity, message):
                self.send(b"", identity, TO_AGENT.encode(message))
            case coordinator_instructions.ToClient(identity, answer):
                self.send(b"", identity, TO_CLIENT.encode(answer))
            case coordinator_instructions.StartPlanning():
                self.jobs.append(instruction)
                self.carry_plan(self.plan(instruction))
            case coordinator_instructions.StartStandby():
                self.carry_plan(self.standby(instruction))
            case coordinator_instructions.CancelPlanning(job):
                self.cancelled.append(job)
            case coordinator_instructions.SaveModel(model, files):
                self.models[model] = files
            case coordinator_instructions.SaveProfile(profile, by_hand):
                self.profiles[by_hand][profile.name] = profile
            case coordinator_instructions.RemoveProfile(node, by_hand):
                self.profiles[by_hand].pop(node)
            case coordinator_instructions.ReadMachine():
                self.to_coordinator(ce.MachineRead(replace(FACTS, clock_s=self.now)))
            case coordinator_instructions.SavePlan(plan):
                self.kept[plan.job] = plan
            case coordinator_instructions.ForgetPlan(job):
                self.kept.pop(job, None)
                self.made.pop(job, None)
            case coordinator_instructions.Log(text):
                self.told.append(text)
            case coordinator_instructions.Audit():
                self.audits.append(instruction)
            case coordinator_instructions.Compare(check, answers):
                *before, last = (b"".join(map(bytes, answer.payload)) for answer in answers)
                faults = tuple("" if last == other else f"{last!r} is not {other!r}" for other in before)
                self.to_coordinator(ce.Compared(check, faults))
            case coordinator_instructions.HostDeploy(epoch):
                self.parts[epoch] = instruction.peers
            case coordinator_instructions.HostRelease(epoch):
                self.parts.pop(epoch, None)
                self.started = {number: start for number, start in self.started.items() if start.epoch != epoch}
            case coordinator_instructions.StartRequest():
                self.started[instruction.request] = instruction
            case coordinator_instructions.DropRequest():
                self.started.pop(instruction.request, None)
            case coordinator_instructions.HostPings(peers):
                self.pingers = [peer.name for peer in peers]
            case coordinator_instructions.WriteChunk():
                pass

    def carry_plan(self, planned: ce.Planned | ce.PlanFailed | None) -> None:
        if isinstance(planned, ce.Planned):
            self.made[planned.job] = planned.variants
        if planned is not None:
            self.to_coordinator(planned)

    def finish_requests(self) -> bool:
        """Finish the requests whose agents all live and have the deployment; whether there was one."""
        done = False
        for number, start in list(self.started.items()):
            if number not in self.started or start.sequence:  # what these come to, only their wire knows
                continue
            able = {agent.name for agent in self.agents.values() if start.epoch in agent.loaded}
            if start.epoch not in self.parts:
                del self.started[number]
                self.to_coordinator(ce.RequestBroke(number, c.Fault.EXECUTION, "the host does not have the deployment"))
                continue
            names = tuple(peer.name for peer in self.parts[start.epoch])
            if set(names) <= able and not self.is_cut(names):
                del self.started[number]
                self.now += self.seconds.get(names, 0.0)
                host = len(self.coordinator.loading.by_epoch.get(start.epoch).nodes)
                outputs = (m.TensorHeader("y", DType.UINT8, (1,)),)
                payload = (next((self.lies[name] for name in names if name in self.lies), b"y"),)
                self.to_coordinator(ce.RequestDone(number, outputs, payload, record_of(host) if start.record else None))
                if start.record:
                    devices = {peer.name: peer.device for peer in self.parts.get(start.epoch, ())}
                    for agent in [agent for agent in self.agents.values() if agent.name in devices]:
                        self.to_agent(agent, m.Recorded(start.epoch, number, record_of(devices[agent.name])))
                done = True
        return done

    def is_cut(self, names: tuple[str, ...]) -> bool:
        """Whether a request over these agents never ends."""
        return any(pair <= {*names, COORDINATOR} for pair in self.cut) or any(a.stopped for a in self.agents.values() if a.name in names)

    def to_agent(self, agent: FakeAgent, event: ae.AgentEvent) -> None:
        try:
            instructions = agent.machine.handle(event, self.now)
        except RemoteProtocolError:
            return
        for instruction in instructions:
            self.carry_agent(agent, instruction)

    def carry_agent(self, agent: FakeAgent, instruction: ae.AgentInstruction) -> None:  # noqa: C901 - one branch per instruction
        store = self.weights.setdefault(agent.name, set())
        match instruction:
            case ae.ToCoordinator(message):
                self.send(agent.identity, b"", TO_COORDINATOR.encode(message))
            case ae.CheckWeights(epoch, digests):
                self.to_agent(agent, ae.WeightsChecked(epoch, tuple(d for d in digests if d not in store)))
            case m.WeightChunk(digest, _, _, size):
                store.add(digest)
                self.to_agent(agent, ae.WeightArrived(digest, size, complete=True))
            case m.Deploy(epoch):
                agent.loaded.add(epoch)
                self.to_agent(agent, ae.DeploymentLoaded(epoch))
            case m.Release(epoch):
                agent.loaded.discard(epoch)
            case m.Abandon(epoch, request):
                agent.dropped.add((epoch, request))
            case ae.Quit(fault):
                agent.quit = fault
                self.agents.pop(agent.identity, None)
            case m.Measure() | m.MeasureLinks():
                agent.measuring.append(instruction)
            case m.EndMeasuring(number):
                agent.measuring = [asked for asked in agent.measuring if asked.measurement != number]
            case m.TryLinks(trial, peers):
                lost = tuple(peer.device for peer in peers if self.is_cut((agent.name, peer.name)) or not self.is_there(peer.name))
                self.to_agent(agent, m.LinksTried(trial, lost))
            case i.Inspect(number) if agent.ahead_s is not None:
                self.to_agent(agent, i.Inspected(number, replace(FACTS, clock_s=self.now + agent.ahead_s)))
            case m.AnswerPings(peers):
                agent.answering = frozenset(peer.name for peer in peers)
            case ae.DropBefore() | i.Inspect() | ae.Reconnect() | ae.LogLine():
                pass

    def is_there(self, name: str) -> bool:
        return name == COORDINATOR or any(agent.name == name for agent in self.agents.values())

    def carry_client(self, instructions: list[cm.ClientInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case cm.ToCoordinator(message):
                    self.send(CLIENT, b"", TO_COORDINATOR.encode(message))
                case cm.Complete(call, answer):
                    self.answers[call].append(answer)
                case cm.Report() | cm.Reconnect():
                    pass

    # --- calls ---------------------------------------------------------------------------------------------------------------------

    def call(self, make: Callable[[int], c.Call]) -> int:
        self.calls += 1
        self.answers[self.calls] = []
        self.carry_client(self.client.call(make(self.calls), self.now))
        return self.calls

    def offer(self) -> int:
        return self.call(lambda n: c.OfferModel(n, MODEL, (FILE,)))

    def prepare(self) -> int:
        return self.call(lambda n: prepare_message(n, self.options))

    def run(self, deadline_s: float = 30.0, payload: tuple[bytes, ...] = (), *, record: bool = False) -> int:
        return self.call(
            lambda n: c.RunModel(
                n, plan_key(prepare_message(n, replace(self.options, input_values="any"))), deadline_s, (), payload, record
            )
        )

    def answer(self, call: int) -> c.FinalAnswer:
        """The one answer to a call, which must be there."""
        (answer,) = self.answers[call]
        return answer


def prepare_message(call: int, options: PlanOptions) -> c.PrepareModel:
    return c.PrepareModel(call, MODEL, {"x": (2, 2)}, options)


def joined_wire(
    *names: str,
    options: PlanOptions | None = None,
    settings: coordinator_settings.Settings | None = None,
    seconds: Mapping[tuple[str, ...], float] | None = None,
) -> Wire:
    """A wire with joined agents and an offered model."""
    wire = Wire(
        settings or coordinator_settings.Settings("0.1.0", "tcp://head:1"), options=options or PlanOptions(), seconds=dict(seconds or {})
    )
    for name in names:
        wire.add_agent(name)
    wire.settle()
    wire.offer()
    wire.settle()
    return wire


def ready_wire(
    *names: str,
    options: PlanOptions | None = None,
    settings: coordinator_settings.Settings | None = None,
    seconds: Mapping[tuple[str, ...], float] | None = None,
) -> Wire:
    """A wire with joined agents and a prepared plan."""
    wire = joined_wire(*names, options=options, settings=settings, seconds=seconds)
    wire.until_answered(wire.prepare())
    return wire


def standby_wire() -> Wire:
    """Two agents with a copy each of a model that is not planned yet."""
    wire = joined_wire("a", "b")
    wire.plan = lambda _: None
    wire.call(lambda n: replace(prepare_message(n, wire.options), wait=False))
    wire.settle_for(0.5)
    return wire
