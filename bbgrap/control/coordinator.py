"""What a coordinator does when something happens: events and the time in, instructions out.

Laws: the machine never waits and never looks at a clock; every call of a client gets one final answer, whatever agents do; what ran on an
agent that is lost runs again, on another variant of its plan or on the model's standby.
"""

from __future__ import annotations

from typing import Literal

from bbgrap.cluster.types import COORDINATOR
from bbgrap.control.audit import peer_of
from bbgrap.control.blame import Blame
from bbgrap.control.callers import fed
from bbgrap.control.coordinator_events import (
    ChunkWritten,
    Compared,
    CoordinatorEvent,
    FromPeer,
    HostLinkBroken,
    MachineRead,
    Noticed,
    PlanFailed,
    Planned,
    RequestBroke,
    RequestDone,
    RoutingId,
    Tick,
)
from bbgrap.control.coordinator_instructions import Audit, CoordinatorInstruction, ForgetPlan, Log, SaveModel, ToAgent, ToClient
from bbgrap.control.coordinator_settings import Settings
from bbgrap.control.dispatch import Requests
from bbgrap.control.link_faults import LinkFaults
from bbgrap.control.links import Links
from bbgrap.control.loading import Loading
from bbgrap.control.membership import Member, Members
from bbgrap.control.planning import Planning
from bbgrap.control.plans import Caller, Job, ServedPlan, Variant
from bbgrap.control.profiling import Profiling
from bbgrap.control.queries import Queries
from bbgrap.control.request_statistics import RequestStatistics
from bbgrap.control.saved_state import SavedState
from bbgrap.control.stalls import is_stuck, kept_waiting, stalled, unawaited_stalled
from bbgrap.control.standby import Standbys
from bbgrap.control.status import StatusReader
from bbgrap.control.uploads import Uploads
from bbgrap.protocol.client_messages import (
    Ask,
    Cancel,
    ClientMessage,
    EndSequence,
    Failed,
    ForkSequence,
    Greeting,
    Hello,
    MeasureNodes,
    MeasureUnknown,
    ModelChunk,
    OfferModel,
    PrepareModel,
    RunModel,
    StillWorking,
)
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.inspection import Inspected
from bbgrap.protocol.messages import (
    AgentMessage,
    Deployed,
    DeploymentFailed,
    Heartbeat,
    HeartbeatSeen,
    Join,
    Leave,
    LinkBroken,
    LinksMeasured,
    LinksTried,
    Measured,
    Recorded,
    Refused,
    Rejoin,
    Release,
    RequestFailed,
    WeightsMissing,
    WeightStored,
    WorkerLost,
)

NO_AGENT = "no agent is there to work; start one with: bbgrap-agent --join tcp://COORDINATOR:PORT"


