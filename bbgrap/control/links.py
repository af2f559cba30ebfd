"""Which agents can exchange tensors: tried when one joins, when a connection breaks, and again while a pair is apart.

Laws: a pair that was found apart has no part in a new plan together; who is apart from the coordinator computes nothing; it is tried
again every `AGAIN_S`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from bbgrap.cluster.names import name_order
from bbgrap.cluster.types import COORDINATOR
from bbgrap.control.coordinator_instructions import CoordinatorInstruction, HostPings, Log, ToAgent
from bbgrap.control.membership import Member, Members
from bbgrap.control.to_coordinator import LONG_ONES_LOST
from bbgrap.protocol.addresses import apart_text
from bbgrap.protocol.messages import AnswerPings, LinksTried, Peer, TryLinks

AGAIN_S = 2.0
"""When a pair that is apart is tried again."""
TRIAL_S = 3.0
"""How long a trial may take: two pings to each peer, and an agent that is busy."""
STEPS = 3
"""Segments that an agent has run meanwhile if it was not in one all the time: one is whole, with time to answer before and after it."""

NodePair = frozenset[str]


@dataclass(frozen=True, slots=True)
class _Trial:
    member: Member
    peers: tuple[Peer, ...]
    began: float
    steps: Mapping[str, int]
    """How many segments the workers of the peers had run when it began, by name."""


class Links:
    """The pairs of agents, and of agents and the coordinator.

    Invariants: `apart` are pairs of names of which both are there.
    """

    def __init__(self, members: Members) -> None:
        self.members = members
        self.apart: dict[NodePair, float] = {}
        self._trials: dict[int, _Trial] = {}
        self._numbers = count(1)

    def joined(self, member: Member, now: float) -> list[CoordinatorInstruction]:
        """Let everybody answer everybody's pings, and the newcomer try them all."""
        return [*self.allow(), *self._try(member, self.members.peers_of(member), now)]

    def allow(self) -> list[CoordinatorInstruction]:
        """Let everybody answer everybody's pings."""
        everybody = self.members.peers()
        agents = tuple(peer for peer in everybody if peer.name != COORDINATOR)
        return [HostPings(agents), *(self.allow_one(member) for member in self.members.alive())]

    def allow_one(self, member: Member) -> CoordinatorInstruction:
        """Let an agent answer everybody's pings; said again, for it may have been lost on the way, and then it would never be reached."""
        return ToAgent(member.identity, AnswerPings(self.members.peers_of(member)))

    def say_again(self, member: Member, now: float) -> list[CoordinatorInstruction]:
        """Tell an agent anew whom it answers and what it tries: it may not have heard. A trial has as long as at first."""
        begun = [(number, trial) for number, trial in self._trials.items() if trial.member is member]
        self._trials |= {number: replace(trial, began=now) for number, trial in begun}
        return [self.allow_one(member), *(ToAgent(member.identity, TryLinks(number, trial.peers)) for number, trial in begun)]

    def lost(self, member: Member) -> None:
        """Forget what is known of an agent that is gone."""
        self.apart = {pair: since for pair, since in self.apart.items() if member.name not in pair}
        self._trials = {number: trial for number, trial in self._trials.items() if trial.member is not member}

    def suspect(self, member: Member, name: str, now: float) -> list[CoordinatorInstruction]:
        """Have an agent try another one, or the coordinator; `LinksTried` or `overdue` tells."""
        if any(trial.member is member and name in {peer.name for peer in trial.peers} for trial in self._trials.values()):
            return []
        other = self.members.by_name.get(name)
        told = [] if other is None else [self.allow_one(other)]
        return [*told, *self._try(member, tuple(peer for peer in self.members.peers_of(member) if peer.name == name), now)]

    def is_suspect(self, first: str, second: str) -> bool:
        """Whether a pair is being tried."""
        pairs = {frozenset((trial.member.name, peer.name)) for trial in self._trials.values() for peer in trial.peers}
        return frozenset((first, second)) in pairs

    def tried(
        self, member: Member, message: LinksTried, now: float, loading: Collection[str] = ()
    ) -> tuple[bool, list[CoordinatorInstruction]]:
        """Take what an agent found; returns whether anything is otherwise than before. `loading` are the agents that load something."""
        trial = self._trials.get(message.trial)
        if trial is None or trial.member is not member:
            return False, []
        del self._trials[message.trial]
        before, told, silent = set(self.apart), list[CoordinatorInstruction](), list[Peer]()
        there = {(peer.name, peer.address, peer.fingerprint) for peer in self.members.peers_of(member)}
        for peer in trial.peers:
            if (peer.name, peer.address, peer.fingerprint) not in there:
                continue  # it has gone, or has come back somewhere else since
            pair = frozenset((member.name, peer.name))
            if peer.device not in message.unreachable:
                if self.apart.pop(pair, None) is not None:
                    text = f"'{member.name}' and '{peer.name}' reach each other again"
                    told.append(Log(text, event="link back", node=peer.name))
            elif self._is_telling(trial, peer, now, loading):
                silent.append(peer)
        told += self.part(member, silent, now)
        return set(self.apart) != before, told

    def part(self, member: Member, silent: Sequence[Peer], now: float) -> list[CoordinatorInstruction]:
        """Note that an agent is apart from peers; return what is told of those that were not before."""
        pairs = {frozenset((member.name, peer.name)): (peer.name, peer.address) for peer in silent}
        apart = [place for pair, place in pairs.items() if pair not in self.apart]
        self.apart |= dict.fromkeys(pairs, now)
        if not apart:
            return []
        text = apart_text(apart, member.join.data_address)
        return [Log(f"'{member.name}' {text} If so, {LONG_ONES_LOST}", event="link lost", node=member.name)]

    def _is_telling(self, trial: _Trial, peer: Peer, now: float, loading: Collection[str]) -> bool:
        """Whether it says anything of a link that a peer has not answered.

        One that computes answers between two segments, one that is about to be taken for dead never, one whose network stalled meanwhile
        late, and one whose worker has just been started anew not at all. Each agent looks itself whom it reaches, before.
        A new worker that loads what the lost one had may have been too busy to hear; it asks all of its peers itself at the end of a load.
        """
        if trial.member.reloads or any(end.back_at >= trial.began for end in (trial.member, *self.members.living([peer.name]))):
            return False
        other = self.members.by_name.get(peer.name)
        if other is None:
            return peer.name == COORDINATOR
        return not (_answers_late(other, trial) or other.is_quiet(now) or peer.name in loading)

    def overdue(self, now: float) -> list[CoordinatorInstruction]:
        """Try again who is apart; what was tried without an answer tells nothing."""
        done: list[CoordinatorInstruction] = []
        for number, trial in list(self._trials.items()):
            if now - trial.began > TRIAL_S + (trial.member.far_s or 0.0):
                del self._trials[number]
        for pair, tried in list(self.apart.items()):
            first = next(iter(self.members.living(sorted(pair))), None)
            if first is not None and now - tried > AGAIN_S:
                self.apart[pair] = now
                (other,) = pair - {first.name}
                done += self.suspect(first, other, now)
        return done

    def connected(self, members: Sequence[Member]) -> tuple[Member, ...]:
        """Return those of some agents that can all exchange tensors, as many as can be."""
        able = [m for m in members if frozenset((m.name, COORDINATOR)) not in self.apart]
        while pairs := [pair for pair in self.apart if pair <= {m.name for m in able}]:
            worst = max(able, key=lambda m: (sum(m.name in pair for pair in pairs), m.name))
            able.remove(worst)
        return tuple(able)

    def unreachable(self, name: str) -> tuple[str, ...]:
        """Return whom an agent is apart from, by name."""
        return tuple(sorted((other for pair in self.apart if name in pair for other in pair - {name}), key=name_order))

    def _try(self, member: Member, peers: tuple[Peer, ...], now: float) -> list[CoordinatorInstruction]:
        if not peers:
            return []
        number = next(self._numbers)
        steps = {peer.name: other.beat.steps for peer in peers if (other := self.members.by_name.get(peer.name)) is not None}
        self._trials[number] = _Trial(member, peers, now, steps)
        return [ToAgent(member.identity, TryLinks(number, peers))]


def _answers_late(other: Member, trial: _Trial) -> bool:
    """Whether an agent may have been in one segment for as long as it was tried."""
    return other.beat.seconds > 0 and other.beat.steps < trial.steps.get(other.name, 0) + STEPS
