"""What a profile by hand says that no machine is: mostly a unit was forgotten."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bbgrap.cluster.profiles import NodeProfile
from bbgrap.cluster.units import FLOPS, RATES, SIZES, TIMES, format_quantity

LEAST_FLOPS, MOST_FLOPS = 1e7, 500e12
"""Operations per second of one node: a microcontroller does more than the first, no CPU does the second."""
LEAST_RATE, MOST_RATE = 1e3, 1e13
"""Bytes per second, of memory or a link."""
LEAST_MEMORY, MOST_MEMORY = 16 << 20, 1 << 50
"""Bytes."""
MOST_TIME = 60.0
"""Seconds, of an overhead or a round trip."""


def doubts(node: NodeProfile) -> Iterator[str]:
    """Yield a sentence for each figure that is hardly meant."""
    who = f"node '{node.name}'"
    for speed in node.work:
        what = f"{who}: work '{speed.kind}'"
        yield from _doubt(f"{what}: flops", speed.flops_per_s, LEAST_FLOPS, MOST_FLOPS, FLOPS, "GFLOP/s")
        yield from _doubt(f"{what}: weights", speed.weight_bytes_per_s, LEAST_RATE, MOST_RATE, RATES, "GB/s")
        yield from _doubt(f"{what}: maps", speed.map_bytes_per_s, LEAST_RATE, MOST_RATE, RATES, "GB/s")
        yield from _doubt(f"{what}: overhead", speed.overhead_s, 0, MOST_TIME, TIMES, "us")
    yield from _doubt(f"{who}: memory", node.memory_bytes, LEAST_MEMORY, MOST_MEMORY, SIZES, "GiB")
    for link in node.links:
        what = f"{who}: link to '{link.peer}'"
        yield from _doubt(f"{what}: bandwidth", link.bandwidth_bytes_per_s, LEAST_RATE, MOST_RATE, RATES, "Gbit/s")
        yield from _doubt(f"{what}: round_trip", link.round_trip_s, 0, MOST_TIME, TIMES, "ms")


def _doubt(what: str, value: float, least: float, most: float, units: Mapping[str, float], usual: str) -> Iterator[str]:
    if value and not least <= value <= most:
        base = next(iter(units))
        expected = (
            f"{format_quantity(least, units)} to {format_quantity(most, units)}" if least else f"at most {format_quantity(most, units)}"
        )
        yield f"{what} is {value:g} {base}, expected {expected}; is a unit missing, like {usual}?"
