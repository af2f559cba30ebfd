"""Measuring nodes for clients: how fast they work all at once, as they will, then their links one node after the other.

A call waits until no plan is made, loaded or timed, for `QUIET_WITHIN_S` at most: these take processors and links from what is measured,
and a wrong profile makes all plans wrong. While it is served none is begun.

What nobody called for is measured while nothing else goes on, and what was measured long ago is measured again then. Where requests never
cease, one node after the other is *set aside* to be measured for the first time, while they run on the others: a node that is not known
makes plans slow, which would be so for ever.

Laws: links are measured while nothing else is; who cannot be measured does not keep the others from it; no request that can run on nothing
but the node that is set aside waits for its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import replace
from itertools import count

from bbgrap.cluster.names import name_order
from bbgrap.cluster.speeds import shares_of
from bbgrap.cluster.types import NodeProfile
from bbgrap.control.coordinator_events import RoutingId
from bbgrap.control.coordinator_instructions import Audit, CoordinatorInstruction, Log, RemoveProfile, SaveProfile, ToAgent, ToClient
from bbgrap.control.measuring_round import MeasuringRound, MeasuringTurn
from bbgrap.control.membership import Member, Members
from bbgrap.control.planning import Planning
from bbgrap.protocol.client_messages import Failed, MeasureNodes, MeasureUnknown, Progress
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.messages import EndMeasuring, LinksMeasured, Measure, Measured, MeasureLinks

MEASURE_WITHIN_S = 120.0
"""How long an agent may measure itself, or its links."""
ASK_AGAIN_S = 10.0
"""When it is asked once more: the question is lost if the agent made its connection anew; who measures already lets it pass."""

MAX_WAITING = 64
"""Calls that wait to be begun; further ones are refused as busy."""


IDLE_S = 2.0
"""How long nothing may have gone on before nodes are measured that nobody asked to measure. Chosen."""
LATER_S = 30.0
"""When a measurement is tried again that was broken off, or that has failed once; twice as long each further time."""
LONGEST_S = 3600.0
"""Chosen: so often a worker may end that has not the memory to be measured."""
BUSY_S = 10.0
"""How long a node may be unknown for want of an idle moment, before it is set aside. Chosen."""
RUNS_OUT_S = 5.0
"""How long what runs on a node that is set aside may take; then it is tried later."""
STALE_S = 3600.0
"""After so long what was measured is measured again at the next idle moment, once: it may have been a busy one, and machines change."""
CHANGED = 0.2
"""How much faster or slower a node must be then for plans to be told, and, five times that, its links. Chosen."""
CHANGED_CALLED = 0.1
"""As much where a client has called for it. Chosen: what is the same as before differs by less."""
QUIET_WITHIN_S = 20.0
"""How long a call waits for a moment in which the cluster does nothing of its own. Chosen: most plans are timed by then."""


class Profiling:
    """Who is measured for whom.

    Invariants: after every event, whoever has begun measures; calls wait only while another one has begun, or the cluster is at work.
    """

    def __init__(self, members: Members, planning: Planning) -> None:
        self.members = members
        self._planning = planning
        self._round: MeasuringRound | None = None
        self._waiting: deque[tuple[RoutingId, MeasureNodes | MeasureUnknown]] = deque()
        self._numbers = count(1)
        self._again_at = 0.0
        self._failed: dict[str, tuple[float, float]] = {}
        """How long to wait, and until when, before a node is measured again by itself; by name."""
        self._fresh_until: dict[str, float] = {}
        """When what was measured of a node is measured again, by name."""
        self._all_known = 0.0
        """When all nodes that could be measured were known last, in seconds."""
        self._aside_since = 0.0
        self._waits_since: float | None = None
        """Since when a call waits for the cluster to be done with its own work."""
        self._untold_since: float | None = None
        """When the last node was measured that plans have not been told of; None: they know all."""
        self.has_news = False
        """Whether there are profiles that plans have not been told of."""

    def is_known(self, caller: tuple[RoutingId, int]) -> bool:
        """Whether a call will still be answered."""
        begun = self._round is not None and (self._round.identity, self._round.call) == caller
        return begun or any((identity, message.call) == caller for identity, message in self._waiting)

    def begin(self, identity: RoutingId, message: MeasureNodes | MeasureUnknown, now: float) -> list[CoordinatorInstruction]:
        """Queue a call."""
        if self.is_known((identity, message.call)):
            return []
        if not self._asked_for(message):
            name = message.name if isinstance(message, MeasureNodes) else ""
            there = ", ".join(m.name for m in self.members.alive()) or "none"
            reason = f"node '{name}': no live agent has that name; there are: {there}"
            fault = Fault.USAGE if name and self.members.by_name else Fault.UNAVAILABLE
            return [ToClient(identity, Failed(message.call, fault, reason))]
        if len(self._waiting) >= MAX_WAITING:
            return [ToClient(identity, Failed(message.call, Fault.BUSY, f"measuring: {MAX_WAITING} calls wait already; try again later"))]
        running = self._round
        if running is not None and not running.identity and self._is_under_way(running, message):
            running.identity, running.call = identity, message.call
            return self._go_on(now)
        self._waiting.append((identity, message))
        if running is None:
            return self._go_on(now)
        return [] if running.identity else self._break_off(running, now)

    def cancel(self, caller: tuple[RoutingId, int], now: float) -> list[CoordinatorInstruction]:
        """Measure nothing more for a call that nobody waits for."""
        self._waiting = deque(entry for entry in self._waiting if (entry[0], entry[1].call) != caller)
        running = self._round
        if running is None or (running.identity, running.call) != caller:
            return []
        running.identity = b""
        return self._break_off(running, now)

    def measured(self, member: Member, message: Measured, now: float) -> list[CoordinatorInstruction]:
        """Take how fast an agent works, and go on."""
        running = self._round
        turn = running.working.get(member.identity) if running is not None else None
        if running is None or turn is None or turn.question.measurement != message.measurement:
            return []
        if message.profile is None:
            running.leave_out(member, f"agent '{member.name}' could not be measured: {message.reason}")
        else:
            del running.working[member.identity]
            running.unlinked.append((member, message.profile))
        return self._go_on(now)

    def links_measured(self, member: Member, message: LinksMeasured, now: float) -> list[CoordinatorInstruction]:
        """Take the links of an agent, and go on."""
        running = self._round
        if running is None or running.linking is None:
            return []
        turn, profile = running.linking
        if turn.member is not member or turn.question.measurement != message.measurement:
            return []
        known = replace(profile, links=message.links)
        if message.reason:
            running.without_links.append(profile)
            running.leave_out(member, f"the links of agent '{member.name}' could not be measured: {message.reason}")
        else:
            running.linking = None
            running.done.append(known)
        return self._go_on(now)

    def lost(self, member: Member, now: float) -> list[CoordinatorInstruction]:
        """Go on without an agent that is gone."""
        running = self._round
        if running is None or all(member is not other for other in running.members):
            return []
        running.leave_out(member, f"agent '{member.name}' was lost before it was measured")
        return self._go_on(now)

    def overdue(self, now: float) -> list[CoordinatorInstruction]:
        """Ask again who may not have heard it, and go on without agents that take too long."""
        running = self._round
        if running is None:
            return []
        again = [turn for turn in running.turns if now - turn.asked > ASK_AGAIN_S]
        for turn in again:
            turn.asked = now
        done: list[CoordinatorInstruction] = [ToAgent(turn.member.identity, turn.question) for turn in again]
        late = [turn.member for turn in running.turns if now - turn.began > MEASURE_WITHIN_S]
        for member in late:
            running.leave_out(member, f"agent '{member.name}' was not measured in {MEASURE_WITHIN_S:.0f} s")
        return [*done, *self._go_on(now)] if late else done

    def _asked_for(self, message: MeasureNodes | MeasureUnknown) -> list[Member]:
        """Return whom a call is about."""
        name = message.name if isinstance(message, MeasureNodes) else ""
        return [member for member in self.members.alive() if name in {"", member.name}]

    def _to_measure(self, message: MeasureNodes | MeasureUnknown, now: float, *, stale: bool = False) -> list[Member]:
        """Return who is measured for a call; with `stale` also whom it was long ago."""
        members = self._asked_for(message)
        if isinstance(message, MeasureNodes):
            return members
        due = [member for member in self._due(now) if member in members]
        return [member for member in due if self._is_unknown(member) or (stale and self._is_stale(member, now))]

    def _is_under_way(self, running: MeasuringRound, message: MeasureNodes | MeasureUnknown) -> bool:
        """Whether a round finds out all that a call wants to know: what it has found is not to be thrown away."""
        there = {member.name for member in running.members} | {profile.name for profile in running.done}
        unknown = {member.name for member in self.members.alive() if self._is_unknown(member)}
        return isinstance(message, MeasureUnknown) and bool(unknown) and unknown <= there

    def _is_unknown(self, member: Member) -> bool:
        known = self.members.known_of(member)
        return known is None or not known.work

    def _is_stale(self, member: Member, now: float) -> bool:
        return member.name in self.members.measured and now >= self._fresh_until.setdefault(member.name, now + STALE_S)

    def _go_on(self, now: float) -> list[CoordinatorInstruction]:
        """Let measure whoever is next, answer what is done, and begin what waits; plans are begun unless that is for a client."""
        done = self._advance(now)
        self._planning.pause(is_paused=self._round is not None and bool(self._round.identity))
        return done

    def _advance(self, now: float) -> list[CoordinatorInstruction]:
        done: list[CoordinatorInstruction] = []
        while True:
            match self._round:
                case None if not self._waiting:
                    self._waits_since = None
                    return done
                case None if self._must_wait(now):
                    return [*done, *self._say_why(now)]
                case None:
                    done += self._begin_round(*self._waiting.popleft(), now)
                case MeasuringRound(turns=()) as running if running.unlinked:
                    done += self._begin_links(running, *running.unlinked.popleft(), now)
                case MeasuringRound(turns=()) as running:
                    self._round = None
                    told = self._note(running, now)
                    done += [*self._keep(running, now), *(running.answer() if running.identity else told)]
                case running:
                    return [*done, *running.progress()]

    def _must_wait(self, now: float) -> bool:
        """Whether the next call comes before the cluster is done with its own work; what nobody called for has looked already."""
        identity, message = self._waiting[0]
        waits_s = 0.0 if self._waits_since is None else now - self._waits_since
        is_early = self._planning.is_at_work and waits_s < QUIET_WITHIN_S
        return bool(identity) and is_early and bool(self._to_measure(message, now))

    def _say_why(self, now: float) -> list[CoordinatorInstruction]:
        if self._waits_since is not None:
            return []
        self._waits_since = now
        identity, message = self._waiting[0]
        return [ToClient(identity, Progress(message.call, "waiting for plans that are made, loaded or timed", 0, 0))]

    def _begin_round(self, identity: RoutingId, message: MeasureNodes | MeasureUnknown, now: float) -> list[CoordinatorInstruction]:
        """Ask everybody at once; agents that went while the call waited are none of its nodes."""
        self._waits_since = None
        members = self._to_measure(message, now, stale=not identity)
        # Whatever comes of it: what is known already is not tried again and again.
        self._fresh_until |= dict.fromkeys((member.name for member in members), now + STALE_S)
        self.members.forget_gone(self._fresh_until)
        turns = {member.identity: MeasuringTurn(member, Measure(next(self._numbers)), now, now) for member in members}
        self._round = MeasuringRound(identity, message.call, turns)
        return [ToAgent(turn.member.identity, turn.question) for turn in turns.values()]

    def _begin_links(self, running: MeasuringRound, member: Member, profile: NodeProfile, now: float) -> list[CoordinatorInstruction]:
        """Ask one agent, and let everybody answer its pings."""
        turn = MeasuringTurn(member, MeasureLinks(next(self._numbers), self.members.peers_of(member)), now, now)
        running.linking = (turn, profile)
        return [ToAgent(member.identity, turn.question)]

    def _keep(self, running: MeasuringRound, now: float) -> list[CoordinatorInstruction]:
        """Believe what was measured, now and after a restart, unless it is as it was known: plans are not made anew for noise."""
        changed, before = CHANGED_CALLED if running.identity else CHANGED, self.members.measured
        measured = (*running.done, *running.without_links)
        known = [profile for profile in measured if not _is_alike(before.get(profile.name), profile, changed)]
        for profile in known:
            self.members.measured.pop(profile.name, None)
            self.members.measured[profile.name] = profile
        gone = self.members.forget_gone(self.members.measured)
        if known and self.members.aside:
            # Those that come after it are set aside by one of the next ticks: one plan is made of all that is known then.
            self._untold_since = now
        elif known:
            self.has_news, self._untold_since = True, None
        saved = (SaveProfile(profile, by_hand=False) for profile in known)
        forgotten = (RemoveProfile(name, by_hand=False) for name in gone)
        return [*saved, *forgotten, *(Audit("measured", {"agent": profile.name}) for profile in known)]

    # --- in the background --------------------------------------------------------------------------------------------------------

    def in_background(self, now: float, busy: Collection[str], *, is_asked: bool) -> list[CoordinatorInstruction]:
        """Measure the nodes of which nothing is known, once nothing else has gone on for a while; break that off when something does.

        `busy` are the nodes that run or load something, and with `is_asked` there are requests. Where the cluster is never idle, one that
        it can spare is set aside.
        """
        is_idle = not is_asked and not self._planning.is_at_work
        running, aside = self._round, self.members.by_name.get(self.members.aside)
        unknown = [member for member in self._due(now) if self._is_unknown(member)]
        if not is_idle:
            self._again_at = max(self._again_at, now + IDLE_S)
        if running is not None:
            is_disturbed = not is_idle if aside is None else aside.name in busy
            return self._break_off(running, now) if is_disturbed and not running.identity else []
        if self._waiting:
            return self._go_on(now)
        if aside is not None and aside in unknown:
            return self._go_on_aside(aside, now, is_busy=aside.name in busy)
        self.members.aside = ""
        if not unknown:
            self._all_known = now
        if is_idle and now >= self._again_at and (unknown or any(self._is_stale(member, now) for member in self._due(now))):
            self._again_at = now + LATER_S
            self._waiting.append((b"", MeasureUnknown(0)))
        elif unknown and not is_idle and now > self._all_known + BUSY_S:
            ranked = sorted(unknown, key=lambda member: (member.name in busy, name_order(member.name)))
            self.members.aside = next((member.name for member in ranked if self._planning.can_spare(member.name, now)), "")
            self._aside_since = now
        if not self.members.aside and self._untold_since is not None and (not unknown or now > self._untold_since + IDLE_S):
            self.has_news, self._untold_since = True, None
        return self._go_on(now)

    def _go_on_aside(self, member: Member, now: float, *, is_busy: bool) -> list[CoordinatorInstruction]:
        """Measure the node that is set aside once nothing runs on it any more; if something does for long, later."""
        if is_busy:
            if now > self._aside_since + RUNS_OUT_S:
                self._put_off(member.name, now)
            return []
        self._waiting.append((b"", MeasureNodes(0, member.name)))
        said = f"'{member.name}' is measured; requests run on the others meanwhile"
        return [Log(said, node=member.name), *self._go_on(now)]

    def _put_off(self, name: str, now: float) -> float:
        """Measure a node later, ever more seldom; returns how long that is away, in seconds."""
        wait = min(LONGEST_S, 2 * self._failed[name][0]) if name in self._failed else LATER_S
        self._failed[name] = wait, now + wait
        self.members.forget_gone(self._failed)
        return wait

    def _break_off(self, running: MeasuringRound, now: float) -> list[CoordinatorInstruction]:
        """End a round; of nodes whose links have not been measured by then nothing is kept."""
        self._again_at = now + LATER_S
        if self.members.aside:
            self._put_off(self.members.aside, now)
            self.members.aside = ""
        ended = [ToAgent(turn.member.identity, EndMeasuring(turn.question.measurement)) for turn in running.turns]
        running.working.clear()
        running.unlinked.clear()
        running.linking = None
        return [*ended, *self._go_on(now)]

    def _due(self, now: float) -> list[Member]:
        return [member for member in self.members.alive() if self._failed.get(member.name, (0.0, 0.0))[1] <= now]

    def _note(self, running: MeasuringRound, now: float) -> list[CoordinatorInstruction]:
        """Return what is said of a round that nobody called for. What has failed may have ended a worker: it is tried ever more seldom."""
        done: list[CoordinatorInstruction] = [Log(f"measured {profile.name}") for profile in running.done]
        known = {profile.name for profile in running.without_links}
        for profile in running.done:
            self._failed.pop(profile.name, None)
        for name, fault in running.faults.items():
            again = ""
            if name not in known:
                again = f"; the next try is in {self._put_off(name, now):g} s"
            done.append(Log(f"in the background: {fault}{again}", node=name))
        return done


def _is_alike(known: NodeProfile | None, new: NodeProfile, changed: float) -> bool:
    """Whether a node and its links are about as fast as they were known to be."""
    if known is None or not known.work:
        return False
    rates = {link.peer: link.bandwidth_bytes_per_s for link in known.links}
    links = [(link.bandwidth_bytes_per_s, rates.get(link.peer, 0.0)) for link in new.links]
    return min(shares_of((known, new))) >= 1 - changed and all(max(pair) <= (1 + 5 * changed) * min(pair) for pair in links)
