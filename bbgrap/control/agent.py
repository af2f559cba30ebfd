"""What an agent does when something happens: events and the time in, instructions out.

    joining --Join/Welcome--> joined --silence or Rejoin--> joining ...   (for ever, until stopped or refused for good)
    Deploy -> CheckWeights -> (WeightsMissing, chunks) -> Load -> Deployed

Laws: the machine never waits and never looks at a clock; handling a message twice is harmless; a coordinator that falls silent is
joined again, and a new membership voids every deployment.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bbgrap.control.agent_events import (
    CheckWeights,
    Drop,
    Event,
    Instruction,
    Load,
    Loaded,
    Log,
    Outcome,
    Perform,
    Quit,
    Received,
    Reconnect,
    Say,
    Stop,
    StoreChunk,
    Tick,
    Unload,
    WeightArrived,
    WeightsChecked,
)
from bbgrap.control.states import Role, Tracker
from bbgrap.errors import RemoteProtocolError
from bbgrap.protocol.messages import (
    Abandon,
    AgentCommand,
    AnswerPings,
    Deploy,
    Deployed,
    DeploymentFailed,
    Heartbeat,
    HeartbeatSeen,
    Join,
    Leave,
    Measure,
    MeasureLinks,
    Recorded,
    Refused,
    Rejoin,
    Release,
    RequestFailed,
    TryLinks,
    WeightChunk,
    WeightsMissing,
    WeightStored,
    Welcome,
)

FIRST_HEARTBEAT_S = 0.5
"""How often an agent asks to join."""
FIRST_SILENCE_S = 4.0
"""How long a coordinator may be silent, or refuse a name that is taken, until its `Welcome` says how long."""
MAX_DEPLOYMENTS = 16
"""Loaded deployments an agent keeps: twice what a coordinator keeps, so that only a broken coordinator reaches it."""
ASK_AGAIN_S = 10.0
"""Weights that do not come are asked for again after this long without any chunk."""


@dataclass(slots=True)
class _Deployment:
    deploy: Deploy
    tracker: Tracker
    missing: set[str] = field(default_factory=set)
    heard: float = 0.0


class AgentMachine:
    """The control side of one agent.

    Invariants: `deployments` holds no released deployment and at most `MAX_DEPLOYMENTS`; `missing` of one is what it waits for.
    """

    def __init__(self, join: Join, now: float) -> None:
        """Start unjoined; the coordinator's `Welcome` says how often it wants to hear from it."""
        self.join = join
        self.membership: int | None = None
        self.deployments: dict[int, _Deployment] = {}
        self._tracker = Tracker(Role.AGENT, f"'{join.name}'")
        self._heartbeat_s = FIRST_HEARTBEAT_S
        self._silence_s = FIRST_SILENCE_S
        self._heard = now
        self._spoke = float("-inf")
        self._refused_since: float | None = None
        self._complained = False

    @property
    def state(self) -> str:
        """Where the agent stands: joining, joined or left."""
        return self._tracker.state

    @property
    def next_tick_s(self) -> float:
        """How long the driver may wait before the next `Tick`."""
        return self._heartbeat_s

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take an event and return what is to be done, in order.

        Raises:
            RemoteProtocolError: if the coordinator sent what must not come now; the state is as before.
        """
        match event:
            case Received():
                return self._on_message(event.message, now)
            case Tick():
                return self._on_tick(now)
            case WeightsChecked():
                return self._on_checked(event, now)
            case WeightArrived():
                return self._on_weight(event, now)
            case Loaded():
                return self._on_loaded(event)
            case Outcome(message):
                void = isinstance(message, RequestFailed | Recorded) and message.epoch not in self.deployments
                return [] if void or self.state != "joined" else [Say(message)]
            case Stop():
                return self._on_stop(event.reason)

    def _on_message(self, message: AgentCommand, now: float) -> list[Instruction]:  # noqa: C901 - one branch per message
        was = self._tracker.state
        self._tracker.move(type(message).__name__)
        self._heard = now
        if was == "joining" and not isinstance(message, Welcome | Refused):
            return []
        match message:
            case Welcome():
                return self._on_welcome(message, now)
            case Refused():
                return self._on_refused(message, now)
            case Rejoin():
                self._spoke = now
                return [Say(self.join)]
            case HeartbeatSeen():
                return []
            case Deploy():
                return self._on_deploy(message, now)
            case WeightChunk():
                for deployment in self.deployments.values():
                    deployment.heard = now
                return [StoreChunk(message)]
            case Abandon():
                return [Drop(message.epoch, message.request)] if message.epoch in self.deployments else []
            case Release():
                return self._release(message.epoch, "Release")
            case Measure() | MeasureLinks() | TryLinks() | AnswerPings():
                return [Perform(message)]

    def _on_welcome(self, message: Welcome, now: float) -> list[Instruction]:
        self._refused_since = None
        self._heartbeat_s = message.heartbeat_s
        self._silence_s = 2 * message.dead_after_s
        self._spoke = now
        if message.membership == self.membership:
            return [Say(Heartbeat())]
        self.membership = message.membership
        voided = self._release_all()
        return [*voided, Log(f"joined as '{self.join.name}'"), Say(Heartbeat())]

    def _on_refused(self, message: Refused, now: float) -> list[Instruction]:
        # A name stays taken for as long as the coordinator believes its last holder alive: a restarted agent waits that out once.
        self._refused_since = now if self._refused_since is None else self._refused_since
        if message.retry and now - self._refused_since < self._silence_s:
            return []
        self._tracker.move("give up")
        return [Quit(message.reason)]

    def _on_tick(self, now: float) -> list[Instruction]:
        if self.state == "left":
            return []
        done: list[Instruction] = []
        if now - self._heard > self._silence_s:
            self._heard = now
            if self.state == "joined":
                self._tracker.move("silence")
                done.append(Log("the coordinator is silent; joining again until it answers"))
            elif self.membership is None and not self._complained:
                self._complained = True
                done.append(Log("the coordinator does not answer; trying until it does"))
            done.append(Reconnect())
        # Half an interval of slack: a tick that comes a little early must not skip a whole beat.
        if now - self._spoke >= self._heartbeat_s / 2:
            self._spoke = now
            done.append(Say(Heartbeat() if self.state == "joined" else self.join))
        for epoch, deployment in self.deployments.items():
            if deployment.tracker.state == "fetching" and now - deployment.heard > ASK_AGAIN_S:
                deployment.heard = now
                done.append(Say(WeightsMissing(epoch, tuple(sorted(deployment.missing)))))
        return done

    def _on_deploy(self, deploy: Deploy, now: float) -> list[Instruction]:
        known = self.deployments.get(deploy.epoch)
        if known is not None:
            known.tracker.move("Deploy")
            if known.tracker.state == "ready":
                return [Say(Deployed(deploy.epoch, 0.0))]
            # What is on its way is not asked for again: the coordinator would begin anew.
            stalled = known.missing and now - known.heard > ASK_AGAIN_S
            return [Say(WeightsMissing(deploy.epoch, tuple(sorted(known.missing))))] if stalled else []
        evicted = self._evict()
        tracker = Tracker(Role.AGENT_DEPLOYMENT, f"epoch {deploy.epoch}")
        self.deployments[deploy.epoch] = _Deployment(deploy, tracker, heard=now)
        digests = {ref.digest: None for segment in deploy.segments for ref in segment.weights.values()}
        return [*evicted, CheckWeights(deploy.epoch, tuple(digests))]

    def _evict(self) -> list[Instruction]:
        if len(self.deployments) < MAX_DEPLOYMENTS:
            return []
        epoch = next((e for e, d in self.deployments.items() if d.tracker.state == "ready"), None)
        if epoch is None:
            raise RemoteProtocolError(f"coordinator: {len(self.deployments)} deployments at once, the limit is {MAX_DEPLOYMENTS}")
        return [*self._release(epoch, "evicted"), Say(DeploymentFailed(epoch, "evicted: the agent keeps no more deployments"))]

    def _on_checked(self, event: WeightsChecked, now: float) -> list[Instruction]:
        deployment = self.deployments.get(event.epoch)
        if deployment is None:
            return []
        deployment.heard = now
        if not event.missing:
            deployment.tracker.move("weights complete")
            return [Load(deployment.deploy)]
        deployment.tracker.move("weights missing")
        deployment.missing = set(event.missing)
        return [Say(WeightsMissing(event.epoch, event.missing))]

    def _on_weight(self, event: WeightArrived, now: float) -> list[Instruction]:
        waiting = {epoch: d for epoch, d in self.deployments.items() if event.digest in d.missing}
        done: list[Instruction] = []
        if event.fault:
            for epoch in waiting:
                done += [*self._release(epoch, "broken weight"), Say(DeploymentFailed(epoch, event.fault))]
            return done
        done.append(Say(WeightStored(event.digest, event.received)))
        for deployment in waiting.values():
            deployment.heard = now
            if event.complete:
                deployment.missing.discard(event.digest)
            if not deployment.missing:
                deployment.tracker.move("weights complete")
                done.append(Load(deployment.deploy))
        return done

    def _on_loaded(self, event: Loaded) -> list[Instruction]:
        deployment = self.deployments.get(event.epoch)
        if deployment is None:
            # Released while it was loading: what was loaded goes again.
            return [Unload(event.epoch)]
        if event.fault:
            return [*self._release(event.epoch, "load failed"), Say(DeploymentFailed(event.epoch, event.fault))]
        deployment.tracker.move("loaded")
        return [Say(Deployed(event.epoch, event.seconds))]

    def _on_stop(self, reason: str) -> list[Instruction]:
        leaving: list[Instruction] = [Say(Leave(reason))] if self.state == "joined" else []
        if not self._tracker.over:
            self._tracker.move("stop")
        return [*leaving, *self._release_all(), Quit("")]

    def _release(self, epoch: int, event: str) -> list[Instruction]:
        deployment = self.deployments.pop(epoch, None)
        if deployment is None:
            return []
        deployment.tracker.move(event)
        return [Unload(epoch)]

    def _release_all(self) -> list[Instruction]:
        return [instruction for epoch in list(self.deployments) for instruction in self._release(epoch, "reset")]
