"""When plans are made: beside the requests, one job per plan at a time, and anew when there are other agents or other profiles.

    wanted -> StartPlanning -> Planned -> (the standby has answered once) -> loaded -> timed -> serves

A plan is wanted by whoever waits for it, and by requests: for the first shapes of a model when its standby answers, or after a while
without; for further ones when they have come `EARNED` times. One that is like another is made ahead, one request sooner, and held until
it is earned; one for the loss of an agent that has no room is held until then. Laws: nobody but callers who ask for it waits for a planner;
none is made while nodes are measured for a client; a job over an agent that is gone is cancelled, and what was made ahead over it
forgotten; nothing is made ahead while a planner has other work; what a world (agents, links and profiles) has no plan for is not tried
again in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from bbgrap.cluster.types import Cluster
from bbgrap.control.callers import progress
from bbgrap.control.coordinator_instructions import Base, CancelPlanning, CoordinatorInstruction, Log, StartPlanning
from bbgrap.control.links import Links
from bbgrap.control.loading import Loading
from bbgrap.control.made_plans import MAX_AHEAD, MadePlans
from bbgrap.control.membership import Member, Members
from bbgrap.control.plans import Job, ServedPlan
from bbgrap.control.scaled_plans import SEARCH_EVERY_S, Origin, origin_of
from bbgrap.planners.options import AUTO
from bbgrap.program.dictionaries import dictionary_devices_of
from bbgrap.protocol.client_messages import PrepareModel
from bbgrap.protocol.faults import Fault

MAX_PLANS = 512
"""Plans that are remembered; the least recently asked one makes room."""
EARNED = 3
"""Requests after which further shapes of a model are planned. Chosen: shapes that come once are answered by the standby."""
SPARED = 3.0
"""How much longer requests may take while a node is measured. Chosen: where it is more, both together gain a third at most."""
ONE_NODE = Fault.PLAN, "planner: one node is the fastest for inputs half as large, so no plan is looked for"
STANDBY_FIRST_S = 5.0
"""How long a plan that nobody waits for gives way to its standby, which answers sooner then: they want the same processors, disk and
memory. Chosen: a standby of 100 MB takes a second, and where one takes much longer it is the network that it waits for."""
ROOM = 1.5
"""What is loaded on a node takes so many times its weights: they, and what kernels make of them. Chosen."""
SETTLE_S = 2.0
"""How long the agents stay as they are before a plan is made anew for nobody who waits: those that are away may come back at once."""


class Planning:
    """All plans, and the jobs that are under way.

    Invariants: a plan has at most one job. `made` is what becomes of what they make.
    """

    def __init__(self, members: Members, links: Links, loading: Loading) -> None:
        self.members = members
        self.links = links
        self.loading = loading
        self.plans: dict[str, ServedPlan] = {}
        self.made = MadePlans(self.plans, loading)
        self._behind: dict[ServedPlan, None] = {}
        """Those that wait for others, or for the requests of others."""
        self._nearly: dict[ServedPlan, None] = {}
        """Those that are made ahead once the planner and the cluster have nothing else to do; the latest one first."""
        self._changed = float("-inf")
        self._is_settled = True
        self.is_paused = False
        """Whether no plan is begun or timed: nodes are measured for a client."""
        self._now: tuple[tuple[Member, ...], str] | None = None
        """Who can take part in plans, and the world that this is, until either changes."""

    def find(self, message: PrepareModel, standby: ServedPlan) -> ServedPlan:
        """Return the plan that a client asks for; a new one if it is not known."""
        cluster = self.members.cluster(self.members.alive()) if self.members.by_name else None
        if cluster is None or not dictionary_devices_of(cluster, message.options.input_values):
            # Where inputs make no difference they shall make no second plan.
            message = replace(message, options=replace(message.options, input_values="any"))
        key = plan_key(message)
        plan = self.plans.get(key)
        if plan is None:
            asked = message.options
            plan = self.plans[key] = ServedPlan(
                key, message.model, standby.files, message.shapes, asked, standby, state=asked.state, top=asked.top
            )
            if not standby.is_too_large:  # other shapes of a model that ends workers end them, too
                plan.quarantine, plan.quarantine_ends = standby.quarantine, standby.quarantine_ends
        return plan

    def forget_oldest(self) -> list[CoordinatorInstruction]:
        """Forget plans beyond `MAX_PLANS` that nobody uses."""
        done: list[CoordinatorInstruction] = []
        if len(self.plans) <= MAX_PLANS:
            return done
        for plan in sorted(self.plans.values(), key=lambda plan: plan.asked):
            if len(self.plans) <= MAX_PLANS:
                break
            if not plan.callers and not plan.outstanding and not plan.running and plan.timing is None:
                del self.plans[plan.key]
                done += [
                    *self.cancel(plan),
                    *self.made.forget_held(plan),
                    *(i for v in list(plan.variants) for i in self.loading.release(v)),
                ]
        return done

    def of_model(self, standby: ServedPlan) -> list[ServedPlan]:
        """Return the plans of a model."""
        return [plan for plan in self.plans.values() if plan.standby is standby]

    # --- when -------------------------------------------------------------------------------------------------------------------

    def world_changed(self, now: float) -> list[CoordinatorInstruction]:
        """Note that agents, links or profiles are others now; jobs over agents that are gone are cancelled."""
        self._changed, self._is_settled, self._now = now, False, None
        done: list[CoordinatorInstruction] = []
        alive = set(self.members.by_name)
        for plan in self.plans.values():
            self.loading.touch(plan)
            plan.uncovered, plan.unlike = {}, {}
            if plan.timing is not None:
                # What is timed may be of the past: not for longer than it has to be.
                plan.timing.until = min(plan.timing.until, now)
            job = plan.job if plan.ahead is None else plan.ahead.job
            if job is not None and not alive.issuperset(job.names):
                done += self.cancel(plan)
        return done

    def touch_waiting(self) -> None:
        """Look again at the plans whose requests or synthetic ones wait: at every tick, and when they have their turn."""
        for plan in self.plans.values():
            if plan.waiting or plan.timing is not None:
                self.loading.touch(plan)

    def cancel(self, plan: ServedPlan) -> list[CoordinatorInstruction]:
        """Stop the job of a plan, or forget what was made ahead, if there is either."""
        self._nearly.pop(plan, None)
        job, plan.job = plan.job, None
        return self.made.forget_ahead(plan) if job is None else [CancelPlanning(job.number)]

    def waits_for_time(self, now: float) -> Iterator[ServedPlan]:
        """Yield the plans that may be made once the agents have settled, and those that come after what other requests do."""
        behind, self._behind = self._behind, {}
        if self._nearly and not self._is_planning:
            behind[self._nearly.popitem()[0]] = None
        yield from [plan for plan in self.plans.values() if plan.again_at <= now or plan in behind]
        if not self._is_settled and self._changed + SETTLE_S <= now:
            self._is_settled = True
            yield from self.plans.values()

    def consider(self, plan: ServedPlan, now: float) -> list[CoordinatorInstruction]:
        """Begin to plan if it is time to."""
        plan.try_again(now)
        for those in (self._behind, self._nearly):
            those.pop(plan, None)
        is_earned = self._is_earned(plan, now)
        able, world = self._world()
        self._go_back(plan, world, now)
        if not (is_earned or self._is_nearly_earned(plan, now)) or not self._may_begin(plan, able, world, now):
            return self._leave_to_standby(plan, able, world)
        if (held := next((made for made in plan.held.values() if made.job.world == world and made.variants), None)) is not None:
            return self.made.take_held(plan, held, now)
        if self._is_before_standby(plan, now):
            self._behind[plan] = None
            return []
        return self._make(plan, able, world, now, is_earned=is_earned)

    def _make(self, plan: ServedPlan, able: Sequence[Member], world: str, now: float, *, is_earned: bool) -> list[CoordinatorInstruction]:
        """Make a plan as it is best made now, or take what was made ahead."""
        done: list[CoordinatorInstruction] = []
        if plan.ahead is not None and (plan.callers or plan.ahead.job.world != world):
            done = self.made.forget_ahead(plan)
        origin = self._origin(plan, tuple(member.name for member in able), now, is_earned=is_earned)
        if origin == "nothing":
            plan.failed[world] = ONE_NODE
            done += self._leave_to_standby(plan, able, world)
        elif origin == "wait" and is_earned:
            self._behind[plan] = None
        elif origin == "wait":
            self._nearly[plan] = None
            self._nearly = dict(list(self._nearly.items())[-MAX_AHEAD:])
        elif plan.ahead is not None:
            ahead, plan.ahead = plan.ahead, None
            done += self.made.take(plan, ahead.job, ahead.variants, now)
        elif is_earned or origin != "search":
            done += self._begin(plan, able, world, () if origin == "search" else origin, is_ahead=not is_earned)
        return done

    def _may_begin(self, plan: ServedPlan, able: Collection[Member], world: str, now: float) -> bool:
        """Whether nothing is under way for a plan, and nothing there or known to fail in this world."""
        if self.is_paused or plan.job is not None or plan.timing is not None or plan.quarantine:
            return False
        if not able or (not plan.callers and plan.variants and now < self._changed + SETTLE_S):
            return False
        if plan.failed.get(world) == ONE_NODE:
            # What that depends on, the standby or a plan for other shapes, may be gone or another one now.
            del plan.failed[world]
        return world not in plan.failed and not any(v.world == world for v in plan.variants)

    def _go_back(self, plan: ServedPlan, world: str, now: float) -> None:
        """Take what another job has made for this world for the newest, when its agents are back: it is timed, and serves if faster."""
        if not plan.is_used(now) or plan.job is not None or plan.is_arriving or now < self._changed + SETTLE_S:
            return
        here = [variant for variant in plan.variants if variant.world == world and not variant.is_spare]
        if all(variant.job != plan.latest for variant in here):
            plan.latest = max((variant.job for variant in here if variant.takes_requests), default=plan.latest)

    def _leave_to_standby(self, plan: ServedPlan, able: Collection[Member], world: str) -> list[CoordinatorInstruction]:
        """Release what was made while agents were away, where one node is as fast as all: the standby may have a copy on a better one."""
        standby, (fault, _) = plan.helper, plan.failed.get(world, (None, ""))
        # What could not be planned or loaded will be tried again, and is no reason.
        is_left = fault is Fault.PLAN and plan.again_at == float("inf")
        if not is_left or standby is None or not standby.open_variants or plan.options is None or plan.options.planner != AUTO:
            return []
        here = {member.name for member in able}
        narrow = [v for v in plan.variants if here > {name for name, _ in v.nodes} and not v.queue.running]
        return [instruction for variant in narrow for instruction in self.loading.release(variant)]

    def _is_before_standby(self, plan: ServedPlan, now: float) -> bool:
        """Whether the standby of a new plan is still made or loaded, which shall have the machine for itself for a while."""
        standby = plan.helper
        if plan.callers or standby is None or standby.failed or standby.quarantine or now - plan.first_asked > STANDBY_FIRST_S:
            return False
        return not standby.open_variants and (standby.job is not None or standby.is_arriving)

    def _begin(
        self, plan: ServedPlan, able: Sequence[Member], world: str, bases: tuple[Base, ...], *, is_ahead: bool
    ) -> list[CoordinatorInstruction]:
        plan.failed, plan.latest_failure = {}, ""
        start = self._start(plan, able, world, self._cluster(able, plan), bases=bases, is_ahead=is_ahead)
        return [*start, *progress(plan, self.members)]

    def _start(
        self,
        plan: ServedPlan,
        able: Sequence[Member],
        world: str,
        cluster: Cluster,
        *,
        bases: tuple[Base, ...] = (),
        spare_for: str = "",
        is_ahead: bool,
    ) -> list[CoordinatorInstruction]:
        if plan.options is None:
            return []
        names, places = tuple(m.name for m in able), tuple(m.place for m in able)
        plan.job = Job(next(self.loading.epochs), world, names, places, spare_for, bases, is_ahead)
        return [StartPlanning(plan.job.number, plan.files, plan.shapes, cluster, plan.options, bases, plan.client)]

    def cover_losses(self, plan: ServedPlan) -> list[CoordinatorInstruction]:
        """Begin to plan for the next loss of an agent that is not covered, where no node has room for the model.

        It is loaded beforehand as far as memory allows, else held. What could not be loaded is said, in the log and in the plan's report.
        """
        if self.is_paused or plan.job is not None or plan.timing is not None or not plan.serving:
            return []
        able, _ = self._world()
        done: list[CoordinatorInstruction] = []
        for name in plan.serving[0].parts:
            rest = tuple(member for member in able if member.name != name)
            if len(rest) == len(able):
                continue
            if not rest:
                done += [] if name in plan.uncovered else [Log(plan.leave_uncovered(name, "no other agent is there"))]
                continue
            names, seen = tuple(member.name for member in rest), self.members.cluster(rest)
            world = world_of(seen)
            # One that was made when other profiles were known covers the loss as well.
            if world in plan.failed or any(tuple(there for there, _ in variant.nodes) == names for variant in plan.variants):
                continue
            is_held = name in plan.uncovered  # there is no room beside what serves, so it is for the room that this leaves
            if is_held and name in plan.held and plan.held[name].job.world == world:
                continue
            # Beside what they have loaded, and what the lost one still takes of a machine.
            cluster = seen if is_held else with_memory(seen, lambda at: self.members.memory_of(at) - ROOM * self.loading.loaded_bytes(at))
            return [*done, *self._start(plan, rest, world, cluster, spare_for=name, is_ahead=is_held)]
        return done

    def has_failed(self, plan: ServedPlan) -> bool:
        """Whether there is no plan over the agents that are there now; what failed over others says nothing."""
        return self._world()[1] in plan.failed

    def _origin(self, plan: ServedPlan, names: tuple[str, ...], now: float, *, is_earned: bool) -> Origin:
        """Return what a plan is made of. Who waits for one, or has nothing that answers meanwhile, gets one of his own."""
        standby = plan.helper
        if plan.callers or standby is None or not standby.open_variants or not self._is_further(plan):
            return "search"
        if standby.outstanding > len(standby.open_variants) >= len(names):
            # Its copies answer what comes together at least as fast.
            return "wait"
        if plan.ahead is not None:
            return plan.ahead.job.bases
        if not is_earned and self._is_planning:
            return "wait"
        origin = origin_of(plan, self.of_model(standby), names)
        if origin == "search" and plan.unlike and is_earned:
            if now < standby.searched + SEARCH_EVERY_S:
                return "wait"
            standby.searched = now
        return origin

    def _world(self) -> tuple[tuple[Member, ...], str]:
        """Return who can take part in plans, and the world that this is.

        Where standbys are is no part of it: when a copy moves, what has been planned still fits.
        """
        if self._now is None:
            able = self.links.connected(self.members.alive())
            self._now = able, world_of(self.members.cluster(able)) if able else ""
        return self._now

    def _is_earned(self, plan: ServedPlan, now: float) -> bool:
        if plan.callers:
            return True
        if not plan.is_used(now) or not plan.requests:
            return False
        standby = plan.helper
        if standby is None or standby.failed or standby.quarantine or (standby.planned and not standby.variants):
            return True
        return plan.requests >= EARNED or not self._is_further(plan) or bool(plan.variants)

    def _is_nearly_earned(self, plan: ServedPlan, now: float) -> bool:
        """Whether a plan is earned with the next request, and nothing is held for that."""
        return plan.ahead is None and plan.requests == EARNED - 1 and plan.is_used(now)

    def can_spare(self, name: str, now: float) -> bool:
        """Whether nothing is planned, loaded or timed, and requests run nearly as fast without a node."""
        if self.is_at_work:
            return False
        for plan in [plan for plan in self.plans.values() if plan.is_used(now)]:
            times = [variant.usual_s for variant in plan.answering if name in variant.parts and variant.usual_s]
            without = [variant.usual_s for variant in plan.answering if name not in variant.parts]
            if times and (not without or min(without) > SPARED * min(times)):
                return False
        return True

    @property
    def is_at_work(self) -> bool:
        """Whether anything is planned, loaded or timed."""
        return self._is_planning or bool(self.loading.loading_agents) or any(plan.timing is not None for plan in self.plans.values())

    def pause(self, *, is_paused: bool) -> None:
        """Begin no plan while nodes are measured for a client, as it would be made anew; go on afterwards."""
        if self.is_paused and not is_paused:
            for plan in self.plans.values():
                self.loading.touch(plan)
        self.is_paused = is_paused

    @property
    def _is_planning(self) -> bool:
        """Whether the planner has anything to do."""
        return any(plan.job is not None for plan in self.plans.values())

    def _is_further(self, plan: ServedPlan) -> bool:
        """Whether the model has plans for other shapes."""
        return plan.standby is not None and any(
            other is not plan and (other.variants or other.job) for other in self.of_model(plan.standby)
        )

    def _cluster(self, able: Sequence[Member], plan: ServedPlan) -> Cluster:
        """Return the agents as a planner sees them: what the model's standby takes of their memory is not there for plans."""
        cluster = self.members.cluster(tuple(able))
        taken: Mapping[str, int] = {}
        if plan.standby is not None and plan.standby.planned:
            need = int(plan.standby.planned[0].report.get("memory_bytes", 0))
            taken = {name: need for variant in plan.standby.variants for name in variant.parts}
        memory = {node.name: node.memory_bytes for node in cluster.nodes}
        return with_memory(cluster, lambda name: memory[name] - taken.get(name, 0))


def with_memory(cluster: Cluster, left: Callable[[str], float]) -> Cluster:
    """Return a cluster whose nodes have the bytes of memory that are left, told by name, but those that have not said how much that is."""
    known = (replace(node, memory_bytes=max(1, round(left(node.name)))) if node.memory_bytes else node for node in cluster.nodes)
    return replace(cluster, nodes=tuple(known))


def plan_key(message: PrepareModel) -> str:
    """Return the name of a plan: equal for equal model, shapes and options."""
    content = (message.model, sorted((name, tuple(shape)) for name, shape in message.shapes.items()), message.options)
    return hashlib.sha256(repr(content).encode()).hexdigest()


def standby_key(model: str, state: Sequence[tuple[str, str]] = (), top: Sequence[tuple[str, int]] = ()) -> str:
    """Return the name of a model's standby; it has one more for each state, and for each choice of what is answered."""
    return hashlib.sha256(f"standby of {model}{state or ''}{top or ''}".encode()).hexdigest()


def world_of(cluster: Cluster) -> str:
    """Return the name of what a plan is made for: equal for equal agents, profiles and links."""
    return hashlib.sha256(repr(cluster).encode()).hexdigest()
