"""The agents of a coordinator: who has joined, who lives, and what is on its way to each.

Laws: a name belongs to one living agent; an agent that was silent for `DEAD_AFTER_S` is gone and must join again (while it loads a
deployment, for `DEAD_LOADING_AFTER_S`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from bbgrap.cluster.types import COORDINATOR, ETHERNET, LOCAL, Cluster, Network, NodeProfile
from bbgrap.control.coordinator_events import Identity, Instruction, Log, Settings, ToAgent
from bbgrap.control.states import Role, Tracker
from bbgrap.graph.types import Array, TensorType
from bbgrap.protocol.addresses import host_of
from bbgrap.protocol.client_messages import NodeStatus
from bbgrap.protocol.limits import MAX_CHUNK_BYTES
from bbgrap.protocol.messages import PROTOCOL_VERSION, BytesLike, Join, Refused, Rejoin, WeightChunk, Welcome
from bbgrap.protocol.tensors import encode_array

HEARTBEAT_S = 0.5
"""How often agents are asked to give a sign of life."""
DEAD_AFTER_S = 2.0
"""Four heartbeats: three may be lost or late."""
DEAD_LOADING_AFTER_S = 10.0
"""For an agent that loads a deployment: onnxruntime lets no other thread of its process run while it prepares a large segment."""

WINDOW_BYTES = 16 << 20
"""Weights on their way to one agent that it has not acknowledged: four chunks, enough to keep a 10 Gb/s link busy over 10 ms."""
WINDOW_CHUNKS = 64


@dataclass(slots=True)
class _Outgoing:
    """A weight on its way: bytes sent and acknowledged so far."""

    type: TensorType
    content: BytesLike
    sent: int = 0
    acknowledged: int = 0
    started: bool = False


@dataclass(slots=True)
class Member:
    """An agent that has joined.

    Invariants: `outgoing` holds the weights that it asked for and has not acknowledged to the end.
    """

    identity: Identity
    join: Join
    number: int
    tracker: Tracker
    heard: float
    measured: NodeProfile | None = None
    outgoing: dict[str, _Outgoing] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name the agent joined with."""
        return self.join.name

    @property
    def machine(self) -> str:
        """The host of its address: agents that have the same one share a machine."""
        return host_of(self.join.data_address)

    def feed(self, digests: Iterable[str], weights: Mapping[str, Array], types: Mapping[str, TensorType]) -> list[Instruction]:
        """Send these weights, from their beginnings; unknown digests are left out."""
        for digest in digests:
            if digest in weights:
                self.outgoing[digest] = _Outgoing(types[digest], encode_array(weights[digest]))
        return self.pump()

    def acknowledge(self, digest: str, received: int) -> list[Instruction]:
        """Note that the first bytes of a weight arrived, and send more."""
        entry = self.outgoing.get(digest)
        if entry is not None:
            entry.acknowledged = min(max(entry.acknowledged, received), len(entry.content))
            entry.sent = max(entry.sent, entry.acknowledged)  # it kept what came before a break: go on from there
            if entry.started and entry.acknowledged == len(entry.content):
                del self.outgoing[digest]
        return self.pump()

    def pump(self) -> list[Instruction]:
        """Send chunks until the window is full."""
        open_entries = [entry for entry in self.outgoing.values() if entry.started]
        flying, count = sum(e.sent - e.acknowledged for e in open_entries), len(open_entries)
        done: list[Instruction] = []
        for digest, entry in self.outgoing.items():
            while not entry.started or entry.sent < len(entry.content):
                if flying >= WINDOW_BYTES or count >= WINDOW_CHUNKS:
                    return done
                chunk = entry.content[entry.sent : entry.sent + MAX_CHUNK_BYTES]
                done.append(ToAgent(self.identity, WeightChunk(digest, entry.type, entry.sent, len(entry.content), (chunk,))))
                count += not entry.started
                entry.started = True
                entry.sent += len(chunk)
                flying += len(chunk)
        return done


