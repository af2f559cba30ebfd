"""The pass that spreads broadcasts over the wires of their receivers.

A device that sends one region to k others sends it k times through its own wire. Relayed, it sends each of them another k-th, and they
pass these on to each other: every wire carries the region about once, and the bytes of all messages together stay what they were.

    direct      0 ── abc ──► 1        relayed     0 ── a ──► 1 ── a ──► 2, 3
                0 ── abc ──► 2                    0 ── b ──► 2 ── b ──► 1, 3
                0 ── abc ──► 3                    0 ── c ──► 3 ── c ──► 1, 2

An exchange is all messages of one *level*: a device's message has the level 0 if the device has received nothing before, else one more
than the highest level it has received. Relayed pieces travel between the level of their broadcast and the next one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

from bbgrap.cluster import Cluster
from bbgrap.compiler.passes.relayed import Broadcast, Target, rewrite
from bbgrap.compiler.predict import Predictor
from bbgrap.program.steps import Program, Receive, Send
from bbgrap.shapemap import Interval, IntervalSet, ShapeMap

WORTH = 0.9
"""An exchange is relayed if it then takes at most so much of its time: links are not known better than that. Chosen."""

MESSAGE_S = 60e-6
"""What a message costs both its ends' processors, whatever its size: twice the overhead of kind `message` of a generic core."""

GRAIN = 16
"""Pieces begin at multiples of this, preferably: compiled segments keep channels in blocks of 8 or 16."""

Level = int


@dataclass(frozen=True, slots=True)
class RelayBroadcasts:
    """Relay regions that one device sends to several, where the links say that it pays. After `FuseSegments`.

    1. Only agents pass on, and only if they wait for the region together with the first message of its level: so nobody waits for a
       device that is not there yet, and no new circle of waiting can arise.
    2. Only over links that were measured or declared, and not within one machine.
    3. An exchange takes as long as its busiest wire. The largest broadcasts from there come first; one is relayed if its exchange, the
       passing on included, is then faster. Where all devices send alike (an all-gather) none is: wires are as busy before as after.
    4. Of these exchanges those are relayed that lower the predicted time of a request.

    int8 scales depend on how a region is cut into messages; everything else arrives as it would directly, to the bit.
    """

    cluster: Cluster

    def run(self, program: Program) -> Program:
        """Return the program with broadcasts relayed where that is faster."""
        devices = range(program.host + 1)
        if not any(self.cluster.known_link(a, b) for a in devices for b in devices[:-1] if a != b):
            return program
        levels = message_levels(program)
        exchanges = self._exchanges(program, levels)
        bottlenecks = {(level, busiest) for level, exchange in exchanges.items() if (busiest := exchange.bottleneck) is not None}
        found: dict[Level, list[Broadcast]] = defaultdict(list)
        for broadcast in broadcasts_of(program, levels, bottlenecks):
            found[broadcast.level].append(broadcast)
        worth = [chosen for level in sorted(found) if (chosen := list(_chosen(exchanges[level], found[level])))]
        return self._fastest(program, levels, worth) if worth else program

    def _exchanges(self, program: Program, levels: Mapping[int, Level]) -> dict[Level, _Exchange]:
        sent: dict[Level, list[float]] = defaultdict(lambda: [0.0] * len(program.devices))
        for device in program.devices:
            for step in device.steps:
                if isinstance(step, Send):
                    bandwidth = self.cluster.link(device.device, step.destination).bandwidth_bytes_per_s
                    seconds = sum(program.part_bytes(device.device, step)) / bandwidth if bandwidth else 0.0
                    sent[levels[step.message]][device.device] += seconds
        idle = (0.0,) * len(program.devices)
        return {level: _Exchange(self.cluster, tuple(direct), idle) for level, direct in sent.items()}

    def _fastest(self, program: Program, levels: Mapping[int, Level], worth: list[list[Broadcast]]) -> Program:
        """Relay exchange by exchange, as long as the predicted time of a request falls: direct messages overlap with work, too."""
        predictor = Predictor(self.cluster)
        best, best_s = program, predictor.timeline(program).total_s
        kept: list[Broadcast] = []
        for chosen in worth:
            relayed = rewrite(program, levels, [*kept, *chosen])
            seconds = predictor.timeline(relayed).total_s
            if seconds < best_s:
                best, best_s, kept = relayed, seconds, [*kept, *chosen]
        return best


def _chosen(exchange: _Exchange, broadcasts: list[Broadcast]) -> Iterator[Broadcast]:
    for broadcast in sorted(broadcasts, key=lambda b: -b.nbytes * len(b.targets)):
        relayed = exchange.with_relay(broadcast)
        if relayed is not None and relayed.seconds <= WORTH * exchange.seconds:
            exchange = relayed
            yield broadcast


