"""How fast machines do every kind of work: measured, written by hand in part, or nothing known at all.

What is not known is taken from a generic core, scaled by what is known. Laws: every kind has a speed; a kind that was measured is used
as it is; the same profiles give the same speeds and shares.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median

from bbgrap.cluster.profiles import NodeProfile, Speed
from bbgrap.work import KINDS, Work


def _convolution(kind: str, kernel: int, inputs: int, outputs: int, size: int, group: int = 1) -> Work:
    weights = kernel**2 * inputs // group * outputs
    return Work(kind, 2 * weights * size**2, 4 * weights, 4 * (inputs + outputs) * size**2)


def _product(kind: str, rows: int, depth: int, columns: int) -> Work:
    return Work(kind, 2 * rows * depth * columns, 4 * depth * columns, 4 * rows * (depth + columns))


def _of_bytes(kind: str, work: Work) -> Work:
    return Work(kind, work.flops, work.weight_bytes // 4, work.map_bytes // 4)


_MAP = 256 * 28 * 28
"""Elements of a map of medium size: 256 channels of 28 x 28."""

TYPICAL: Mapping[str, Work] = {
    "conv1x1": _convolution("conv1x1", 1, 256, 256, 28),
    "conv3x3": _convolution("conv3x3", 3, 128, 128, 28),
    "conv": _convolution("conv", 7, 3, 64, 112),
    "depthwise": _convolution("depthwise", 3, 256, 256, 28, 256),
    "conv_int8": _of_bytes("conv_int8", _convolution("conv3x3", 3, 128, 128, 28)),
    "depthwise_int8": _of_bytes("depthwise_int8", _convolution("depthwise", 3, 256, 256, 28, 256)),
    "matmul": _product("matmul", 128, 768, 768),
    "matvec": _product("matvec", 1, 2048, 1000),
    "matmul_int8": _of_bytes("matmul_int8", _product("matmul", 128, 768, 768)),
    "transform": Work("transform", 100 * 5 * 512 * 9, 0, 4 * 100 * (512 + 2 * 257)),
    "scalar": Work("scalar", 1000 * 12 * 100 * 9, 0, 4 * 1000 * 21),
    "pool": Work("pool", 9 * _MAP // 4, 0, 5 * _MAP),
    "normalize": Work("normalize", _MAP, 0, 8 * _MAP),
    "elementwise": Work("elementwise", _MAP, 0, 8 * _MAP),
    "elementwise_int8": Work("elementwise_int8", _MAP, 0, 3 * _MAP),
    "move": Work("move", _MAP, 0, 8 * _MAP),
    "other": Work("other", _MAP, 0, 8 * _MAP),
    "segment": Work("segment", 0, 0, 4 * _MAP),
    "message": Work("message", 0, 0, 4 * 256 * 28),
}
"""One typical piece of every kind of work, to compare machines by and to show to people."""

PIECES: Mapping[str, str] = {
    "conv1x1": "256 to 256 channels, 28 x 28",
    "conv3x3": "128 to 128 channels, 28 x 28",
    "conv": "7 x 7, 3 to 64 channels, 112 x 112",
    "depthwise": "3 x 3, 256 channels, 28 x 28",
    "matmul": "128 rows, 768 x 768",
    "matvec": "1 row, 2048 x 1000",
    "conv_int8": "128 to 128 channels, 28 x 28",
    "depthwise_int8": "3 x 3, 256 channels, 28 x 28",
    "matmul_int8": "128 rows, 768 x 768",
    "transform": "100 signals of 512",
    "scalar": "1000 rows through 100 trees",
    "pool": "3 x 3, 256 channels, 28 x 28",
    "message": "1 row of 256 channels x 28",
    **dict.fromkeys(("normalize", "elementwise", "elementwise_int8", "move", "other", "segment"), "256 channels, 28 x 28"),
}
"""What the typical pieces are, in words."""

SHARED_WORK: Mapping[str, int] = {"conv3x3": 2, "conv1x1": 2, "matmul": 1}
"""What machines are compared by when work is divided: pieces of these kinds, chosen; most of most models is one of them."""

SAME_WITHIN = 0.05
"""Machines whose speeds at this work differ by less are equal: chosen; two cores of one machine, measured six times one after the other,
differed by 0.4 to 3.7 % (decision 7)."""

DEFAULT_WORK: tuple[Speed, ...] = (
    Speed("conv1x1", 120e9, 36e9, 62e9, 3.6e-6),
    Speed("conv3x3", 120e9, 17e9, 18e9, 4.2e-6),
    Speed("conv", 110e9, 31e9, 41e9, 0.0),
    Speed("depthwise", 100e9, 0.0, 67e9, 10e-6),
    Speed("conv_int8", 240e9, 20e9, 20e9, 5e-6),
    Speed("depthwise_int8", 60e9, 0.0, 0.0, 10e-6),
    Speed("matmul", 99e9, 120e9, 200e9, 9.6e-6),
    Speed("matvec", 150e9, 19e9, 0.0, 3.5e-6),
    Speed("matmul_int8", 200e9, 20e9, 0.0, 5e-6),
    Speed("transform", 2.1e9, 0.0, 0.0, 5e-6),
    Speed("scalar", 1.6e9, 0.0, 0.0, 5e-6),
    Speed("pool", 83e9, 0.0, 72e9, 6.0e-6),
    Speed("normalize", 0.0, 0.0, 19e9, 7.7e-6),
    Speed("elementwise", 0.0, 0.0, 50e9, 4.7e-6),
    Speed("elementwise_int8", 0.0, 0.0, 5e9, 5e-6),
    Speed("move", 0.0, 0.0, 39e9, 4.2e-6),
    Speed("other", 0.0, 0.0, 50e9, 4.7e-6),
    Speed("segment", 0.0, 0.0, 33e9, 16e-6),
    Speed("message", 0.0, 0.0, 9.8e9, 14e-6),
)
"""A generic core: one thread on a virtual machine with AMD EPYC processors, measured as agents do, rounded to two digits."""

ONE_THREAD = frozenset({"segment", "message", "transform"})
"""Kinds of work that more threads do not make faster."""

THREAD_EXPONENT = 0.95
"""So n threads are n ** 0.95 times as fast as one: 1.93 times for two, as measured with ResNet50."""


def speeds_of(node: NodeProfile) -> Mapping[str, Speed]:
    """Return a node's speed for every kind of work.

    A kind that its profile does not have is that of the generic core, times the median of how much faster the node does what was
    measured; if nothing was, times its share, and for kernels also by its threads.
    """
    known = {speed.kind: speed for speed in node.work}
    ratios = [
        default.seconds_of(TYPICAL[default.kind]) / seconds
        for default in DEFAULT_WORK
        if default.kind in known and default.kind not in ONE_THREAD and (seconds := known[default.kind].seconds_of(TYPICAL[default.kind]))
    ]
    threads = max(node.threads, 1) ** THREAD_EXPONENT
    kernels = median(ratios) if ratios else node.share * threads
    start = kernels / threads
    found = {speed.kind: _faster(speed, start if speed.kind in ONE_THREAD else kernels) for speed in DEFAULT_WORK}
    return {kind: known.get(kind) or found[kind] for kind in KINDS}


def as_slow_as_known(nodes: Sequence[NodeProfile]) -> tuple[NodeProfile, ...]:
    """Return the nodes; of which nothing is known, one is as fast as the slowest of the others, for a plan pays dearly for more.

    Where nothing is known of any, they stay as they are: all generic cores.
    """
    slowest = max((node for node in nodes if node.work), key=lambda node: _shared_seconds(speeds_of(node)), default=None)
    if slowest is None:
        return tuple(nodes)
    return tuple(node if node.work or node.share != 1 else replace(node, work=slowest.work) for node in nodes)


def _shared_seconds(speeds: Mapping[str, Speed], kinds: Collection[str] = tuple(SHARED_WORK)) -> float:
    """Return how long the work takes that machines are compared by, or what of it is of these kinds."""
    return sum(count * speeds[kind].seconds_of(TYPICAL[kind]) for kind, count in SHARED_WORK.items() if kind in kinds)


def _faster(speed: Speed, factor: float) -> Speed:
    return replace(
        speed,
        flops_per_s=speed.flops_per_s * factor,
        weight_bytes_per_s=speed.weight_bytes_per_s * factor,
        map_bytes_per_s=speed.map_bytes_per_s * factor,
        overhead_s=speed.overhead_s / factor,
    )


def shares_of(nodes: Sequence[NodeProfile]) -> tuple[float, ...]:
    """Return the relative parts of the work: of the speeds where every node's are known and no share was set by hand, else as declared.

    The fastest gets 1, the others two digits; nodes that are about as fast as each other get the same.
    """
    known = [{speed.kind: speed for speed in node.work} for node in nodes]
    kinds = [kind for kind in SHARED_WORK if all(kind in speeds for speeds in known)]
    seconds = [_shared_seconds(speeds, kinds) for speeds in known]
    if any(node.share != 1 for node in nodes) or not kinds or not min(seconds) > 0:
        return tuple(node.share for node in nodes)
    shares: dict[int, float] = {}
    leader = 1.0
    for device in sorted(range(len(nodes)), key=lambda d: (seconds[d], d)):
        share = min(seconds) / seconds[device]
        leader = leader if share > leader * (1 - SAME_WITHIN) else share
        shares[device] = float(f"{leader:.2g}")
    return tuple(shares[device] for device in range(len(nodes)))
