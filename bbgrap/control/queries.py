"""What clients ask that changes nothing that runs: who is there, how machines are, and what is known of them.

Laws: agents are inspected once for all who ask meanwhile; who says nothing for `INSPECT_WITHIN_S` is named; every call is answered once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from bbgrap.cluster.names import name_order
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
from bbgrap.control.plan_reports import why_not
from bbgrap.control.planning import Planning
from bbgrap.control.plans import Caller, ServedPlan
from bbgrap.control.status import StatusReader
from bbgrap.protocol import inspection
from bbgrap.protocol.client_messages import Failed, ListNodes, Nodes, Profiles, SetProfile
from bbgrap.protocol.faults import Fault
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
    callers: dict[Caller, None]
    waiting: set[str]
    """Agents, and the empty name for the coordinator's own machine."""
    found: dict[str, tuple[MachineFacts, float]] = field(default_factory=dict)
    """How each machine is, and when that was heard."""


class Queries:
    """Answers at once, but for inspections, which take a moment."""

    def __init__(self, members: Members, planning: Planning, status: StatusReader) -> None:
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
                    tuple(known[name] for name in sorted(known, key=name_order))
                    for known in (self.members.measured, self.members.overrides)
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
            self._round.callers[caller] = None
            return []
        alive = self.members.alive()
        running = self._round = _Round(next(self._numbers), now, {caller: None}, {"", *(member.name for member in alive)})
        return [ReadMachine(), *(ToAgent(member.identity, Inspect(running.number)) for member in alive)]

    def inspected(self, member: Member, message: Inspected, now: float) -> list[CoordinatorInstruction]:
        """Take how an agent's machine is."""
        running = self._round
        return [] if running is None or message.inspection != running.number else self._found(running, member.name, message.facts, now)

    def machine_read(self, facts: MachineFacts, now: float) -> list[CoordinatorInstruction]:
        """Take how the coordinator's own machine is."""
        return [] if self._round is None else self._found(self._round, "", facts, now)

    def _found(self, running: _Round, name: str, facts: MachineFacts, now: float) -> list[CoordinatorInstruction]:
        if name not in running.waiting:
            return []
        running.waiting.remove(name)
        running.found[name] = facts, now
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
        own, own_at = running.found.pop("", (None, 0.0))
        nodes = []
        for name in sorted(running.found, key=name_order):
            facts, at = running.found[name]
            # Each clock was read between the question and its answer.
            ahead_s = 0.0 if own is None else (facts.clock_s - at) - (own.clock_s - own_at)
            nodes.append(inspection.NodeFacts(name, facts, ahead_s, at - running.began))
        silent = tuple(sorted(running.waiting - {""}, key=name_order))
        lately = sorted((p for p in self.planning.plans.values() if p.is_used(now)), key=lambda plan: -plan.asked)
        models = tuple(map(_served, lately[:MAX_MODELS]))
        return [ToClient(identity, Inspection(call, own, tuple(nodes), silent, models)) for identity, call in running.callers]


def _served(plan: ServedPlan) -> RequestedPlan:
    serving = [] if plan.source is None else plan.source.serving
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape)) or '-'}" for name, shape in plan.shapes.items())[:_MAX_TEXT]
    nodes = tuple(dict.fromkeys(name for variant in serving for name in variant.parts))
    return RequestedPlan(plan.model, shapes, nodes, "" if plan.serving else why_not(plan)[:_MAX_TEXT], len(plan.waiting))
