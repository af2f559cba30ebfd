"""A call to measure nodes that has begun: who measures now, what is known already, and what its caller is told."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from bbgrap.cluster.names import name_order
from bbgrap.cluster.types import NodeProfile
from bbgrap.control.coordinator_events import RoutingId
from bbgrap.control.coordinator_instructions import CoordinatorInstruction, ToClient
from bbgrap.control.membership import Member
from bbgrap.protocol.client_messages import Failed, Profiles, Progress
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.messages import Measure, MeasureLinks


@dataclass(slots=True)
class MeasuringTurn:
    """An agent that measures now, what it was asked, and when it was for the first and for the last time."""

    member: Member
    question: Measure | MeasureLinks
    began: float
    asked: float


@dataclass(slots=True)
class MeasuringRound:
    """A call to measure that has begun.

    Invariants: every node of the call is in `working`, `unlinked` (measured but for its links), `linking` or `done`, or `faults` says why
    it is not; while anybody is `working`, nobody is `linking`.
    """

    identity: RoutingId
    call: int
    working: dict[RoutingId, MeasuringTurn]
    unlinked: deque[tuple[Member, NodeProfile]] = field(default_factory=deque)
    linking: tuple[MeasuringTurn, NodeProfile] | None = None
    done: list[NodeProfile] = field(default_factory=list)
    without_links: list[NodeProfile] = field(default_factory=list)
    """Of nodes whose links could not be measured; how fast they work is known all the same."""
    faults: dict[str, str] = field(default_factory=dict)
    """By node."""

    @property
    def turns(self) -> tuple[MeasuringTurn, ...]:
        """Who measures now."""
        return tuple(self.working.values()) if self.linking is None else (self.linking[0],)

    @property
    def members(self) -> tuple[Member, ...]:
        """Of whom it will be known."""
        return (*(turn.member for turn in self.turns), *(member for member, _ in self.unlinked))

    def leave_out(self, member: Member, fault: str) -> None:
        """Go on without a member."""
        self.working.pop(member.identity, None)
        self.unlinked = deque(entry for entry in self.unlinked if entry[0] is not member)
        if self.linking is not None and self.linking[0].member is member:
            self.linking = None
        self.faults[member.name] = fault

    def progress(self) -> list[CoordinatorInstruction]:
        """Return who measures now, and how many have: themselves, or their links."""
        if not self.identity:
            return []
        names = ", ".join(turn.member.name for turn in self.turns)[:200]
        what, done = ("", len(self.unlinked)) if self.linking is None else ("links of ", len(self.done))
        total = len(self.turns) + len(self.unlinked) + len(self.done) + len(self.faults)
        return [ToClient(self.identity, Progress(self.call, f"measuring {what}{names}", done, total))]

    def answer(self) -> list[CoordinatorInstruction]:
        """Return what the caller is told in the end."""
        profiles = tuple(sorted(self.done, key=lambda profile: name_order(profile.name)))
        if not self.faults:
            return [ToClient(self.identity, Profiles(self.call, profiles))]
        names = ", ".join(profile.name for profile in profiles) or "none"
        return [ToClient(self.identity, Failed(self.call, Fault.EXECUTION, f"{'; '.join(self.faults.values())}; measured: {names}"))]
