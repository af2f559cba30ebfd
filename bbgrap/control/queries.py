"""What clients ask that changes nothing that runs: who is there, how machines are, and what is known of them.

Laws: agents are inspected once for all who ask meanwhile; who says nothing for `INSPECT_WITHIN_S` is named; every call is answered once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count

from bbgrap.control.audit import peer_of
from bbgrap.control.coordinator_events import RoutingId
from bbgrap.control.coordinator_instructions import (
    Audit,
    CoordinatorInstruction,
    ReadMachine,
    RemoveProfile,
    SaveProfile,
    ToAgent,
    ToClient,
)
from bbgrap.control.membership import Member, Members
from bbgrap.control.planning import Planning
from bbgrap.control.plans import Caller, ServedPlan
from bbgrap.control.status import StatusReader
from bbgrap.protocol import inspection
from bbgrap.protocol.client_messages import Failed, Fault, ListNodes, Nodes, Profiles, SetProfile
from bbgrap.protocol.inspection import (
    Inspect,
    Inspected,
    Inspection,
    InspectNodes,
    KnownProfiles,
    ListProfiles,
    MachineFacts,
    RequestedPlan,
)
from bbgrap.protocol.status_messages import ReadPlan, ReadStatus

INSPECT_WITHIN_S = 3.0
"""How long agents may take to say how their machines are. Chosen: they need a quarter of a second."""
MAX_ASKING = 64
"""Calls that wait for one inspection; further ones are refused as busy."""
MAX_MODELS = 64
"""Plans that an inspection tells of: those asked for last."""
_MAX_TEXT = 300
"""Characters of what is said of one plan."""

Question = ListNodes | ReadStatus | ReadPlan | SetProfile | ListProfiles | inspection.ForgetProfile | InspectNodes


@dataclass(slots=True)
class _Round:
    """An inspection that has begun: whom it waits for, and what has come."""

    number: int
    began: float
    callers: list[Caller]
    waiting: set[str]
    """Agents, and the empty name for the coordinator's own machine."""
    found: dict[str, inspection.NodeFacts] = field(default_factory=dict)
    clocks: dict[str, tuple[float, float]] = field(default_factory=dict)
    """What each clock showed, and when that was heard."""
    own: MachineFacts | None = None


