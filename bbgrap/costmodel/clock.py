"""A clock for programs: when every machine computes, sends, receives and waits, given what each of these costs.

Every device does its acts one after the other. A message leaves when the sender has packed it, and is there a latency after its last
byte is through. Its machine's way out and the receiver's way in, or the wires between them, carry it as far as earlier messages leave
them (`ways`). Two devices of one machine share its ways, and use none of them between each other. Whoever is earliest acts first, so
messages queue in the order in which they are sent.

Laws: the same acts and costs give the same timeline; nobody receives before the message was sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from bbgrap.cluster.wires import Way
from bbgrap.costmodel.messages import NetworkModel
from bbgrap.costmodel.timeline import Span, Timeline
from bbgrap.costmodel.ways import FreeBandwidth, carry
from bbgrap.errors import ProgramError


@dataclass(frozen=True, slots=True)
class Busy:
    """Compute for so many seconds."""

    seconds: float
    label: str
    segment: int | None = None


@dataclass(frozen=True, slots=True)
class Post:
    """Send a message of so many bytes to a device."""

    message: int
    destination: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Await:
    """Wait for a message and unpack it."""

    message: int
    source: int
    bytes: int


Act = Busy | Post | Await


def is_in_a_row(acts: Sequence[Act], place: int) -> bool:
    """Whether an act is a message right after another one, sent or received as it is."""
    return place > 0 and type(acts[place]) is type(acts[place - 1])


def run_clock(names: Sequence[str], acts: Sequence[Sequence[Act]], network: NetworkModel) -> Timeline:
    """Return when every device does its acts.

    Raises:
        ProgramError: if devices wait for each other for ever.
    """
    return _Clock(acts, network).run(tuple(names))


class _Clock:
    """The state of one walk: where every device stands, what is on its way, and when ways are free."""

    def __init__(self, acts: Sequence[Sequence[Act]], network: NetworkModel) -> None:
        self.acts = acts
        self.network = network
        self.now = [0.0] * len(acts)
        self.position = [0] * len(acts)
        self.arrivals: dict[int, float] = {}
        self.ways: defaultdict[Way | tuple[str, int], FreeBandwidth] = defaultdict(FreeBandwidth)
        """Those of wires, and machines' ways out and in."""
        self.taken = [0.0] * len(acts)
        """Seconds that others have taken of a device's processor, and that its work has not become longer by yet."""
        self.spans: list[Span] = []
        self.next: list[tuple[float, int]] = []
        """Who can act, and when: a heap."""
        self.waiting: dict[int, int] = {}
        """Who waits for a message that was not sent yet, by its number."""

    def run(self, names: tuple[str, ...]) -> Timeline:
        for device in range(len(self.acts)):
            self._enqueue(device)
        while self.next:
            _, device = heappop(self.next)
            self._act(device)
            self._enqueue(device)
        if self.waiting:
            raise ProgramError(f"clock: devices {sorted(self.waiting.values())} wait for each other for ever")
        return Timeline(names, tuple(sorted(self.spans, key=lambda span: (span.device, span.start_s))))

    def _enqueue(self, device: int) -> None:
        """Note when a device's next act begins, if it has one."""
        if self.position[device] == len(self.acts[device]):
            return
        act = self.acts[device][self.position[device]]
        if not isinstance(act, Await):
            heappush(self.next, (self.now[device], device))
        elif act.message in self.arrivals:
            heappush(self.next, (max(self.now[device], self.arrivals[act.message]), device))
        else:
            self.waiting[act.message] = device

    def _act(self, device: int) -> None:
        act, in_a_row = self.acts[device][self.position[device]], is_in_a_row(self.acts[device], self.position[device])
        self.position[device] += 1
        now = self.now[device]
        match act:
            case Busy(seconds=kernels, label=label, segment=segment):
                seconds, self.taken[device] = kernels + self.taken[device], 0.0
                self.now[device] = now + seconds
                self.spans.append(Span(device, "compute", label, now, now + seconds, segment=segment))
            case Post(message=message, destination=to, bytes=size):
                packed = now + self.network.handling(device, device, to, size, in_a_row=in_a_row)
                self._take(device, device, to, size)
                self.now[device] = packed
                self.arrivals[message] = self._arrival(device, to, size, packed)
                if message in self.waiting:
                    self._enqueue(self.waiting.pop(message))
                self.spans.append(Span(device, "send", f"to {to}", now, packed, message, to, size))
            case Await(message=message, source=source, bytes=size):
                there = self.arrivals[message]
                self._take(device, source, device, size)
                if there > now:
                    self.taken[device] = max(0.0, self.taken[device] - (there - now))  # it was idle meanwhile
                    self.spans.append(Span(device, "wait", f"for {source}", now, there, message, source))
                begun = max(now, there)
                self.now[device] = begun + self.network.handling(device, source, device, size, in_a_row=in_a_row)
                self.spans.append(Span(device, "receive", f"from {source}", begun, self.now[device], message, source, size))

    def _take(self, device: int, source: int, destination: int, size: int) -> None:
        besides = self.network.besides(device, source, destination, size)
        if besides is not None:
            self.taken[besides[0]] += besides[1]

    def _arrival(self, source: int, destination: int, size: int, packed: float) -> float:
        link = self.network.link(source, destination)
        here, there = self.network.machine(source), self.network.machine(destination)
        if here == there:
            return packed + size / link.bandwidth_bytes_per_s + link.latency_s
        wires = [(self.ways[way], way.wire.link.bandwidth_bytes_per_s) for way in self.network.route(source, destination)]
        own = [(self.ways[way], link.bandwidth_bytes_per_s) for way in (("out", here), ("in", there))]
        return carry(wires or own, packed, size, link.bandwidth_bytes_per_s) + link.latency_s
