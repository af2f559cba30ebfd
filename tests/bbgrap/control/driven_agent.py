"""An agent's machine that a test drives, without a worker or a network."""

from bbgrap.control import agent_events as ae
from bbgrap.control.agent import AgentMachine
from bbgrap.protocol import messages as m
from tests.bbgrap.control.tiny_plans import artifacts
from tests.bbgrap.control.wire import introduction

BEAT = m.Heartbeat()
DIED = "the worker was ended by SIGFPE"


class Driven:
    """A machine and what it wants done, without a worker or a network."""

    def __init__(self, membership: int = 1) -> None:
        self.now = 0.0
        self.machine = AgentMachine(introduction("a"), self.now)
        self.done: list[ae.AgentInstruction] = []
        if membership:
            self.tell(m.Welcome(membership, 0.1, 0.6))

    def handle(self, event: ae.AgentEvent) -> list[ae.AgentInstruction]:
        self.done = self.machine.handle(event, self.now)
        return self.done

    def tell(self, message: m.AgentCommand) -> list[ae.AgentInstruction]:
        return self.handle(ae.Received(message))

    def tick(self, seconds: float = 0.1, heartbeat: m.Heartbeat | None = BEAT) -> list[ae.AgentInstruction]:
        self.now += seconds
        return self.handle(ae.AgentTick(heartbeat))

    def deploy(self, *epochs: int, ready: bool = True) -> None:
        for epoch in epochs:
            self.tell(deploy_of(epoch))
            self.handle(ae.WeightsChecked(epoch, ()))
            if ready:
                self.handle(ae.DeploymentLoaded(epoch))

    def die(
        self, epoch: int = 0, request: int = 0, loading: int = 0, *, ended_by: m.EndedBy = m.EndedBy.OUTSIDE
    ) -> list[ae.AgentInstruction]:
        return self.handle(m.WorkerLost(DIED, epoch, request, ended_by, loading))

    def ready(self) -> list[ae.AgentInstruction]:
        return self.handle(ae.WorkerReady(self.machine.join))

    def ready_again(self) -> list[int]:
        """A next worker, with which all weights are: the epochs that it loads, one after the other."""
        self.ready()
        epochs = []
        while checks := [i for i in self.asked if isinstance(i, ae.CheckWeights)]:
            (check,) = checks
            epochs.append(check.epoch)
            self.handle(ae.WeightsChecked(check.epoch, ()))
            assert self.asked[0].epoch == check.epoch
        return epochs

    def silence(self) -> None:
        while self.machine.state == "joined":
            self.tick(1.0)

    @property
    def said(self) -> list[m.AgentMessage]:
        return [instruction.message for instruction in self.done if isinstance(instruction, ae.ToCoordinator)]

    @property
    def asked(self) -> list[ae.AgentInstruction]:
        """What a worker would be told."""
        return [i for i in self.done if not isinstance(i, ae.ToCoordinator | ae.LogLine | ae.Reconnect)]


def deploy_of(epoch: int) -> m.Deploy:
    part = artifacts(1).devices[0]
    return m.Deploy(epoch, (m.Peer(0, "a", "tcp://a:1"), m.Peer(1, "host", "tcp://h:1")), part.schedule, part.segments)