class Members:
    """All agents that live.

    Invariants: `by_identity` and `by_name` hold the same members.
    """

    def __init__(self, settings: Settings) -> None:
        """Start without agents."""
        self.settings = settings
        self.by_identity: dict[Identity, Member] = {}
        self.by_name: dict[str, Member] = {}
        self.overrides: dict[str, NodeProfile] = {}
        self._numbers = settings.first_epoch

    def alive(self) -> tuple[Member, ...]:
        """The agents, by name: the device order of new deployments."""
        return tuple(self.by_name[name] for name in sorted(self.by_name))

    def join(self, identity: Identity, join: Join, now: float) -> list[Instruction]:
        """Answer a `Join`: welcome, welcome again, or refuse with the reason."""
        known = self.by_identity.get(identity)
        if known is None:
            refused = self._reason_to_refuse(join)
            if refused is not None:
                return [ToAgent(identity, refused), Log(f"refused '{join.name}': {refused.reason}")]
            self._numbers += 1
            tracker = Tracker(Role.MEMBER, f"'{join.name}'")
            known = Member(identity, join, self._numbers, tracker, now)
            self.by_identity[identity] = self.by_name[join.name] = known
        known.tracker.move("Join")
        known.heard = now
        return [ToAgent(identity, Welcome(known.number, HEARTBEAT_S, DEAD_AFTER_S))]

    def _reason_to_refuse(self, join: Join) -> Refused | None:
        if join.protocol != PROTOCOL_VERSION:
            reason = f"agent '{join.name}' speaks protocol {join.protocol} (bbgrap {join.version}), this coordinator {PROTOCOL_VERSION}"
            return Refused(f"{reason} (bbgrap {self.settings.version}); install the same bbgrap on all machines", retry=False)
        if join.name == COORDINATOR:
            return Refused(f"the name '{join.name}' is that of the coordinator in links; choose another with --name", retry=False)
        if join.name in self.by_name:
            return Refused(f"the name '{join.name}' is taken by a live agent; choose another with --name", retry=True)
        return None

    def heard(self, identity: Identity, event: str, now: float) -> Member | Rejoin:
        """Note a sign of life; a stranger is told to join."""
        member = self.by_identity.get(identity)
        if member is None:
            return Rejoin()
        member.tracker.move(event)
        member.heard = now
        return member

    def silent(self, now: float, loading: Collection[Identity]) -> list[Member]:
        """The agents that were not heard for too long; those that load a deployment may be silent for longer."""
        within_s = {True: DEAD_LOADING_AFTER_S, False: DEAD_AFTER_S}
        return [member for member in self.alive() if now - member.heard > within_s[member.identity in loading]]

    def remove(self, member: Member, event: str) -> None:
        """Take an agent out."""
        if not member.tracker.over:
            member.tracker.move(event)
        del self.by_identity[member.identity], self.by_name[member.name]

    def known_of(self, member: Member) -> NodeProfile | None:
        """Return what is known of an agent: what was given by hand, over what was measured, over what it joined with."""
        known: NodeProfile | None = None
        for profile in (member.join.profile, member.measured, self.overrides.get(member.name)):
            if profile is not None:
                known = replace(profile, name=member.name) if known is None else profile.over(known)
        return known

    def profile_of(self, member: Member) -> NodeProfile:
        """Return what planning should know of an agent."""
        join = member.join
        known = self.known_of(member) or NodeProfile(join.name)
        return replace(
            known,
            name=join.name,
            cores=known.cores or join.cores,
            threads=known.threads or join.threads,
            memory_bytes=known.memory_bytes or join.memory_bytes,
        )

    def cluster(self, members: tuple[Member, ...]) -> Cluster:
        """Return the agents as planning sees them; at least one.

        Those at one address share a machine, unless links were given for them by hand; the first at the coordinator's shares it with that.
        """
        here = host_of(self.settings.data_address)
        machines = [member.machine for member in members]
        on = next((member.name for member, machine in zip(members, machines, strict=True) if machine == here), "")
        nodes = tuple(
            replace(self.profile_of(member), machine="" if self._has_links_by_hand(member) or machines.count(machine) == 1 else machine)
            for member, machine in zip(members, machines, strict=True)
        )
        # What those by hand leave out is still one machine's, if there is no other.
        between = LOCAL if set(machines) == {here} else ETHERNET
        return Cluster(nodes, Network(between, coordinator_on=on))

    def _has_links_by_hand(self, member: Member) -> bool:
        given = (member.join.profile, self.overrides.get(member.name))
        return any(profile is not None and profile.links for profile in given)

    def statuses(self) -> tuple[NodeStatus, ...]:
        """Return the agents as `bbgrap nodes` lists them."""
        return tuple(
            NodeStatus(
                name=m.name,
                address=m.join.data_address,
                state=m.tracker.state,
                threads=m.join.threads,
                cores=m.join.cores,
                memory_bytes=m.join.memory_bytes,
                version=m.join.version,
                onnxruntime=m.join.onnxruntime,
                max_opset=m.join.max_opset,
                profile=self.known_of(m),
            )
            for m in self.alive()
        )