class Queries:
    """Answers at once, but for inspections, which take a moment."""

    def __init__(self, members: Members, planning: Planning, status: StatusReader) -> None:
        """Start with nothing asked."""
        self.members = members
        self.planning = planning
        self.status = status
        self._round: _Round | None = None
        self._numbers = count(1)

    def is_known(self, caller: Caller) -> bool:
        """Whether a call will still be answered."""
        return self._round is not None and caller in self._round.callers

    def take(self, identity: RoutingId, message: Question, now: float) -> list[CoordinatorInstruction]:
        """Answer a question, or begin to."""
        match message:
            case ListNodes(call):
                return [ToClient(identity, Nodes(call, self.status.nodes()))]
            case ReadStatus():
                return [ToClient(identity, self.status.read(message, now))]
            case ReadPlan(call):
                unknown = Failed(call, Fault.UNKNOWN_PLAN, "plan: the coordinator does not have it (any more)")
                return [ToClient(identity, self.status.show(message) or unknown)]
            case SetProfile(call, profile):
                self.members.overrides[profile.name] = profile
                told = Audit("profile set", peer_of(identity), {"node": profile.name})
                answer = ToClient(identity, Profiles(call, (profile,)))
                return [answer, SaveProfile(profile, by_hand=True), told, *self.planning.world_changed(now)]
            case ListProfiles(call):
                measured, by_hand = (
                    tuple(known[name] for name in sorted(known)) for known in (self.members.measured, self.members.overrides)
                )
                return [ToClient(identity, KnownProfiles(call, measured, by_hand))]
            case inspection.ForgetProfile():
                return self._forget(identity, message, now)
            case InspectNodes(call):
                return self._begin((identity, call), now)

    def _forget(self, identity: RoutingId, message: inspection.ForgetProfile, now: float) -> list[CoordinatorInstruction]:
        kinds = [(True, self.members.overrides), *([(False, self.members.measured)] if message.measured else [])]
        gone = {by_hand: known.pop(message.name) for by_hand, known in kinds if message.name in known}
        if not gone:
            what = "nothing is known of it" if message.measured else "no profile by hand is known of it"
            return [ToClient(identity, Failed(message.call, Fault.USAGE, f"node '{message.name}': {what}"))]
        measured, by_hand = (tuple(profile for kind, profile in gone.items() if kind is hand) for hand in (False, True))
        return [
            ToClient(identity, KnownProfiles(message.call, measured, by_hand)),
            *(RemoveProfile(message.name, by_hand=kind) for kind in gone),
            Audit("profile removed", peer_of(identity), {"node": message.name}),
            *self.planning.world_changed(now),
        ]

    # --- inspections ------------------------------------------------------------------------------------------------------------

    def _begin(self, caller: Caller, now: float) -> list[CoordinatorInstruction]:
        if self._round is not None:
            if len(self._round.callers) >= MAX_ASKING:
                return [ToClient(caller[0], Failed(caller[1], Fault.BUSY, f"inspection: {MAX_ASKING} calls wait already; try again later"))]
            if caller not in self._round.callers:
                self._round.callers.append(caller)
            return []
        alive = self.members.alive()
        running = self._round = _Round(next(self._numbers), now, [caller], {"", *(member.name for member in alive)})
        return [ReadMachine(), *(ToAgent(member.identity, Inspect(running.number)) for member in alive)]

    def inspected(self, member: Member, message: Inspected, now: float) -> list[CoordinatorInstruction]:
        """Take how an agent's machine is."""
        running = self._round
        if running is None or message.inspection != running.number or member.name not in running.waiting:
            return []
        running.waiting.discard(member.name)
        running.clocks[member.name] = (message.facts.clock_s, now)
        running.found[member.name] = inspection.NodeFacts(member.name, message.facts, 0.0, now - running.began)
        return self._answer(running, now)

    def machine_read(self, facts: MachineFacts, now: float) -> list[CoordinatorInstruction]:
        """Take how the coordinator's own machine is."""
        running = self._round
        if running is None or "" not in running.waiting:
            return []
        running.waiting.discard("")
        running.own, running.clocks[""] = facts, (facts.clock_s, now)
        return self._answer(running, now)

    def lost(self, member: Member, now: float) -> list[CoordinatorInstruction]:
        """Go on without an agent that is gone: it is not silent."""
        running = self._round
        if running is None:
            return []
        running.waiting.discard(member.name)
        return self._answer(running, now)

    def overdue(self, now: float) -> list[CoordinatorInstruction]:
        """Answer without those who say nothing."""
        running = self._round
        return [] if running is None or now - running.began < INSPECT_WITHIN_S else self._answer(running, now, late=True)

    def _answer(self, running: _Round, now: float, *, late: bool = False) -> list[CoordinatorInstruction]:
        if running.waiting and not late:
            return []
        self._round = None
        own = running.clocks.get("")
        nodes = tuple(self._node(found, running.clocks[name], own) for name, found in sorted(running.found.items()))
        silent = tuple(sorted(running.waiting - {""}))
        models = tuple(self._models(now))
        return [ToClient(identity, Inspection(call, running.own, nodes, silent, models)) for identity, call in running.callers]

    def _node(self, found: inspection.NodeFacts, heard: tuple[float, float], own: tuple[float, float] | None) -> inspection.NodeFacts:
        """Compare clocks: each was read between the question and its answer."""
        if own is None:
            return found
        return replace(found, ahead_s=(heard[0] - heard[1]) - (own[0] - own[1]))

    def _models(self, now: float) -> Iterable[RequestedPlan]:
        lately = sorted((p for p in self.planning.plans.values() if p.is_used(now)), key=lambda plan: -plan.asked)
        return map(_served, lately[:MAX_MODELS])


def _served(plan: ServedPlan) -> RequestedPlan:
    serving = plan.serving or (plan.helper.serving if plan.helper is not None else [])
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape)) or '-'}" for name, shape in plan.shapes.items())[:_MAX_TEXT]
    nodes = tuple(dict.fromkeys(name for variant in serving for name in variant.parts))
    return RequestedPlan(plan.model, shapes, nodes, "" if plan.serving else _why_not(plan)[:_MAX_TEXT], len(plan.waiting))


def _why_not(plan: ServedPlan) -> str:
    """Return why no variant of a plan serves."""
    if plan.quarantine:
        return plan.quarantine
    if plan.failed:
        return next(reason for _, reason in plan.failed.values())
    if plan.job is not None:
        return "it is being planned"
    if plan.timing is not None:
        return "its variants are being timed"
    if plan.is_arriving:
        return "it is being loaded"
    away = sorted({name for variant in plan.variants for name in variant.away})
    return f"its plan needs {', '.join(away)}, away now" if away else "too few requests came with these shapes for a plan"