class CoordinatorMachine:
    """The control side of the coordinator.

    Invariants: after every event, nothing that takes requests is idle while a request waits for it, but a node that is set aside.
    """

    def __init__(self, settings: Settings, stored: SavedState | None = None, now: float = 0.0) -> None:
        """Start without agents and clients, with what an earlier coordinator has left."""
        kept = stored or SavedState()
        self.settings = settings
        self.members = Members(settings, kept)
        self.links = Links(self.members)
        self.loading = Loading(settings, self.members)
        self.planning = Planning(self.members, self.links, self.loading)
        self.standbys = Standbys(self.members, self.links, self.loading)
        self.uploads = Uploads(dict(kept.files), kept.models)
        self.profiling = Profiling(self.members, self.planning)
        self.statistics = RequestStatistics(settings, now)
        self.requests = Requests(settings, self.members, self.loading, self.planning, self.standbys, self.statistics)
        self.recovery = self.requests.recovery
        self.status = StatusReader(self.members, self.links, self.requests, self.statistics)
        self.faults = LinkFaults(self.members, self.links, self.loading, self.planning, self.recovery)
        self.queries = Queries(self.members, self.planning, self.status)
        self.blame = Blame(self.loading, self.planning, self.requests)
        self._restore(kept, now)

    def handle(self, event: CoordinatorEvent, now: float) -> list[CoordinatorInstruction]:
        """Take an event and return what is to be done, in order.

        Raises:
            RemoteProtocolError: if a peer sent what must not come now; nothing has changed then.
        """
        self.requests.table.now = now
        done = self._on_event(event, now)
        if self.profiling.has_news:
            self.profiling.has_news = False
            done += self.planning.world_changed(now)
        done += self.requests.go_on(now)
        self.statistics.note(done, now)
        return done

    def _on_event(self, event: CoordinatorEvent, now: float) -> list[CoordinatorInstruction]:  # noqa: C901 - one branch per event
        match event:
            case FromPeer(identity, message):
                return self._on_message(identity, message, now)
            case Tick(moving):
                self.members.moved(moving, now)
                return self._on_tick(now)
            case ChunkWritten():
                return self.uploads.written(event)
            case Planned():
                ended = self._end_job(event.job)
                if ended is None:  # cancelled when its answer was on its way
                    return [ForgetPlan(event.job)]
                plan, job = ended
                return self.standbys.planned(plan, event) if plan.is_standby else self.planning.made.planned(plan, job, event.variants, now)
            case PlanFailed():
                self.uploads.forget(event.gone)
                ended = self._end_job(event.job)
                if ended is None:
                    return []
                plan, job = ended
                if plan.is_standby:
                    return self.standbys.failed(plan, event, now)
                return self.planning.made.failed(plan, job, event.fault, event.reason, now)
            case RequestDone():
                return self.requests.done(event, now)
            case RequestBroke():
                return self.requests.broke(event)
            case HostLinkBroken(address):
                return self.faults.broken(None, address, now)
            case Compared():
                return self.requests.verifying.compared(event, now)
            case Noticed(text):
                return [Log(text, event="key")]
            case MachineRead(facts):
                return self.queries.machine_read(facts, now)

    def _restore(self, stored: SavedState, now: float) -> None:
        """Know the plans of an earlier coordinator; their agents will offer what they hold of them."""
        for kept, planned in sorted(stored.plans, key=lambda entry: (entry[0].options is not None, entry[0].job)):
            files = self.uploads.files_of(kept.model)
            if files is None:
                continue
            standby = self.standbys.of(kept.model, files)
            standby.ran_late = True  # it may never have answered, nor end: no agent is taken to find that out again where nobody waits
            if kept.options is None:
                plan = standby
                plan.planned, plan.latest, plan.is_restored = planned, kept.job, True
            else:
                plan = self.planning.plans.setdefault(kept.key, ServedPlan(kept.key, kept.model, files, kept.shapes, kept.options, standby))
                plan.serves, plan.latest, plan.timed = True, kept.job, kept.job
                plan.is_proven = True  # not its standby, which is kept as soon as it is loaded
            plan.quarantine = kept.quarantine
            self.standbys.began = standby.asked = plan.asked = now  # by whom, and when, is not known
            self.loading.restore(plan, kept, planned, now)

    def _end_job(self, number: int) -> tuple[ServedPlan, Job] | None:
        """Return a job that has come to an end and the plan that it was for; None if it was cancelled."""
        for plan in (*self.planning.plans.values(), *self.standbys.by_model.values()):
            if (job := plan.job) is not None and job.number == number:
                plan.job = None
                return plan, job
        return None

    # --- agents -----------------------------------------------------------------------------------------------------------------

    def _on_message(self, identity: RoutingId, message: AgentMessage | ClientMessage, now: float) -> list[CoordinatorInstruction]:
        if isinstance(message, Join):
            return self._on_join(identity, message, now)
        if not isinstance(message, AgentMessage):
            return self._on_client(identity, message, now)
        member = self.members.heard(identity, now)
        return [ToAgent(identity, Rejoin())] if member is None else self._on_agent(member, message, now)

    def _on_join(self, identity: RoutingId, join: Join, now: float) -> list[CoordinatorInstruction]:
        known = self.members.heard(identity, now)
        if known is not None:
            kept = tuple(variant.epoch for variant in self.loading.of_member(known.name) if known.name not in variant.away)
            # It asks again because what was said to it was lost: releases, deployments, whom to answer and whom to try, perhaps.
            gone = [ToAgent(identity, Release(epoch)) for epoch in join.holds if epoch not in kept]
            lost = [i for v in self.loading.load_again(known, now, join.holds) for i in self.recovery.take_back(v)[1]]
            links = self.links.say_again(known, now)
            return [self.members.welcome(known, kept), *links, *gone, *lost, *self.faults.doubted(known, now)]
        member = self.members.join(identity, join, now)
        if isinstance(member, Refused):
            if not self.members.note_refusal(identity, member):
                return [ToAgent(identity, member)]
            refused = Audit("refused", peer_of(identity, join.name), {"reason": member.reason})
            return [ToAgent(identity, member), Log(f"refused '{join.name}': {member.reason}", event="refused", node=join.name), refused]
        member.first_request = next(self.loading.epochs)
        keep, done = self.loading.back(member, join.holds, now)
        self.standbys.joined(member)
        self.statistics.gone.pop(member.name, None)
        return [
            self.members.welcome(member, keep),
            Log(f"agent '{join.name}' joined; agents: {len(self.members.by_name)}", event="joined", node=join.name),
            *self.members.other_versions(join),
            *self.members.overstated_memory(member),
            Audit("joined", peer_of(identity, join.name), {"address": join.data_address, "version": join.version}),
            *self.links.joined(member, now),
            *done,
            *self.planning.world_changed(now),
        ]

    def _on_agent(self, member: Member, message: AgentMessage, now: float) -> list[CoordinatorInstruction]:  # noqa: C901 - one branch per message
        match message:
            case Join():
                return []
            case Heartbeat():
                return self._on_heartbeat(member, message, now)
            case WeightsMissing():
                return self.loading.missing(member, message.epoch, message.digests, now)
            case WeightStored():
                self.loading.progressed(member, now)
                return fed(member, message.digest, message.received, self.loading, self.members)
            case Deployed():
                return [*self.blame.cleared(member, message.epoch, now), *self.loading.deployed(member, message.epoch, now)]
            case DeploymentFailed():
                variant = self.loading.by_epoch.get(message.epoch)
                if variant is None or member.name not in variant.parts:
                    return []
                apart = self.faults.unanswered(member, variant, message.unreachable, now)
                return apart or self._on_deployment_failed(member, variant, message.reason, now)
            case RequestFailed():
                return self.requests.failed_on(member, message)
            case Recorded():
                return self.requests.recorded(member, message)
            case Measured():
                return self.profiling.measured(member, message, now)
            case LinksMeasured():
                return self.profiling.links_measured(member, message, now)
            case LinksTried():
                return self.faults.tried(member, message, now)
            case Inspected():
                return self.queries.inspected(member, message, now)
            case LinkBroken():
                return self.faults.broken(member, message.address, now, message.reason)
            case WorkerLost():
                return self._on_worker_lost(member, message, now)
            case Leave():
                return self._lose(member, "left", f"left ({message.reason})", now)

    def _on_heartbeat(self, member: Member, beat: Heartbeat, now: float) -> list[CoordinatorInstruction]:
        was_stuck = is_stuck(member, self.loading)
        member.take(beat, now)
        done: list[CoordinatorInstruction] = [ToAgent(member.identity, HeartbeatSeen())]
        if is_stuck(member, self.loading):  # others do what waits behind that
            for variant, numbers in list(kept_waiting(member, self.requests.open, self.loading)):
                done += self.recovery.take_back(variant, numbers)[1]
        elif was_stuck:  # it can go on with what waits
            self.planning.touch_waiting()
        return [*done, *self.recovery.forgotten(member, now)]

    def _on_deployment_failed(self, member: Member, variant: Variant, why: str, now: float) -> list[CoordinatorInstruction]:
        variant.tracker.move("DeploymentFailed")
        reason = self.members.cannot_load(member, why)
        others = [name for name in (*variant.parts, COORDINATOR) if name != member.name]
        if not member.was_ended_loading(variant.epoch) and any(self.links.is_suspect(member.name, other) for other in others):
            # It cannot connect: what is known soon of its links decides where to load instead.
            text = f"{variant.plan.called}: {variant.name} is given up: {reason}"
            return [Log(text, node=member.name, model=variant.plan.model, epoch=variant.epoch), *self.recovery.drop(variant)]
        return self.recovery.lose_variant(variant, member.name, reason, now)

    def _on_worker_lost(self, member: Member, message: WorkerLost, now: float) -> list[CoordinatorInstruction]:
        known = {epoch: variant for epoch in (message.epoch, message.loading) if (variant := self.loading.by_epoch.get(epoch))}
        whose = "".join(f"; epoch {epoch} is of {variant.plan.called}" for epoch, variant in known.items())
        model = next(iter(known.values())).plan.model if len(known) == 1 else ""  # of two, either may have ended it
        told = Log(
            f"the worker of agent '{member.name}' ended: {message.reason}{whose}", event="worker lost", node=member.name, model=model
        )
        blamed = self.blame.worker_ended(member, message, now) if message.ended_by.guilty else []
        variants = self.loading.load_again(member, now)
        self.recovery.let_go(now, member.name)
        return [told, *blamed, *self.recovery.lose_agent(member, variants)]

    def _lose(self, member: Member, how: Literal["left", "lost"], verb: str, now: float) -> list[CoordinatorInstruction]:
        """Take an agent out; what ran on it runs again on what is left."""
        self.statistics.went(self.status.node(member), how, now)
        self.members.remove(member)
        self.links.lost(member)
        self.blame.forget(member)
        variants = self.loading.part(member, now)
        return [
            Log(f"agent '{member.name}' {verb}; agents: {len(self.members.by_name)}", event=how, node=member.name),
            Audit(how, peer_of(member.identity, member.name)),
            *self.recovery.lose_agent(member, variants),
            *self.profiling.lost(member, now),
            *self.queries.lost(member, now),
            *self.links.allow(),
            *self.planning.world_changed(now),
        ]

    # --- clients ----------------------------------------------------------------------------------------------------------------

    def _on_client(self, identity: RoutingId, message: ClientMessage, now: float) -> list[CoordinatorInstruction]:
        match message:
            case Hello():
                return [ToClient(identity, Greeting(message.call, self.settings.version))]
            case OfferModel():
                return self.uploads.offer(identity, message)
            case ModelChunk():
                return self.uploads.chunk(identity, message)
            case PrepareModel():
                return self._on_prepare(identity, message, now)
            case RunModel():
                return self._on_run(identity, message, now)
            case ForkSequence() | EndSequence():
                return self.requests.sequences.take(identity, message, now)
            case MeasureNodes() | MeasureUnknown():
                return self.profiling.begin(identity, message, now)
            case Cancel():
                caller = (identity, message.call)
                return [*self.requests.cancel(caller), *self.profiling.cancel(caller, now)]
            case Ask():
                self.requests.asked_after(identity, message.calls, now)
                known = tuple(call for call in message.calls if self._will_answer((identity, call)))
                return [ToClient(identity, StillWorking(message.calls, known))]
            case _:
                return self.queries.take(identity, message, now)

    def _will_answer(self, caller: Caller) -> bool:
        return any(part.is_known(caller) for part in (self.requests, self.profiling, self.queries))

    def _on_prepare(self, identity: RoutingId, message: PrepareModel, now: float) -> list[CoordinatorInstruction]:
        caller = (identity, message.call)
        files = self.uploads.files_of(message.model)
        if files is None:
            return [_failed(caller, Fault.UNKNOWN_MODEL, "model: the coordinator does not have it; offer it first")]
        if not self.members.saw_agents:
            return [_failed(caller, Fault.UNAVAILABLE, NO_AGENT)]
        if self.requests.is_known(caller):
            return []
        known_model = any(standby.model == message.model for standby in self.standbys.by_model.values())
        saved: list[CoordinatorInstruction] = [] if known_model else [SaveModel(message.model, files)]
        standby = self.standbys.of(message.model, files, message.options.state, message.options.top)
        self.loading.touch(standby)
        known = len(self.planning.plans)
        plan = self.planning.find(message, standby)
        if len(self.planning.plans) > known:
            shapes = {name: list(shape) for name, shape in message.shapes.items()}
            saved.append(Audit("prepared", peer_of(identity), {"model": message.model, "plan": plan.key, "shapes": shapes}))
        for brought in (standby, plan):
            # Its files were gone, and are here again.
            brought.failed = {world: why for world, why in brought.failed.items() if why[0] is not Fault.UNKNOWN_MODEL}
        told = self.requests.prepare(caller, plan, message, now)
        # Only now: what is asked for is not the one that was asked for least recently.
        return [*saved, *self.standbys.forget_oldest(tuple(self.planning.plans.values()), now), *self.planning.forget_oldest(), *told]

    def _on_run(self, identity: RoutingId, message: RunModel, now: float) -> list[CoordinatorInstruction]:
        caller = (identity, message.call)
        plan = self.planning.plans.get(message.plan)
        if plan is None:
            return [_failed(caller, Fault.UNKNOWN_PLAN, "plan: the coordinator does not have it; prepare the model again")]
        return [] if self.requests.is_known(caller) else self.requests.add(caller, message, plan, now)

    # --- time -------------------------------------------------------------------------------------------------------------------

    def _on_tick(self, now: float) -> list[CoordinatorInstruction]:
        done: list[CoordinatorInstruction] = []
        for member in self.members.dead(now):
            done += self._lose(member, "lost", "was lost", now)
        done += self.faults.silent(now)
        late, again = self.loading.overdue(now)
        done += again
        for variant in late:
            names = ", ".join(sorted(variant.away or variant.pending))
            why = f"no answer from {names} in time"
            if not variant.away:
                done += self.recovery.lose_variant(variant, names, why, now)
                continue
            text = f"{variant.plan.called}: {variant.name} is given up: {why}"  # and nobody has refused it
            told = Log(text, is_warning=True, event="given up", node=names, model=variant.plan.model, epoch=variant.epoch)
            done += [told, *self.recovery.drop(variant)]
        for variant, number in list(stalled(self.requests.open, self.loading, now)):
            done += self.faults.stalled(variant, number, now)
        for variant, number in list(unawaited_stalled(self.requests.open, self.loading, now)):
            done.append(Log(f"request {number}, of the coordinator, has stalled on {', '.join(variant.parts)} (epoch {variant.epoch})"))
            done += self.requests.synthetic.taken_back(variant, is_lost=True)
            done += self.requests.verifying.taken_back(variant)
            done += self.faults.try_all(variant, now)
        self.recovery.let_go(now)
        done += self.blame.overdue(now)
        done += self.profiling.in_background(now, self.loading.busy_agents, is_asked=bool(self.requests.open))
        for plan in (*self.planning.waits_for_time(now), *self.standbys.waits_for_time(now)):
            self.loading.touch(plan)
        self.planning.touch_waiting()
        done += self.links.overdue(now)
        self.faults.clear_tried(now)
        return [
            *done,
            *self.requests.overdue(now),
            *self.requests.sequences.overdue(now),
            *self.profiling.overdue(now),
            *self.queries.overdue(now),
            *self.statistics.runs.report(now),
        ]


def _failed(caller: Caller, fault: Fault, reason: str) -> ToClient:
    return ToClient(caller[0], Failed(caller[1], fault, reason))
