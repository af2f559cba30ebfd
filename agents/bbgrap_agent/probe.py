"""Measuring this machine: how fast kernels of typical shapes run, how fast memory is read, and how far away the other machines are.

Laws: nothing is assumed about the model to come; every figure is a median of repeated runs after a warm-up, and the whole takes a few
seconds. Rates count a multiply and an add as two operations.
"""

from __future__ import annotations

import queue
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bbgrap.cluster.types import KernelRate, LinkProfile, NodeProfile
from bbgrap.engine.sessions import make_session
from bbgrap.graph.onnx_write import write_graph
from bbgrap.graph.types import DType, Graph, Node, TensorType
from bbgrap.graph.weights import make_weight
from bbgrap.protocol.data import Frame, Kind
from bbgrap.protocol.messages import Join, Peer
from bbgrap_agent.executor import Executor

_OPSET = 17
_BUDGET_S = 0.15
"""Time spent on each kernel: some 100 runs of the smallest, at least `_LEAST_RUNS` of the largest."""
_LEAST_RUNS = 5
_MEMORY_BYTES = 64 << 20
"""Beyond the last-level cache of common machines."""
_PINGS = 30
_BULK_BYTES = 1 << 20
_BULKS = 4
_PING_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution with square kernel, map and stride 1; depthwise where `groups` equals the channels."""

    kernel: int
    inputs: int
    outputs: int
    size: int
    groups: int = 1

    @property
    def kind(self) -> str:
        """The name of this kind of work in profiles."""
        name = "depthwise" if self.groups > 1 else "conv"
        return f"{name}{self.kernel}x{self.kernel}_{self.outputs}_{self.size}"

    @property
    def flops(self) -> int:
        """Operations of one run."""
        return 2 * self.kernel**2 * self.inputs // self.groups * self.outputs * self.size**2

    def graph(self) -> Graph:
        """The convolution as a model."""
        weight = _weight((self.outputs, self.inputs // self.groups, self.kernel, self.kernel))
        pads = (self.kernel // 2,) * 4
        node = Node("work", "Conv", ("x", "w"), ("y",), {"pads": pads, "group": self.groups, "kernel_shape": (self.kernel,) * 2})
        return _graph(node, weight, (1, self.inputs, self.size, self.size), (1, self.outputs, self.size, self.size))


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product `[rows, depth] x [depth, columns]` with constant right side."""

    rows: int
    depth: int
    columns: int

    @property
    def kind(self) -> str:
        """The name of this kind of work in profiles."""
        return f"matmul_{self.rows}x{self.depth}x{self.columns}"

    @property
    def flops(self) -> int:
        """Operations of one run."""
        return 2 * self.rows * self.depth * self.columns

    def graph(self) -> Graph:
        """The product as a model."""
        node = Node("work", "MatMul", ("x", "w"), ("y",))
        return _graph(node, _weight((self.depth, self.columns)), (self.rows, self.depth), (self.rows, self.columns))


WORK: tuple[Convolution | Product, ...] = (
    Convolution(3, 64, 64, 56),
    Convolution(3, 128, 128, 28),
    Convolution(3, 256, 256, 14),
    Convolution(3, 512, 512, 7),
    Convolution(1, 256, 64, 56),
    Convolution(1, 1024, 256, 14),
    Convolution(3, 144, 144, 56, groups=144),
    Product(1, 2048, 1000),
    Product(128, 768, 768),
)
"""Large maps with few channels to small maps with many, dense and depthwise, one vector and a batch of them."""


def measure(join: Join, peers: Sequence[Peer], executor: Executor) -> NodeProfile:
    """Measure this machine and its links; requests that run meanwhile disturb it, and it them."""
    return NodeProfile(
        join.name,
        cores=join.cores,
        threads=join.threads,
        memory_bytes=join.memory_bytes,
        memory_bandwidth_bytes_per_s=_measured(memory_bandwidth()),
        kernels=tuple(KernelRate(work.kind, _measured(kernel_rate(work, join.threads))) for work in WORK),
        links=tuple(link for peer in peers if (link := measure_link(peer, executor)) is not None),
    )


def kernel_rate(work: Convolution | Product, threads: int) -> float:
    """Return billions of operations per second for one kind of work."""
    session = make_session(write_graph(work.graph(), weights="inline").data, threads=threads, shared_pool=threads > 1)
    shape = session.get_inputs()[0].shape
    feed = {"x": np.random.default_rng(0).random(shape, dtype=np.float32)}
    return work.flops / _median_time(lambda: session.run(None, feed)) / 1e9


def _measured(value: float) -> float:
    """Return a measurement with the digits that mean something: three."""
    return float(f"{value:.3g}")


def memory_bandwidth() -> float:
    """Return bytes per second of reading one array and writing another, on one thread."""
    source = np.ones(_MEMORY_BYTES, np.uint8)
    target = np.empty_like(source)
    return 2 * _MEMORY_BYTES / _median_time(lambda: np.copyto(target, source))


def _median_time(run: Callable[[], object]) -> float:
    run()
    times: list[float] = []
    while len(times) < _LEAST_RUNS or sum(times) < _BUDGET_S:
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measure_link(peer: Peer, executor: Executor) -> LinkProfile | None:
    """Measure the data plane to a peer with the executor's own sockets; None if it does not answer.

    Bandwidth is that of the way back: the answers are large, the questions small.
    """
    pongs: queue.SimpleQueue[int] = queue.SimpleQueue()
    executor.post(lambda: executor.begin_pings(peer.address, pongs.put))
    try:
        times = [_ping(executor, peer, pongs, number, 0) for number in range(_PINGS)]
        bulk = [_ping(executor, peer, pongs, _PINGS + number, _BULK_BYTES) for number in range(_BULKS)]
    except TimeoutError:
        return None
    finally:
        executor.post(lambda: executor.end_pings(peer.address))
    round_trip = statistics.median(times)
    seconds = max(statistics.median(bulk) - round_trip / 2, 1e-6)
    return LinkProfile(peer.name, _measured(_BULK_BYTES / seconds), _measured(round_trip))


def _ping(executor: Executor, peer: Peer, pongs: queue.SimpleQueue[int], number: int, size: int) -> float:
    """Return the seconds until a ping is answered with so many bytes.

    Raises:
        TimeoutError: if it never is. The first one may be too early for a peer that has just learned of us, so each is tried twice.
    """
    frame = Frame(Kind.PING, 0, 0, number, size)
    for _ in range(2):
        began = time.perf_counter()
        executor.post(lambda: executor.send_ping(peer.address, frame))
        try:
            while pongs.get(timeout=_PING_WAIT_S) != number:
                continue  # a late answer to an earlier try
            return time.perf_counter() - began
        except queue.Empty:
            continue
    raise TimeoutError


def _weight(shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def _graph(node: Node, weight: np.ndarray[tuple[int, ...], np.dtype[np.float32]], given: tuple[int, ...], made: tuple[int, ...]) -> Graph:
    entry = make_weight("w", weight)
    types = {"x": TensorType(DType.FLOAT, given), "y": TensorType(DType.FLOAT, made), "w": entry.type}
    return Graph("probe", (node,), ("x",), ("y",), {"w": entry}, types, {"": _OPSET})
