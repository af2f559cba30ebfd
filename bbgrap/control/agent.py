"""What an agent does when something happens: events and the time in, instructions out.

    joining --Join/Welcome--> joined --silence or Rejoin--> joining ...   (for ever, until stopped or refused for good)
    Deploy -> CheckWeights -> (WeightsMissing, chunks) -> Deploy to the worker -> Deployed
    WorkerLost ... WorkerReady -> CheckWeights -> ... -> Deployed      (for every deployment it keeps)

Laws: the machine never waits and never looks at a clock; handling a message twice is harmless; a coordinator that falls silent is
joined again, and a new membership voids every deployment that it does not keep; without a worker nothing is asked of one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from bbgrap.control.agent_deployments import AgentDeployments
from bbgrap.control.agent_events import (
    AgentEvent,
    AgentInstruction,
    AgentTick,
    DeploymentLoaded,
    LogLine,
    Quit,
    Received,
    Stop,
    WeightArrived,
    WeightsChecked,
    WorkerReady,
)
from bbgrap.control.lifecycles import Lifecycle, Tracker
from bbgrap.control.open_measurements import OpenMeasurements
from bbgrap.control.to_coordinator import Reconnect, ToCoordinator
from bbgrap.protocol.inspection import Inspect
from bbgrap.protocol.messages import (
    Abandon,
    AgentCommand,
    AgentMessage,
    AnswerPings,
    Deploy,
    Deployed,
    DeploymentFailed,
    EndedBy,
    EndMeasuring,
    Heartbeat,
    HeartbeatSeen,
    Join,
    Leave,
    LinksMeasured,
    LinksTried,
    LoadNext,
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
    Welcome,
    WorkerLost,
)

FIRST_JOIN_S = 0.1
"""How soon an agent asks again to join; from then on half as long again each time."""
JOIN_S = 0.5
"""How often it asks in the end."""
FIRST_SILENCE_S = 4.0
"""How long a coordinator may be silent until its `Welcome` says how long."""
LARGE_S = 1.0
"""Bytes that come for longer without a whole message are of a large one, as each heartbeat is answered: a piece of a weight."""
LONGEST_SILENCE_S = 60.0
"""How long it may be at most that was there all the time: what it said was on its way. Chosen: a piece of a weight over 140 kbit/s."""
REFUSED_S = 15.0
"""How long an agent asks for a name that is taken. Chosen: far above the time after which its last holder is taken for dead."""
MAX_UNSAID = 256
"""What is kept of what happens while no coordinator listens; the oldest makes room."""
MIN_HEARTBEAT_S = 0.01
"""No coordinator needs to hear from an agent more often."""


class AgentMachine:
    """The control side of one agent.

    Invariants: `_unsaid` is empty while it is joined.
    """

    def __init__(self, join: Join, now: float) -> None:
        """Start unjoined, with a worker that is ready; the coordinator's `Welcome` says how often it wants to hear from it."""
        self.join = join
        self.membership: int | None = None
        self._deployments = AgentDeployments()
        self._tracker = Tracker(Lifecycle.AGENT, f"'{join.name}'")
        self._measurements = OpenMeasurements()
        self._unsaid: deque[AgentMessage] = deque(maxlen=MAX_UNSAID)
        self._heartbeat_s = JOIN_S
        self._join_s = FIRST_JOIN_S
        self._heartbeat = Heartbeat()
        self._silence_s = self._patience_s = FIRST_SILENCE_S
        self._was_silent = False
        self._heard = self._read = now
        """When the coordinator was heard of last, and when a whole message of it was there."""
        self._spoke = float("-inf")
        self._refused_since: float | None = None
        self._complained = False

    @property
    def state(self) -> str:
        """Where the agent stands: joining, joined or left."""
        return self._tracker.state

    @property
    def next_tick_s(self) -> float:
        """How long the driver may wait before the next `AgentTick`."""
        return self._heartbeat_s if self.state == "joined" else self._join_s

    def handle(self, event: AgentEvent, now: float) -> list[AgentInstruction]:
        """Take an event and return what is to be done, in order.

        Raises:
            RemoteProtocolError: if the coordinator sent what must not come now; the state is as before.
        """
        match event:
            case Received():
                return self._on_message(event.message, now)
            case AgentTick(heartbeat):
                if heartbeat is None or event.is_receiving:  # whoever says nothing is not answered: that is no silence of the coordinator
                    self._heard = now
                if event.is_receiving and now - self._read > LARGE_S:
                    self._deployments.coming(now)
                return self._on_tick(heartbeat, now)
            case WeightArrived():
                return self._heard_or_kept(self._deployments.weight_arrived(event, now))
            case WeightsChecked() | DeploymentLoaded():
                return self._heard_or_kept(self._deployments.answered(event, now))
            case WorkerReady():
                return [*self._measurements.worker_ready(), *self._deployments.worker_ready(now)]
            case WorkerLost():
                return self._heard_or_kept(self._on_worker_lost(event))
            case Stop():
                return self._on_stop(event.reason)
            case _:
                return self._heard_or_kept([ToCoordinator(event)] if self._is_wanted(event) else [])

    def _on_message(self, message: AgentCommand, now: float) -> list[AgentInstruction]:  # noqa: C901 - one branch per message
        was = self._tracker.state
        self._tracker.move(type(message).__name__)
        self._heard = self._read = now
        if was == "joining" and not isinstance(message, Welcome | Refused | Abandon | Release):
            # What ends something is right whoever says it, and is not said again.
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
                return self._deployments.deploy(message, now)
            case WeightChunk():
                return self._deployments.store(message, now)
            case Abandon():
                return self._deployments.abandon(message)
            case LoadNext():
                return self._deployments.load_next(message.epoch)
            case Release():
                return self._deployments.release(message.epoch, "Release")
            case Measure() | MeasureLinks() | EndMeasuring() | TryLinks() | AnswerPings():
                return self._measurements.take(message, ready=self._deployments.has_worker)
            case Inspect():
                return [message]

    def _ask_to_join(self, now: float) -> AgentInstruction:
        self._spoke = now
        self._join_s = min(JOIN_S, 1.5 * self._join_s)
        return ToCoordinator(replace(self.join, holds=self._deployments.ready))

    def _on_welcome(self, message: Welcome, now: float) -> list[AgentInstruction]:
        self._refused_since = None
        self._heartbeat_s = max(message.heartbeat_s, MIN_HEARTBEAT_S)
        if message.membership != self.membership:
            self._patience_s = 2 * message.dead_after_s
        elif self._was_silent:  # it never missed this one: a large message of its own was on a slow way, and comes again
            self._patience_s = min(2 * self._patience_s, LONGEST_SILENCE_S)
        self._silence_s, self._was_silent = self._patience_s, False
        self._join_s = FIRST_JOIN_S
        self._spoke = now
        done: list[AgentInstruction] = []
        if message.membership != self.membership:
            self.membership = message.membership
            done = [
                *self._keep(message.keep),
                *self._deployments.abandon_before(message.first_request),
                LogLine(f"joined as '{self.join.name}'"),
            ]
        unsaid, self._unsaid = self._unsaid, deque(maxlen=MAX_UNSAID)
        return [*done, ToCoordinator(self._heartbeat), *(ToCoordinator(late) for late in unsaid)]

    def _keep(self, epochs: tuple[int, ...]) -> list[AgentInstruction]:
        """Begin a new membership with some of the deployments; what is unsaid about others is of no interest any more."""
        self._measurements.forget()
        released, held = self._deployments.release_others(epochs), self._deployments.by_epoch
        of_kept = (RequestFailed, Recorded, Deployed)
        unsaid = [m for m in self._unsaid if isinstance(m, WorkerLost) or (isinstance(m, of_kept) and m.epoch in held)]
        # Offered when it asked to join, and gone since.
        gone = [DeploymentFailed(epoch, "the agent does not have it any more") for epoch in epochs if epoch not in held]
        self._unsaid = deque((*unsaid, *gone), maxlen=MAX_UNSAID)
        return released

    def _on_refused(self, message: Refused, now: float) -> list[AgentInstruction]:
        if self.state == "joined" and message.retry:  # late: it was taken in since
            return []
        # A name stays taken for as long as the coordinator believes its last holder alive: a restarted agent waits that out once.
        is_first, bound_s = self._refused_since is None, max(self._silence_s, REFUSED_S)
        self._refused_since = now if self._refused_since is None else self._refused_since
        if message.retry and now - self._refused_since < bound_s:
            return [LogLine(f"not let in; tried again for {bound_s:g} s: {message.reason}")] if is_first else []
        self._tracker.move("give up")
        return [Quit(message.reason)]

    def _on_tick(self, heartbeat: Heartbeat | None, now: float) -> list[AgentInstruction]:
        if self.state == "left" or heartbeat is None:
            return []
        self._heartbeat = heartbeat
        done: list[AgentInstruction] = []
        if now - self._heard > self._silence_s:
            self._heard = now
            # A new connection has to be made and the answer to come, over 250 ms five round trips, before it is given up in turn.
            self._silence_s = max(self._silence_s, min(2 * self._silence_s, FIRST_SILENCE_S))
            if self.state == "joined":
                self._tracker.move("silence")
                self._was_silent = True
                done.append(LogLine("the coordinator is silent; joining again until it answers"))
            elif self.membership is None and not self._complained:
                self._complained = True
                done.append(LogLine("the coordinator does not answer; trying until it does"))
            done.append(Reconnect())
        # Half an interval of slack: a tick that comes a little early must not skip a whole beat.
        if now - self._spoke >= self.next_tick_s / 2:
            self._spoke = now
            done.append(ToCoordinator(heartbeat) if self.state == "joined" else self._ask_to_join(now))
        return [*done, *self._deployments.ask_again(now)]

    def _on_worker_lost(self, lost: WorkerLost) -> list[AgentInstruction]:
        if lost.ended_by is EndedBy.MEMORY and self._measurements.is_measuring:
            # Nobody knows what the last of it was for; what has too little of it alone will end the next worker, too.
            reason = f"{lost.reason}; it measured this machine meanwhile, which takes memory, too"
            lost = replace(lost, ended_by=EndedBy.OUTSIDE, reason=reason)
        return [
            LogLine(lost.reason),
            ToCoordinator(lost),
            *self._deployments.worker_lost(lost),
            *self._measurements.worker_lost(lost.reason),
        ]

    def _is_wanted(self, message: AgentMessage) -> bool:
        match message:
            case RequestFailed(epoch) | Recorded(epoch):
                return epoch in self._deployments.by_epoch
            case Measured() | LinksMeasured() | LinksTried():
                return self._measurements.answered(message)
            case _:
                return True

    def _heard_or_kept(self, done: list[AgentInstruction]) -> list[AgentInstruction]:
        """Return instructions without what nobody would hear; that is said when a coordinator listens again."""
        if self.state == "joined":
            return done
        self._unsaid.extend(instruction.message for instruction in done if isinstance(instruction, ToCoordinator))
        return [instruction for instruction in done if not isinstance(instruction, ToCoordinator)]

    def _on_stop(self, reason: str) -> list[AgentInstruction]:
        leaving: list[AgentInstruction] = [ToCoordinator(Leave(reason))] if self.state == "joined" else []
        if not self._tracker.over:
            self._tracker.move("stop")
        return [*leaving, *self._deployments.release_others(()), Quit("")]
