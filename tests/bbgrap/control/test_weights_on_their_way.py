"""Weights on their way to an agent over links of any speed: what else the agent is told, and other models, have not to wait for long."""

import heapq

import numpy as np
import pytest

from bbgrap.control.send_window import LEAST_WINDOW_BYTES
from bbgrap.control.weight_feed import WeightFeed
from bbgrap.graph.types import DType, TensorType
from bbgrap.protocol.messages import WeightChunk
from tests.bbgrap.control.wire import joined_wire


class Way:
    """An agent that is sent weights over a link with this rate and round trip."""

    def __init__(self, bytes_s: float, round_trip_s: float) -> None:
        self.bytes_s, self.round_trip_s = bytes_s, round_trip_s
        self.now = self.free_at = 0.0
        self.feed = WeightFeed(b"a")
        self.there: dict[str, int] = {}
        self.at: dict[str, float] = {}
        """When weights arrived to the end."""
        self.acknowledgements: list[tuple[float, str, int]] = []

    def ask(self, sizes: dict[str, int]) -> None:
        types = {digest: TensorType(DType.UINT8, (size,)) for digest, size in sizes.items()}
        self._send(self.feed.send(sizes, {digest: np.zeros(size, np.uint8) for digest, size in sizes.items()}, types, self.now))

    def _send(self, instructions) -> None:
        for instruction in instructions:
            chunk = instruction.message
            assert isinstance(chunk, WeightChunk)
            assert chunk.offset == self.there.get(chunk.digest, 0)
            self.there[chunk.digest] = chunk.offset + len(chunk.payload[0])
            self.free_at = max(self.now, self.free_at) + len(chunk.payload[0]) / self.bytes_s
            heapq.heappush(self.acknowledgements, (self.free_at + self.round_trip_s, chunk.digest, self.there[chunk.digest]))

    def wait(self, until: float = float("inf")) -> None:
        while self.acknowledgements and self.acknowledgements[0][0] <= until:
            self.now, digest, received = heapq.heappop(self.acknowledgements)
            self._send(self.feed.acknowledge(digest, received, self.now, self.round_trip_s))
            self.at[digest] = self.now


@pytest.mark.parametrize("bytes_s", [40e3, 250e3, 1e6])
def test_a_small_model_waits_for_little_of_a_large_one(bytes_s):
    """At 300 kbit/s it waited for all of it, and any message for the 16 MiB of it that were on their way: 7 minutes."""
    way = Way(bytes_s, 0.04)
    way.ask({f"large {number}": 9 << 20 for number in range(4)})
    way.wait(until=30.0)
    assert 0 < way.free_at - way.now < max(1.0, 1.5 * LEAST_WINDOW_BYTES / bytes_s)  # what any other message waits for
    asked, small = way.now, {f"small {number}": 20_000 for number in range(5)}
    way.ask(small)
    way.wait()
    assert max(way.at[digest] for digest in small) - asked < 4.0 + sum(small.values()) / bytes_s
    assert max(way.at.values()) == pytest.approx((sum(small.values()) + 4 * (9 << 20)) / bytes_s, rel=0.05)


@pytest.mark.parametrize(("bytes_s", "round_trip_s"), [(1.25e9, 2e-4), (1.25e8, 1e-2), (1.25e6, 0.3), (1.25e6, 0.6)])
def test_a_link_is_kept_busy(bytes_s, round_trip_s):
    way, megabytes = Way(bytes_s, round_trip_s), max(16, int(bytes_s / 4e5))
    way.ask({str(number): 1 << 20 for number in range(megabytes)})
    way.wait()
    assert way.now < 1.1 * (megabytes << 20) / bytes_s + 4 * round_trip_s


def test_a_link_that_has_become_slower_has_less_on_its_way():
    way = Way(1e8, 0.01)
    way.ask({"weight": 200 << 20})
    way.wait(until=1.0)
    way.bytes_s = 1e6
    way.wait(until=90.0)
    assert 0.1 < way.free_at - way.now < 3.0


def test_what_is_wanted_by_nobody_any_more_is_not_sent():
    """All weights of a plan that was given up while it loaded came, before those of the next one."""
    wire = joined_wire("a")
    wire.prepare()
    (member,) = wire.coordinator.members.alive()
    while not member.weights.outgoing:
        for key in wire.pending():
            wire.deliver(key)
    (digest,) = member.weights.outgoing
    size = 9 << 20
    member.weights.send(["other"], {"other": np.zeros(size, np.uint8)}, {"other": TensorType(DType.UINT8, (size,))}, wire.now)
    assert set(member.weights.outgoing) == {digest, "other"}
    loading = wire.coordinator.loading
    first, *others = loading.of_member("a")
    again, waiting = (loading.add(first.plan, first.planned, first.nodes, first.job, first.world, wire.now) for _ in range(2))
    again.tracker.move("load")
    for variant in (first, *others):
        loading.release(variant)
    assert set(member.weights.outgoing) == {digest}  # the next one wants it, too
    loading.release(again)
    assert waiting in loading.of_member("a")  # which has not asked
    assert (member.weights.outgoing, member.weights.fed, member.weights.to_feed) == ({}, 0, 0)