@dataclass(frozen=True, slots=True)
class _Exchange:
    """How long every device's wire is busy in an exchange, in seconds: with what it sends by itself, and with what it passes on."""

    cluster: Cluster
    direct: tuple[float, ...]
    passed_on: tuple[float, ...]
    routes: frozenset[tuple[int, int]] = frozenset()
    """Who passes something on to whom: a message each."""

    @property
    def seconds(self) -> float:
        """How long the exchange takes: what is passed on must have come before."""
        messages = Counter(sender for sender, _ in self.routes)
        latency = max((self.cluster.link(*route).latency_s for route in self.routes), default=0.0)
        return max(self.direct) + max(self.passed_on) + MESSAGE_S * max(messages.values(), default=0) + latency

    @property
    def bottleneck(self) -> int | None:
        """The device whose wire is by far the busiest, if there is one: nothing else is worth relaying."""
        *_, second, most = sorted(self.direct)
        return self.direct.index(most) if second < WORTH * most else None

    def with_relay(self, broadcast: Broadcast) -> _Exchange | None:
        """Return the exchange with a broadcast relayed; None if a link is not known, or all from the source are memory."""
        source, sizes = broadcast.source, {t.device: size for t, size in zip(broadcast.targets, broadcast.piece_bytes, strict=True)}
        direct, passed_on = self.direct, self.passed_on
        if all(self.cluster.machine(source) == self.cluster.machine(target) for target in sizes):
            return None
        for target, size in sizes.items():
            if (link := self.cluster.known_link(source, target)) is None:
                return None
            direct = _plus(direct, source, (size - broadcast.nbytes) / link.bandwidth_bytes_per_s)
        routes = frozenset(permutations(sizes, 2))
        for sender, receiver in routes:
            if (link := self.cluster.known_link(sender, receiver)) is None:
                return None
            passed_on = _plus(passed_on, sender, sizes[sender] / link.bandwidth_bytes_per_s)
        return _Exchange(self.cluster, direct, passed_on, self.routes | routes)


def _plus(values: tuple[float, ...], place: int, more: float) -> tuple[float, ...]:
    return (*values[:place], values[place] + more, *values[place + 1 :])


def message_levels(program: Program) -> dict[int, Level]:
    """Return the level of every message of a program without deadlock."""
    levels: dict[int, Level] = {}
    position, here = [0] * len(program.devices), [0] * len(program.devices)
    waiting = True
    while waiting:
        waiting = False
        for number, device in enumerate(program.devices):
            for step in device.steps[position[number] :]:
                if isinstance(step, Receive):
                    if step.message not in levels:
                        break
                    here[number] = max(here[number], levels[step.message] + 1)
                elif isinstance(step, Send):
                    levels[step.message] = here[number]
                position[number] += 1
                waiting = True
    return levels


def _prompt(steps: Sequence[object], levels: Mapping[int, Level]) -> set[int]:
    """Return the messages that a device receives together with the first one of their level, and before any of a higher level."""
    found: set[int] = set()
    run: list[int] = []
    seen: set[Level] = set()
    for step in (*steps, None):
        if isinstance(step, Receive):
            run.append(step.message)
            continue
        highest = max(seen, default=-1)
        found.update(message for message in run if levels[message] > highest)
        seen.update(levels[message] for message in run)
        run = []
    return found


def broadcasts_of(
    program: Program, levels: Mapping[int, Level], senders: Collection[tuple[Level, int]] | None = None
) -> Iterator[Broadcast]:
    """Yield the broadcasts of a fused program that can be relayed without anybody waiting for a device that is not there yet.

    With `senders`, pairs of level and device, only theirs.
    """
    prompt = [_prompt(device.steps, levels) for device in program.devices[: program.host]]
    for device in program.devices:
        groups: dict[tuple[Level, int, ShapeMap], dict[int, Target]] = defaultdict(dict)
        for step in device.steps:
            if not isinstance(step, Send) or (senders is not None and (levels[step.message], device.device) not in senders):
                continue
            if program.wire(device.device, step.destination) == "palette":
                continue  # who passes it on would send four times as much
            if step.destination != program.host and step.message in prompt[step.destination]:
                for place, part in enumerate(step.parts):
                    group = groups[levels[step.message], part.buffer, part.region]
                    group.setdefault(step.destination, Target(step.destination, step.message, place))
        for (level, buffer, region), targets in groups.items():
            value = device.buffers[buffer].value
            pieces = cut(region, len(targets)) if len(targets) > 1 else ()
            nbytes = program.region_bytes(value, region, program.transfers)
            sizes = tuple(program.region_bytes(value, piece, program.transfers) for piece in pieces)
            if pieces and nbytes and sum(sizes) <= nbytes:  # more scales than before would be more bytes
                yield Broadcast(device.device, level, tuple(targets.values()), pieces, nbytes, sizes)


def cut(region: ShapeMap, parts: int) -> tuple[ShapeMap, ...]:
    """Cut a region along one axis into pieces that differ by one element of it at most; nothing if no axis is long enough.

    The axis is the first that divides into whole grains, else the first after the channels, else the first.
    """
    extents = [len(held) for held in region.axes]
    even = [axis for axis, extent in enumerate(extents) if extent and extent % (GRAIN * parts) == 0]
    long = [axis for axis, extent in enumerate(extents) if extent >= parts]
    for axis in (*even, *(axis for axis in long if axis > 1), *long):
        held, bounds = region.axes[axis], [extents[axis] * n // parts for n in range(parts + 1)]
        return tuple(region.replace(axis, _positions(held, start, stop)) for start, stop in pairwise(bounds))
    return ()


def _positions(held: IntervalSet, start: int, stop: int) -> IntervalSet:
    """Return the elements of a set from its `start`-th to before its `stop`-th."""
    found: list[Interval] = []
    before = 0
    for interval in held.ranges:
        first, last = max(start - before, 0), min(stop - before, len(interval))
        if first < last:
            found.append(Interval(interval.start + first, interval.start + last))
        before += len(interval)
    return IntervalSet.of(*found)
