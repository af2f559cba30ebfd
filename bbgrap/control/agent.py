"""What an agent does when something happens: events and the time in, instructions out.

    joining --Join/Welcome--> joined --silence or Rejoin--> joining ...   (for ever, until stopped or refused for good)
    Deploy -> CheckWeights -> (WeightsMissing, chunks) -> Load -> Deployed
    WorkerDied -> WorkerLost ... WorkerReady -> CheckWeights -> ... -> Deployed      (for every deployment it keeps)

Laws: the machine never waits and never looks at a clock; handling a message twice is harmless; a coordinator that falls silent is
joined again, and a new membership voids every deployment that it does not keep; without a worker nothing is asked of one.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace

from bbgrap.control.agent_events import (
    CheckWeights,
    Drop,
    Event,
    Instruction,
    Load,
    Loaded,
    Log,
    Outcome,
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
    WorkerDied,
    WorkerReady,
)
from bbgrap.control.asked import Asked
from bbgrap.control.states import Role, Tracker
from bbgrap.errors import RemoteProtocolError
from bbgrap.protocol.messages import (
    Abandon,
    AgentCommand,
    AgentMessage,
    AnswerPings,
    Deploy,
    Deployed,
    DeploymentFailed,
    Heartbeat,
    HeartbeatSeen,
    Join,
    Leave,
    LinksMeasured,
    LinksTried,
    Measure,
    Measured,
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
    WorkerLost,
)

FIRST_JOIN_S = 0.1
"""How soon an agent asks again to join; from then on half as long again each time."""
JOIN_S = 0.5
"""How often it asks in the end."""
FIRST_SILENCE_S = 4.0
"""How long a coordinator may be silent until its `Welcome` says how long."""
REFUSED_S = 15.0
"""How long an agent asks for a name that is taken. Chosen: far above the time after which its last holder is taken for dead."""
MAX_UNSAID = 256
"""What is kept of what happens while no coordinator listens; the oldest makes room."""
MAX_DEPLOYMENTS = 16
"""Loaded deployments an agent keeps: twice what a coordinator keeps, so that only a broken coordinator reaches it."""
ASK_AGAIN_S = 10.0
"""Weights that do not come are asked for again after this long without any chunk."""


MIN_HEARTBEAT_S = 0.01
"""No coordinator needs to hear from an agent more often."""


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
        """Start unjoined, with a worker that is ready; the coordinator's `Welcome` says how often it wants to hear from it."""
        self.join = join
        self.membership: int | None = None
        self.deployments: dict[int, _Deployment] = {}
        self._tracker = Tracker(Role.AGENT, f"'{join.name}'")
        self._worker_ready = True
        self._asked = Asked()
        # Answers of the worker that are on their way for deployments that were released meanwhile, by epoch.
        self._late: Counter[int] = Counter()
        self._unsaid: deque[AgentMessage] = deque(maxlen=MAX_UNSAID)
        self._heartbeat_s = JOIN_S
        self._join_s = FIRST_JOIN_S
        self._heartbeat = Heartbeat()
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
        return self._heartbeat_s if self.state == "joined" else self._join_s

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take an event and return what is to be done, in order.

        Raises:
            RemoteProtocolError: if the coordinator sent what must not come now; the state is as before.
        """
        match event:
            case Received():
                return self._on_message(event.message, now)
            case Tick(heartbeat):
                return self._on_tick(heartbeat, now)
            case WeightsChecked():
                return self._on_checked(event, now)
            case WeightArrived():
                return self._on_weight(event, now)
            case Loaded():
                return self._on_loaded(event)
            case Outcome(message):
                return self._say(message) if self._is_wanted(message) else []
            case WorkerReady():
                return self._on_worker_ready(now)
            case WorkerDied():
                return self._on_worker_died(event)
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
                return [self._ask_to_join(now)]
            case HeartbeatSeen():
                return []
            case Deploy():
                return self._on_deploy(message, now)
            case WeightChunk():
                for deployment in self.deployments.values():
                    deployment.heard = now
                return [StoreChunk(message)] if self._worker_ready else []
            case Abandon():
                runs = self._worker_ready and message.epoch in self.deployments
                return [Drop(message.epoch, message.request)] if runs else []
            case Release():
                return self._release(message.epoch, "Release")
            case Measure() | MeasureLinks() | TryLinks() | AnswerPings():
                return self._asked.take(message, ready=self._worker_ready)

    def _ask_to_join(self, now: float) -> Instruction:
        self._spoke = now
        self._join_s = min(JOIN_S, 1.5 * self._join_s)
        return Say(replace(self.join, holds=tuple(e for e, d in self.deployments.items() if d.tracker.state == "ready")))

    def _on_welcome(self, message: Welcome, now: float) -> list[Instruction]:
        self._refused_since = None
        self._heartbeat_s = max(message.heartbeat_s, MIN_HEARTBEAT_S)
        self._silence_s = 2 * message.dead_after_s
        self._join_s = FIRST_JOIN_S
        self._spoke = now
        done: list[Instruction] = []
        if message.membership != self.membership:
            self.membership = message.membership
            done = [*self._keep(message.keep), Log(f"joined as '{self.join.name}'")]
        unsaid, self._unsaid = self._unsaid, deque(maxlen=MAX_UNSAID)
        return [*done, Say(self._heartbeat), *(Say(late) for late in unsaid)]

    def _keep(self, epochs: tuple[int, ...]) -> list[Instruction]:
        """Begin a new membership with some of the deployments; what is unsaid about others is of no interest any more."""
        self._asked.forget()
        released = [i for epoch in list(self.deployments) if epoch not in epochs for i in self._release(epoch, "reset")]
        of_kept = (RequestFailed, Recorded, Deployed)
        unsaid = [m for m in self._unsaid if isinstance(m, WorkerLost) or (isinstance(m, of_kept) and m.epoch in self.deployments)]
        # Offered when it asked to join, and gone since.
        gone = [DeploymentFailed(epoch, "the agent does not have it any more") for epoch in epochs if epoch not in self.deployments]
        self._unsaid = deque((*unsaid, *gone), maxlen=MAX_UNSAID)
        return released

    def _on_refused(self, message: Refused, now: float) -> list[Instruction]:
        # A name stays taken for as long as the coordinator believes its last holder alive: a restarted agent waits that out once.
        self._refused_since = now if self._refused_since is None else self._refused_since
        if message.retry and now - self._refused_since < max(self._silence_s, REFUSED_S):
            return []
        self._tracker.move("give up")
        return [Quit(message.reason)]

    def _on_tick(self, heartbeat: Heartbeat | None, now: float) -> list[Instruction]:
        if self.state == "left":
            return []
        if heartbeat is None:
            # Whoever says nothing is not answered: that is no silence of the coordinator.
            self._heard = now
            return []
        self._heartbeat = heartbeat
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
        if now - self._spoke >= self.next_tick_s / 2:
            self._spoke = now
            done.append(Say(heartbeat) if self.state == "joined" else self._ask_to_join(now))
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
        return [*evicted, *([_check(deploy)] if self._worker_ready else [])]

    def _evict(self) -> list[Instruction]:
        if len(self.deployments) < MAX_DEPLOYMENTS:
            return []
        epoch = next((e for e, d in self.deployments.items() if d.tracker.state == "ready"), None)
        if epoch is None:
            raise RemoteProtocolError(f"coordinator: {len(self.deployments)} deployments at once, the limit is {MAX_DEPLOYMENTS}")
        return [*self._release(epoch, "evicted"), Say(DeploymentFailed(epoch, "evicted: the agent keeps no more deployments"))]

    def _on_checked(self, event: WeightsChecked, now: float) -> list[Instruction]:
        deployment = self.deployments.get(event.epoch)
        if deployment is None or self._is_late(event.epoch):
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
        if self._is_late(event.epoch) or deployment is None:
            # Released while it was loading, and perhaps offered again since: what was loaded goes again.
            return [] if event.fault else [Unload(event.epoch)]
        if event.fault:
            return [*self._release(event.epoch, "load failed"), *self._say(DeploymentFailed(event.epoch, event.fault))]
        deployment.tracker.move("loaded")
        return self._say(Deployed(event.epoch, event.seconds))

    # --- the worker -------------------------------------------------------------------------------------------------------------

    def _on_worker_ready(self, now: float) -> list[Instruction]:
        self._worker_ready = True
        for deployment in self.deployments.values():
            deployment.heard = now
        # Deployments are loaded in the order they came: the oldest ones serve.
        return [*self._asked.worker_ready(), *(_check(deployment.deploy) for deployment in self.deployments.values())]

    def _on_worker_died(self, event: WorkerDied) -> list[Instruction]:
        self._worker_ready = False
        self._late.clear()
        # What was being loaded is new, what was computed has been loaded and warmed up: of both, the load is to blame.
        blamed = (event.loading, 0) if event.loading and event.guilty else (event.epoch or event.loading, event.request)
        lost = WorkerLost(event.reason, *blamed, event.guilty)
        done: list[Instruction] = [Log(event.reason), *self._say(lost)]
        for epoch, deployment in list(self.deployments.items()):
            if event.guilty and epoch == event.loading and deployment.tracker.state == "loading":
                deployment.tracker.move("ended the worker")
                del self.deployments[epoch]
                done += self._say(DeploymentFailed(epoch, event.reason))
            else:
                deployment.tracker.move("worker lost")
                deployment.missing = set()
        for instruction in self._asked.worker_died(event.reason):
            done += self._say(instruction.message) if isinstance(instruction, Say) else [instruction]
        return done

    def _is_wanted(self, message: AgentMessage) -> bool:
        match message:
            case RequestFailed(epoch) | Recorded(epoch):
                return epoch in self.deployments
            case Measured() | LinksMeasured() | LinksTried():
                return self._asked.answered(message)
            case _:
                return True

    def _say(self, message: AgentMessage) -> list[Instruction]:
        """Say what happened, now or when a coordinator listens again."""
        if self.state == "joined":
            return [Say(message)]
        self._unsaid.append(message)
        return []

    def _on_stop(self, reason: str) -> list[Instruction]:
        leaving: list[Instruction] = [Say(Leave(reason))] if self.state == "joined" else []
        if not self._tracker.over:
            self._tracker.move("stop")
        return [*leaving, *self._release_all(), Quit("")]

    def _release(self, epoch: int, event: str) -> list[Instruction]:
        deployment = self.deployments.pop(epoch, None)
        if deployment is None:
            return []
        if self._worker_ready and event != "load failed" and deployment.tracker.state in {"offered", "loading"}:
            self._late[epoch] += 1
        deployment.tracker.move(event)
        return [Unload(epoch)] if self._worker_ready else []

    def _is_late(self, epoch: int) -> bool:
        """Whether an answer of the worker is for a deployment that was released since; the worker answers in the order it was asked."""
        if not self._late[epoch]:
            del self._late[epoch]
            return False
        self._late[epoch] -= 1
        return True

    def _release_all(self) -> list[Instruction]:
        return [instruction for epoch in list(self.deployments) for instruction in self._release(epoch, "reset")]


def _check(deploy: Deploy) -> CheckWeights:
    return CheckWeights(deploy.epoch, tuple({ref.digest: None for segment in deploy.segments for ref in segment.weights.values()}))
