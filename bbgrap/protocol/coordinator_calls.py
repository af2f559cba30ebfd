"""The calls of clients that do not run anything: bringing a model, and measuring nodes.

Laws: a file is stored under its digest and used only when it is complete; nodes are measured one at a time, so that they do not disturb
each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from bbgrap.cluster.types import COORDINATOR, NodeProfile
from bbgrap.protocol.client_messages import (
    Failed,
    Fault,
    MeasureNodes,
    ModelChunk,
    ModelFile,
    ModelMissing,
    ModelStored,
    OfferModel,
    Profiles,
    Progress,
)
from bbgrap.protocol.coordinator_events import ChunkWritten, HostPings, Identity, Instruction, Settings, ToAgent, ToClient, WriteChunk
from bbgrap.protocol.coordinator_members import Member, Members
from bbgrap.protocol.messages import AnswerPings, Measure, Measured, Peer

MAX_OFFERS = 256
"""Models whose lists of files are remembered; the least recently offered one makes room, and is simply offered again."""


def offer_digest(files: Iterable[ModelFile]) -> str:
    """Return the name of a model: the digest of the names, digests and sizes of its files."""
    return hashlib.sha256("\n".join(f"{file.name}\t{file.digest}\t{file.size}" for file in files).encode()).hexdigest()


class Uploads:
    """What models are here.

    Invariants: `stored` are the digests and sizes of complete files.
    """

    def __init__(self, stored: dict[str, int]) -> None:
        """Start with the files kept from earlier."""
        self.stored = stored
        self._offers: dict[str, tuple[ModelFile, ...]] = {}
        self._sizes: dict[str, int] = {}

    def offer(self, identity: Identity, message: OfferModel) -> list[Instruction]:
        """Answer which files are missing."""
        names = [file.name for file in message.files]
        if offer_digest(message.files) != message.model or not names or len(set(names)) < len(names):
            reason = "model: its digest is not that of its files, or a file name is used twice"
            return [ToClient(identity, Failed(message.call, Fault.PROTOCOL, reason))]
        self._offers.pop(message.model, None)
        self._offers[message.model] = message.files
        while len(self._offers) > MAX_OFFERS:
            del self._offers[next(iter(self._offers))]
        missing = tuple(dict.fromkeys(file.digest for file in message.files if file.digest not in self.stored))
        self._sizes.update({file.digest: file.size for file in message.files if file.digest in missing})
        return [ToClient(identity, ModelMissing(message.call, missing))]

    def chunk(self, identity: Identity, message: ModelChunk) -> list[Instruction]:
        """Store a piece of an offered file."""
        if message.digest in self.stored:
            return [ToClient(identity, ModelStored(message.call, self.stored[message.digest], complete=True))]
        size = self._sizes.get(message.digest)
        if size is None or not message.payload:
            return [ToClient(identity, Failed(message.call, Fault.UNKNOWN_MODEL, "model: the file was not offered"))]
        return [WriteChunk(identity, message, size)]

    def written(self, event: ChunkWritten) -> list[Instruction]:
        """Acknowledge a piece."""
        if event.fault:
            return [ToClient(event.identity, Failed(event.call, Fault.MODEL, event.fault))]
        if event.complete:
            self.stored[event.digest] = event.received
            self._sizes.pop(event.digest, None)
        return [ToClient(event.identity, ModelStored(event.call, event.received, event.complete))]

    def files_of(self, model: str) -> tuple[ModelFile, ...] | None:
        """Return the files of a model that is here completely."""
        files = self._offers.get(model)
        return files if files is not None and all(file.digest in self.stored for file in files) else None


@dataclass(slots=True)
class _Round:
    """A call to measure: the agents still to do and the profiles so far."""

    caller: tuple[Identity, int]
    todo: list[str]
    total: int
    profiles: list[NodeProfile]
    member: Member | None = None
    number: int = 0
    started: float = 0.0


class Measurements:
    """Who is measured for whom.

    Invariants: only the first round has a `member` that measures now.
    """

    def __init__(self, settings: Settings, members: Members) -> None:
        """Start idle."""
        self.settings = settings
        self.members = members
        self._rounds: list[_Round] = []
        self._numbers = count(1)

    def is_known(self, caller: tuple[Identity, int]) -> bool:
        """Whether a call will still be answered."""
        return any(entry.caller == caller for entry in self._rounds)

    def begin(self, identity: Identity, message: MeasureNodes, now: float) -> list[Instruction]:
        """Queue a call."""
        if self.is_known((identity, message.call)):
            return []
        names = [m.name for m in self.members.alive() if message.name in {"", m.name}]
        if not names:
            there = ", ".join(m.name for m in self.members.alive()) or "none"
            reason = f"node '{message.name}': no live agent has that name; there are: {there}"
            fault = Fault.USAGE if message.name and self.members.by_name else Fault.UNAVAILABLE
            return [ToClient(identity, Failed(message.call, fault, reason))]
        self._rounds.append(_Round((identity, message.call), names, len(names), []))
        return self._next(now)

    def _next(self, now: float) -> list[Instruction]:
        while self._rounds and self._rounds[0].member is None:
            entry = self._rounds[0]
            identity, call = entry.caller
            if not entry.todo:
                self._rounds.pop(0)
                return [ToClient(identity, Profiles(call, tuple(entry.profiles))), *self._next(now)]
            member = self.members.by_name.get(entry.todo.pop(0))
            if member is not None:
                entry.member, entry.number, entry.started = member, next(self._numbers), now
                progress = Progress(call, f"measuring {member.name}", len(entry.profiles), entry.total)
                return [ToClient(identity, progress), *self._ask(member, entry.number)]
        return [] if self._rounds else [HostPings(())]

    def _ask(self, member: Member, number: int) -> list[Instruction]:
        peers = tuple(Peer(device, m.name, m.join.data_address) for device, m in enumerate(self.members.alive()))
        allow: list[Instruction] = [HostPings(peers), *(ToAgent(m.identity, AnswerPings(peers)) for m in self.members.alive())]
        others = (*(p for p in peers if p.name != member.name), Peer(len(peers), COORDINATOR, self.settings.data_address))
        return [*allow, ToAgent(member.identity, Measure(number, others))]

    def measured(self, member: Member, message: Measured, now: float) -> list[Instruction]:
        """Take a profile, and measure the next agent."""
        if not self._rounds or self._rounds[0].member is not member or self._rounds[0].number != message.measurement:
            return []
        if message.profile is None:
            return self._fail(f"agent '{member.name}' could not be measured: {message.reason}", now)
        member.measured = message.profile
        self._rounds[0].profiles.append(message.profile)
        self._rounds[0].member = None
        return self._next(now)

    def lost(self, member: Member, now: float) -> list[Instruction]:
        """Fail the call that waits for an agent that is gone."""
        waits = bool(self._rounds) and self._rounds[0].member is member
        return self._fail(f"agent '{member.name}' was lost while it was measured", now) if waits else []

    def overdue(self, now: float) -> list[Instruction]:
        """Fail the call that waits too long."""
        late = bool(self._rounds) and now - self._rounds[0].started > self.settings.measure_within_s
        return self._fail("measuring took too long", now) if late else []

    def _fail(self, reason: str, now: float) -> list[Instruction]:
        identity, call = self._rounds.pop(0).caller
        return [ToClient(identity, Failed(call, Fault.EXECUTION, reason)), *self._next(now)]
