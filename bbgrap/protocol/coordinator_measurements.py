"""Measuring nodes for clients: how fast they work all at once, as they will, then their links one node after the other.

Laws: links are measured while nothing else is; who cannot be measured does not keep the others from it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from itertools import count

from bbgrap.cluster.types import COORDINATOR, NodeProfile
from bbgrap.protocol.client_messages import Failed, Fault, MeasureNodes, Profiles, Progress
from bbgrap.protocol.coordinator_events import HostPings, Identity, Instruction, Settings, ToAgent, ToClient
from bbgrap.protocol.coordinator_members import Member, Members
from bbgrap.protocol.messages import AnswerPings, LinksMeasured, Measure, Measured, MeasureLinks, Peer


@dataclass(frozen=True, slots=True)
class _Turn:
    """An agent that measures now: its links if its profile is there, else how fast it works."""

    member: Member
    number: int
    began: float
    profile: NodeProfile | None = None


@dataclass(slots=True)
class _Round:
    """A call to measure.

    Invariants: every node of the call has a turn, is in `unlinked` (measured but for its links) or `done`, or `faults` says why not.
    """

    identity: Identity
    call: MeasureNodes
    begun: bool = False
    turns: dict[Identity, _Turn] = field(default_factory=dict)
    unlinked: deque[tuple[Member, NodeProfile]] = field(default_factory=deque)
    done: list[NodeProfile] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def answer(self) -> ToClient:
        """Return what the caller is told in the end."""
        profiles = tuple(sorted(self.done, key=lambda profile: profile.name))
        if not self.faults:
            return ToClient(self.identity, Profiles(self.call.call, profiles))
        names = ", ".join(profile.name for profile in profiles) or "none"
        return ToClient(self.identity, Failed(self.call.call, Fault.EXECUTION, f"{'; '.join(self.faults)}; measured: {names}"))

    def progress(self) -> ToClient:
        """Return who measures now, and how many have: themselves, or their links."""
        names = ", ".join(turn.member.name for turn in self.turns.values())[:200]
        of_links = all(turn.profile is not None for turn in self.turns.values())
        stage, done = (f"measuring links of {names}", len(self.done)) if of_links else (f"measuring {names}", len(self.unlinked))
        total = len(self.turns) + len(self.unlinked) + len(self.done) + len(self.faults)
        return ToClient(self.identity, Progress(self.call.call, stage, done, total))


class Measurements:
    """Who is measured for whom.

    Invariants: only the first round has begun, and it has turns.
    """

    def __init__(self, settings: Settings, members: Members) -> None:
        """Start idle."""
        self.settings = settings
        self.members = members
        self._rounds: deque[_Round] = deque()
        self._numbers = count(1)

    def is_known(self, caller: tuple[Identity, int]) -> bool:
        """Whether a call will still be answered."""
        return any((entry.identity, entry.call.call) == caller for entry in self._rounds)

    def begin(self, identity: Identity, message: MeasureNodes, now: float) -> list[Instruction]:
        """Queue a call."""
        if self.is_known((identity, message.call)):
            return []
        if not self._named(message.name):
            there = ", ".join(m.name for m in self.members.alive()) or "none"
            reason = f"node '{message.name}': no live agent has that name; there are: {there}"
            fault = Fault.USAGE if message.name and self.members.by_name else Fault.UNAVAILABLE
            return [ToClient(identity, Failed(message.call, fault, reason))]
        self._rounds.append(_Round(identity, message))
        return self._go_on(now)

    def measured(self, member: Member, message: Measured, now: float) -> list[Instruction]:
        """Take the profile of a machine, and go on."""
        turn = self._end_turn(member, message.measurement)
        if turn is None or turn.profile is not None:
            return []
        if message.profile is None:
            return self._fail(f"agent '{member.name}' could not be measured: {message.reason}", now)
        self._rounds[0].unlinked.append((member, message.profile))
        return self._go_on(now)

    def links_measured(self, member: Member, message: LinksMeasured, now: float) -> list[Instruction]:
        """Take the links of a machine that was measured before, and go on."""
        turn = self._end_turn(member, message.measurement)
        if turn is None or turn.profile is None:
            return []
        member.measured = replace(turn.profile, links=message.links)
        if message.reason:
            return self._fail(f"the links of agent '{member.name}' could not be measured: {message.reason}", now)
        self._rounds[0].done.append(member.measured)
        return self._go_on(now)

    def lost(self, member: Member, now: float) -> list[Instruction]:
        """Go on without an agent that is gone."""
        if not self._rounds:
            return []
        first = self._rounds[0]
        unlinked = deque(entry for entry in first.unlinked if entry[0] is not member)
        if first.turns.pop(member.identity, None) is None and len(unlinked) == len(first.unlinked):
            return []
        first.unlinked = unlinked
        return self._fail(f"agent '{member.name}' was lost before it was measured", now)

    def overdue(self, now: float) -> list[Instruction]:
        """Go on without agents that take too long."""
        done: list[Instruction] = []
        for turn in list(self._rounds[0].turns.values()) if self._rounds else ():
            if now - turn.began > self.settings.measure_within_s:
                self._end_turn(turn.member, turn.number)
                done += self._fail(f"agent '{turn.member.name}' was not measured in {self.settings.measure_within_s:.0f} s", now)
        return done

    def _named(self, name: str) -> list[Member]:
        return [member for member in self.members.alive() if name in {"", member.name}]

    def _is_unknown(self, member: Member) -> bool:
        known = self.members.known_of(member)
        return known is None or not known.work

    def _end_turn(self, member: Member, number: int) -> _Turn | None:
        """Return the turn that an agent's answer belongs to, if it still has it."""
        turn = self._rounds[0].turns.get(member.identity) if self._rounds else None
        return self._rounds[0].turns.pop(member.identity) if turn is not None and turn.number == number else None

    def _fail(self, reason: str, now: float) -> list[Instruction]:
        self._rounds[0].faults.append(reason)
        return self._go_on(now)

    def _go_on(self, now: float) -> list[Instruction]:
        """Let measure whoever can now; answer what is done, and begin what comes next."""
        done: list[Instruction] = []
        while self._rounds:
            first = self._rounds[0]
            if not first.begun:
                done += self._begin_round(first, now)
            elif not first.turns and first.unlinked:
                done += self._begin_links(first, now)
            if first.turns:
                return [*done, first.progress()]
            self._rounds.popleft()
            done += [HostPings(()), first.answer()]
        return done

    def _begin_round(self, first: _Round, now: float) -> list[Instruction]:
        first.begun = True
        members = [member for member in self._named(first.call.name) if first.call.again or self._is_unknown(member)]
        first.turns = {member.identity: _Turn(member, next(self._numbers), now) for member in members}
        return [ToAgent(turn.member.identity, Measure(turn.number)) for turn in first.turns.values()]

    def _begin_links(self, first: _Round, now: float) -> list[Instruction]:
        member, profile = first.unlinked.popleft()
        turn = first.turns[member.identity] = _Turn(member, next(self._numbers), now, profile)
        alive = self.members.alive()
        peers = tuple(Peer(device, m.name, m.join.data_address) for device, m in enumerate(alive))
        others = (*(peer for peer in peers if peer.name != member.name), Peer(len(peers), COORDINATOR, self.settings.data_address))
        allow: list[Instruction] = [HostPings(peers), *(ToAgent(m.identity, AnswerPings(peers)) for m in alive)]
        return [*allow, ToAgent(member.identity, MeasureLinks(turn.number, others))]
