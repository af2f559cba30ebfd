"""The agents of a coordinator: who has joined, and who lives.

Laws: a name belongs to one living agent; an agent that was silent for its `dead_after_s` is gone and must join again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

from bbgrap.cluster.names import name_order
from bbgrap.cluster.speeds import as_slow_as_known
from bbgrap.cluster.types import AGENT_BYTES, COORDINATOR, ETHERNET, LOCAL, Cluster, Network, NodeProfile
from bbgrap.control.coordinator_events import RoutingId
from bbgrap.control.coordinator_instructions import CoordinatorInstruction, Log, ToAgent
from bbgrap.control.coordinator_settings import Settings
from bbgrap.control.saved_state import SavedState
from bbgrap.control.weight_feed import WeightFeed
from bbgrap.protocol.addresses import host_of, place_of
from bbgrap.protocol.limits import MOST_FAR_S, ROUND_TRIPS
from bbgrap.protocol.messages import Heartbeat, Join, Peer, Refused, Welcome, WorkerLost

HEARTBEAT_S = 0.1
"""How often agents are asked to give a sign of life."""
DEAD_AFTER_S = 0.6
"""Six heartbeats. Chosen: a nanny does nothing else, and an agent that is taken for dead too early comes back with all it holds."""
STALL_S = 2.5
"""Who comes back so soon was not gone: what it is connected by stalls, and it may be silent for twice as long from then on. Chosen: radio
links stall for a second, and no machine starts in that time."""
QUIET_S = 0.25
"""Two heartbeats and a half: after that it is not judged what an agent does not do."""

BUSY_OVER_S = 1.0
"""Over how long it is measured how busy an agent is."""

MAX_REMEMBERED = 1024
"""Nodes of which something is kept by name; beyond, nothing of those that are gone: machines may have another name at each start."""
MAX_ENDED = 256
"""Runs that are known to have ended well. Chosen: more than end while a heartbeat is on its way."""


@dataclass(slots=True)
class Member:
    """An agent that has joined."""

    identity: RoutingId
    join: Join
    number: int
    heard: float
    dead_after_s: float = DEAD_AFTER_S
    """How long it may be silent until it is taken for dead."""
    back_at: float = float("-inf")
    """When heartbeats came again that had been missing, in seconds."""
    broke_at: float = float("-inf")
    """When it was told last that a connection of it broke, in seconds."""
    since: float = 0.0
    """When it joined, in seconds."""
    beat: Heartbeat = field(default_factory=Heartbeat)
    """Its latest heartbeat."""
    idle_since: float = 0.0
    """Since when its worker has computed nothing, and nothing was on its way from or to it, in seconds."""
    far_s: float | None = None
    """How long a first message may be on its way there; None until it has answered its `Welcome`, which it does at once."""
    finished: int = 0
    """Requests that have ended well and in which it had a part."""
    reminded: float = float("-inf")
    """When it was last told again that nobody wants what it computes, in seconds."""
    first_request: int = 0
    """Requests with lower numbers, which it may still work on, are void."""
    is_doubted: bool = False
    """Whether it is tried if long messages reach it before it is told again what it is to load."""
    reloads: bool = False
    """Whether its new worker has not yet loaded all that the lost one had."""
    worker_lost: WorkerLost | None = None
    """What it has said of the end of its latest worker: what comes twice has happened once."""
    weights: WeightFeed = field(init=False)
    """What is on its way to it."""
    busy: float = 0.0
    """The part of the last second in which its worker computed, 0 to 1."""
    _measured: tuple[float, float] = (float("-inf"), 0.0)
    """When that was found out last, and how long it had computed then."""

    def __post_init__(self) -> None:
        """Nothing is on its way yet."""
        self.weights = WeightFeed(self.identity)

    def is_quiet(self, now: float) -> bool:
        """Whether heartbeats are missing: it may be gone."""
        return now - self.heard > QUIET_S

    def silent_s(self, now: float) -> float:
        """Return for how many seconds neither a heartbeat has come nor anything else has moved."""
        return now - max(self.heard, self.idle_since)

    def was_ended_loading(self, epoch: int) -> bool:
        """Whether its latest worker that ended by what it did loaded an epoch then; its connections broke with it, for no other reason."""
        return self.worker_lost is not None and self.worker_lost.loading == epoch and self.worker_lost.ended_by.guilty

    def take(self, beat: Heartbeat, now: float) -> None:
        """Note what its worker does."""
        if beat.seconds > 0 or beat.steps != self.beat.steps:
            self.idle_since = now
        if self.far_s is None:
            self.far_s = min(ROUND_TRIPS * (now - self.since), MOST_FAR_S)
        self.beat = beat
        at, before = self._measured
        if now - at >= BUSY_OVER_S:
            # A new worker begins at 0.
            self.busy = min(1.0, max(0.0, beat.busy_s - before) / (now - at))
            self._measured = now, beat.busy_s

    @property
    def name(self) -> str:
        """The name the agent joined with."""
        return self.join.name

    @property
    def place(self) -> str:
        """Where its data plane is, and what it shows there: an agent that was started again is in another place."""
        return place_of(self.join.data_address, self.join.fingerprint)

    @property
    def machine(self) -> str:
        """The host of its address: agents that have the same one share a machine."""
        return host_of(self.join.data_address)


class Members:
    """All agents that live.

    Invariants: `by_identity` and `by_name` hold the same members.
    """

    def __init__(self, settings: Settings, stored: SavedState) -> None:
        """Start without agents, with the profiles that an earlier coordinator knew."""
        self.settings = settings
        self.by_identity: dict[RoutingId, Member] = {}
        self.by_name: dict[str, Member] = {}
        self.measured = dict(stored.measured)
        self.overrides = dict(stored.given)
        self.saw_agents = stored.saw_agents
        """Whether this cluster has ever had an agent."""
        self.aside = ""
        """The node on which no request begins that can run elsewhere, by name: it is to be measured."""
        self.ended: deque[int] = deque(maxlen=MAX_ENDED)
        """The latest runs that ended well: no worker is in a segment of one, whatever a heartbeat says that was on its way meanwhile."""
        self._refused: dict[RoutingId, str] = {}
        """Why agents were not taken in that ask twice a second, the last one last."""
        self._silenced: dict[RoutingId, tuple[float, float]] = {}
        """When those were heard last that are gone since just now, and how long they could be, by process."""
        self._numbers = settings.first_epoch

    def alive(self) -> tuple[Member, ...]:
        """The agents, in the order of their names: the device order of new deployments."""
        return tuple(self.by_name[name] for name in sorted(self.by_name, key=name_order))

    def living(self, names: Iterable[str]) -> list[Member]:
        """Return those of some agents that are there."""
        return [member for name in names if (member := self.by_name.get(name)) is not None]

    def peers(self) -> tuple[Peer, ...]:
        """The data planes of all agents, and after them that of the coordinator."""
        alive = self.alive()
        peers = tuple(Peer(device, m.name, m.join.data_address, m.join.fingerprint) for device, m in enumerate(alive))
        return (*peers, Peer(len(peers), COORDINATOR, self.settings.data_address, self.settings.fingerprint))

    def peers_of(self, member: Member) -> tuple[Peer, ...]:
        """The data planes of all others."""
        return tuple(peer for peer in self.peers() if peer.name != member.name)

    def join(self, identity: RoutingId, join: Join, now: float) -> Member | Refused:
        """Take in an agent, or return why not."""
        if join.name == COORDINATOR:
            return Refused(f"the name '{join.name}' is that of the coordinator in links; choose another with --name", retry=False)
        if join.name in self.by_name:
            return Refused(f"the name '{join.name}' is taken by a live agent; choose another with --name", retry=True)
        at = join.data_address
        other = COORDINATOR if at == self.settings.data_address else next((m.name for m in self.alive() if m.join.data_address == at), "")
        if other:  # nobody could reach either: who listens there shows one certificate only
            return Refused(f"its data address {at} is that of '{other}'; give each its own --advertise or --data-port", retry=True)
        self._numbers += 1
        self.saw_agents = True
        self._refused.pop(identity, None)
        member = Member(identity, join, self._numbers, now, self._patience_with(identity, now), since=now, idle_since=now)
        self.by_identity[identity] = self.by_name[join.name] = member
        return member

    def note_refusal(self, identity: RoutingId, refused: Refused) -> bool:
        """Remember why an agent is not taken in; returns whether that is news: it was not for this the last time."""
        before, self._refused[identity] = self._refused.pop(identity, ""), refused.reason
        if len(self._refused) > MAX_REMEMBERED:
            del self._refused[next(iter(self._refused))]
        return before != refused.reason

    def _patience_with(self, identity: RoutingId, now: float) -> float:
        """Return how long an agent may be silent: twice as long as it was, if it has just been taken for dead and is the same process."""
        heard, patience_s = self._silenced.pop(identity, (float("-inf"), DEAD_AFTER_S))
        return max(patience_s, 2 * (now - heard)) if now - heard <= STALL_S else DEAD_AFTER_S

    def welcome(self, member: Member, keep: tuple[int, ...]) -> ToAgent:
        """Return the answer to a `Join`; of what the agent holds it shall keep these epochs."""
        return ToAgent(member.identity, Welcome(member.number, HEARTBEAT_S, member.dead_after_s, keep, member.first_request))

    def other_versions(self, join: Join) -> list[CoordinatorInstruction]:
        """Warn of an agent that runs other versions than the coordinator, or than an agent that is there."""
        others = (
            ("bbgrap", join.version, {self.settings.version}),
            ("onnxruntime", join.onnxruntime, self._onnxruntimes()),
        )
        return [
            Log(
                f"agent '{join.name}' has {what} {version}, others have {', '.join(sorted(there - {version}))}: install one version",
                is_warning=True,
            )
            for what, version, there in others
            if there - {version}
        ]

    def _onnxruntimes(self) -> set[str]:
        """Return the versions that are there, that which plans are made with among them."""
        return {m.join.onnxruntime for m in self.alive()} | ({self.settings.onnxruntime} - {""})

    def cannot_load(self, member: Member, why: str) -> str:
        """Say that an agent cannot load something, and what to do where its onnxruntime refuses it and is not that of all others."""
        others = self._onnxruntimes() - {member.join.onnxruntime}
        advice = f"; others have onnxruntime {', '.join(sorted(others))}: install one version" if others and "onnxruntime" in why else ""
        return f"agent '{member.name}' cannot run the deployment: {why}{advice}"

    def heard(self, identity: RoutingId, now: float) -> Member | None:
        """Note a sign of life, and return whose it is; None: a stranger's."""
        if (member := self.by_identity.get(identity)) is not None:
            member.back_at = now if member.is_quiet(now) else member.back_at
            member.heard = now
        return member

    def moved(self, fingerprints: Collection[str], now: float) -> None:
        """Note who is not idle, whatever its worker does: tensors are on their way there, or from there."""
        for member in self.by_name.values():
            if member.join.fingerprint in fingerprints:
                member.idle_since = now

    def silent(self, now: float) -> list[Member]:
        """The agents that were not heard for too long: of whom tensors come, heartbeats may wait behind them in the queues of the way."""
        return [member for member in self.alive() if member.silent_s(now) > DEAD_AFTER_S]

    def dead(self, now: float) -> list[Member]:
        """Those of them that are taken for dead."""
        return [member for member in self.silent(now) if member.silent_s(now) > member.dead_after_s]

    def remove(self, member: Member) -> None:
        """Take an agent out."""
        self._silenced = {identity: was for identity, was in self._silenced.items() if was[0] >= member.heard - STALL_S}
        self._silenced[member.identity] = member.heard, member.dead_after_s
        del self.by_identity[member.identity], self.by_name[member.name]

    def forget_gone(self, known: MutableMapping[str, Any]) -> list[str]:
        """Forget what is known of nodes that are gone, beyond `MAX_REMEMBERED` names: what was noted first. Return their names."""
        many = len(known) - MAX_REMEMBERED
        gone = [name for name in known if name not in self.by_name][:many] if many > 0 else []
        for name in gone:
            del known[name]
        return gone

    def known_of(self, member: Member) -> NodeProfile | None:
        """Return what is known of an agent: what was given by hand, over what was measured, over what it joined with.

        Memory is not measured but counted, so what the agent may take of it goes first.
        """
        known: NodeProfile | None = None
        joined, measured = member.join.profile, self.measured.get(member.name)
        if joined is not None and joined.memory_bytes and measured is not None:
            measured = replace(measured, memory_bytes=joined.memory_bytes)
        for profile in (joined, measured, self.overrides.get(member.name)):
            if profile is not None:
                known = replace(profile, name=member.name) if known is None else profile.over(known)
        return known

    def memory_of(self, name: str) -> int:
        """Return the bytes of memory that an agent may fill: what was given for it, else its part of what the machine has.

        Of one that is not there, or has not said, more than anything needs.
        """
        member = self.by_name.get(name)
        return 1 << 62 if member is None else self.known_memory_of(member) or 1 << 62

    def known_memory_of(self, member: Member) -> int:
        """Return the bytes of memory that an agent may fill; 0: it has not said."""
        return self._memory_among(member, self.by_name.values())

    def overstated_memory(self, member: Member) -> list[CoordinatorInstruction]:
        """Warn of an agent for which more memory was given than there is: plans that fill it would have it ended."""
        said, given = member.join.memory_bytes, self._given_memory(member)
        text = f"agent '{member.name}' is given {given >> 20:,} MiB of memory, its machine or container leaves it {said >> 20:,} MiB: plans"
        return [Log(f"{text} fill no more than that", is_warning=True)] if 0 < said < given else []

    def _given_memory(self, member: Member) -> int:
        given = (profile.memory_bytes for profile in (self.overrides.get(member.name), member.join.profile) if profile is not None)
        return next(filter(None, given), 0)

    def _memory_among(self, member: Member, others: Iterable[Member]) -> int:
        """Return what an agent may fill where only these others share its memory, each with processes of its own; 0: it has not said.

        What was given for it is no more than it has.
        """
        known, said = self._given_memory(member), member.join.memory_bytes
        if known or not said:
            return min(known, said or known)
        group = member.machine, member.join.memory_group
        sharing = sum((other.machine, other.join.memory_group) == group for other in others)
        return max(1, (said + AGENT_BYTES) // sharing - AGENT_BYTES)

    def _profile_among(self, member: Member, others: Iterable[Member]) -> NodeProfile:
        """Return what planning over an agent and others should know of it."""
        join = member.join
        known = self.known_of(member) or NodeProfile(join.name)
        return replace(
            known,
            name=join.name,
            cores=known.cores or join.cores,
            threads=known.threads or join.threads,
            memory_bytes=self._memory_among(member, others),
        )

    def cluster(self, members: tuple[Member, ...]) -> Cluster:
        """Return the agents as planning sees them; at least one.

        Those at one address share a machine, unless links were given for them by hand; the first at the coordinator's shares it with that.
        One of which nothing is known is as fast as the slowest that is known.
        """
        here = host_of(self.settings.data_address)
        machines = [member.machine for member in members]
        on = next((member.name for member, machine in zip(members, machines, strict=True) if machine == here), "")
        nodes = tuple(
            replace(
                self._profile_among(member, members),
                machine="" if self._has_links_by_hand(member) or machines.count(machine) == 1 else machine,
            )
            for member, machine in zip(members, machines, strict=True)
        )
        # What those by hand leave out is still one machine's, if there is no other.
        between = LOCAL if set(machines) == {here} else ETHERNET
        return Cluster(as_slow_as_known(nodes), Network(between, coordinator_on=on))

    def _has_links_by_hand(self, member: Member) -> bool:
        given = (member.join.profile, self.overrides.get(member.name))
        return any(profile is not None and profile.links for profile in given)
