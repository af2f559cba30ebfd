"""A wire whose agents add up what the requests of a sequence bring, and how to ask it."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from bbgrap_agent.sequence_states import SequenceStates

from bbgrap.compiler.artifacts import Artifacts, DeviceArtifacts
from bbgrap.compiler.sequences import for_sequences
from bbgrap.control import coordinator_events as ce
from bbgrap.control import coordinator_instructions, coordinator_settings
from bbgrap.control.planning import plan_key
from bbgrap.graph.types import DType
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import messages as m
from bbgrap.protocol.faults import Fault
from bbgrap.runtime.joined_requests import JoinedInput
from bbgrap.runtime.schedule import BufferSpec
from tests.bbgrap.control.tiny_plans import plan_of, standby_of
from tests.bbgrap.control.wire import CLIENT, FakeAgent, Wire, prepare_message

STATE = (("total", "total.next"),)
OPTIONS = PlanOptions(state=STATE)
JOININGS = {"x": JoinedInput("row", 0)}


def stateful(made: Artifacts, joinings: Mapping[str, JoinedInput] | None) -> Artifacts:
    """Let every device that works keep what its segment makes, and begin with it."""

    def device(part: DeviceArtifacts, *, feeds: bool) -> DeviceArtifacts:
        schedule = part.schedule
        if not schedule.steps:
            return part
        buffers = (*schedule.buffers, BufferSpec("state", DType.FLOAT, None))
        part = replace(part, segments=tuple(replace(segment, whole=True) for segment in part.segments))
        return replace(part, schedule=replace(schedule, buffers=buffers, results=(1,), feeds=(len(buffers) - 1,) if feeds else ()))

    def program(*, feeds: bool) -> Artifacts:
        host = replace(made.host, buffers=tuple(replace(spec, shape=None) for spec in made.host.buffers))
        return Artifacts(tuple(device(part, feeds=feeds) for part in made.devices), host, made.weights)

    return for_sequences(program(feeds=False), program(feeds=True), joinings)


def with_state(planned: ce.Planned, joinings: Mapping[str, JoinedInput] | None = None) -> ce.Planned:
    return replace(planned, variants=tuple(replace(v, artifacts=stateful(v.artifacts, joinings)) for v in planned.variants))


class Counters(Wire):
    """A wire whose agents add up what the requests of a sequence bring."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.states = {}
        self.joinings = {}
        self.most = 1 << 30
        """Values that a request may bring."""
        self.ran = []
        self.standby = lambda job: with_state(standby_of(job), self.joinings)
        self.plan = lambda job: with_state(plan_of(job))

    def carry_coordinator(self, instruction: coordinator_instructions.CoordinatorInstruction) -> None:
        if isinstance(instruction, coordinator_instructions.KeepState):
            for agent in self.working(instruction.epoch):
                self.held(agent).share((instruction.epoch, instruction.sequence), instruction.other)
        else:
            super().carry_coordinator(instruction)

    def working(self, epoch: int) -> list[FakeAgent]:
        names = [peer.name for peer in self.parts.get(epoch, ())]
        return [agent for agent in self.agents.values() if agent.name in names and epoch in agent.loaded]

    def held(self, agent: FakeAgent) -> SequenceStates:
        return self.states.setdefault(agent.identity, SequenceStates())

    def finish_requests(self, only: int | None = None) -> bool:
        """Finish what can be; with `only`, just the first so many agents of each request do their part, and no request ends."""
        done = False
        for number, start in list(self.started.items()):
            agents = self.working(start.epoch)
            if number not in self.started or not start.sequence or len(agents) < len(self.parts[start.epoch]):
                continue
            if sum(map(len, start.payload)) > 8 * self.most:
                del self.started[number]
                self.to_agent(agents[0], m.RequestFailed(start.epoch, number, "too many"))
                continue
            totals = set()
            for agent in agents[:only]:
                owner = start.epoch, start.sequence
                found = self.held(agent).begin(owner, start.before)
                if start.before and found is None:
                    del self.started[number]
                    self.to_agent(agent, m.RequestFailed(start.epoch, number, "gone", lost=True))
                    break
                total = (int(found[0][0]) if start.before else 0) + sum(int(np.frombuffer(each, np.int64).sum()) for each in start.payload)
                self.held(agent).keep(owner, number, [np.array([total])])
                totals.add(total)
            else:
                if only is None:
                    (total,) = totals
                    self.ran.append([] if start.reads else np.frombuffer(start.payload[0], np.int64).tolist())
                    del self.started[number]
                    self.to_coordinator(ce.RequestDone(number, (m.TensorHeader("y", DType.INT64, (1,)),), (str(total).encode(),)))
            done = done or only is None
        return super().finish_requests() or done if only is None else False

    def said_of(self, sequence: int, step: int, *values: int) -> c.RunModel:
        key = plan_key(prepare_message(0, replace(OPTIONS, input_values="any")))
        header = (m.TensorHeader("x", DType.INT64, (len(values),)),)
        return c.RunModel(0, key, 1e6, header, (np.array(values).tobytes(),), sequence=sequence, step=step)

    def run_of(self, sequence: int, step: int, *values: int) -> int:
        return self.call(lambda n: replace(self.said_of(sequence, step, *values), call=n))

    def read_of(self, sequence: int, step: int) -> int:
        key = plan_key(prepare_message(0, replace(OPTIONS, input_values="any")))
        return self.call(lambda n: c.RunModel(n, key, 1e6, (), (), sequence=sequence, step=step, reads=True))

    def tell(self, message: c.ClientMessage) -> None:
        self.to_coordinator(ce.FromPeer(CLIENT, message))


def counters(*names: str, joinings: Mapping[str, JoinedInput] | None = None) -> Counters:
    wire = Counters(coordinator_settings.Settings("0.1.0", "tcp://head:1"), options=OPTIONS)
    wire.joinings = joinings or {}
    for name in names:
        wire.add_agent(name)
    wire.offer()
    wire.until_answered(wire.prepare())
    return wire


def total(wire: Counters, sequence: int, step: int, value: int) -> int | Fault:
    answer = wire.until_answered(wire.run_of(sequence, step, value))
    return int(bytes(answer.payload[0])) if isinstance(answer, c.RunResult) else answer.fault
