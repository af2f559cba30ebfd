"""What working together costs a machine itself: starting segments, maps at their borders, and both ends of messages.

Segments. What enters a compiled segment is joined from pieces, what leaves it is brought out of onnxruntime: every border costs one copy,
and a start. The session measured here does one cheap element-wise function, and one that does it twice tells how much of the time
that is. A plain border of a convolution would cost a change of layout more; compiled segments have none between each other
(docs/decisions/0006), so it is not counted.

Both are done between kernels, which leave nothing else in the caches near a core: so it is measured.

Messages. One thread sends itself messages over the loopback device: packing, both calls of the operating system, unpacking. An end is
half of that.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from bbgrap.engine.sessions import make_session
from bbgrap.errors import ExecutionError
from bbgrap.graph.onnx_write import write_graph
from bbgrap.graph.types import DType, TensorType
from bbgrap.program.blocked import aligned_empty
from bbgrap.protocol.data import Frame, Kind, Letter, pack, unpack
from bbgrap.tdl.work import Work
from bbgrap.transport.tcp import TcpDataPlane
from bbgrap.zoo.builder import Builder
from bbgrap_agent.fitting import Sample, typical

_BORDERS = ((64, 56, 56), (64, 28, 56), (128, 28, 28), (256, 14, 14), (256, 7, 14), (512, 4, 7))
"""Channels, rows and columns of the maps at the borders of segments."""

_ROWS = ((16, 2, 16), (64, 1, 56), (64, 3, 56), (256, 2, 28), (512, 4, 14), (64, 28, 56), (256, 28, 28), (512, 28, 28))
"""Channels, rows and columns of what is sent: rows out of maps of `_MAP_ROWS` rows, from halos to whole halves."""
_MAP_ROWS = 56

_CROWD_BYTES = 4 << 20
"""What kernels have read and written since the last message or the start of the segment: more than the caches near a core hold."""

_RUNS = 100
_LEAST_RUNS = 3
_WAIT_S = 1.0


def segment_samples(threads: int, budget_s: float) -> list[Sample]:
    """Return what segments cost besides their kernels, by bytes of the maps at their borders."""
    samples = []
    for channels, rows, columns in _BORDERS:
        once, twice = (_border_s(channels, rows, columns, count, threads, budget_s / len(_BORDERS) / 2) for count in (1, 2))
        # the second function reads what is in the caches: the kernel's time is at most the difference, and never all there is
        seconds = max(2 * once - twice, once / 4)
        samples.append(Sample(Work("segment", map_bytes=2 * 4 * channels * rows * columns), seconds, f"border{channels}x{rows}x{columns}"))
    return samples


def _border_s(channels: int, rows: int, columns: int, count: int, threads: int, budget_s: float) -> float:
    """Return the seconds of joining a map out of two pieces and running a segment of `count` functions on it."""
    net = Builder("border", (1, channels, rows, columns))
    x = "input"
    for number in range(count):
        x = net.act("Neg", x, f"y{number}")
    session = make_session(write_graph(net.graph(x), weights="inline").data, threads=threads, shared_pool=threads > 1)
    held = np.ones((1, channels, rows, columns), np.float32)
    half = rows // 2

    def run() -> None:
        joined = aligned_empty(held.shape)
        joined[:, :, :half] = held[:, :, :half]
        joined[:, :, half:] = held[:, :, half:]
        session.run([x], {"input": joined})

    return _typical_s(run, budget_s)


def message_samples(budget_s: float) -> list[Sample]:
    """Return what one end of a message costs the processor, by its bytes."""
    sender, receiver = (TcpDataPlane("tcp://127.0.0.1:0", "127.0.0.1") for _ in range(2))
    try:
        sender.connect(receiver.address)
        return [_message(sender, receiver, *of, budget_s / len(_ROWS)) for of in _ROWS]
    finally:
        sender.close()
        receiver.close()


def _message(sender: TcpDataPlane, receiver: TcpDataPlane, channels: int, rows: int, columns: int, budget_s: float) -> Sample:
    part = np.ones((1, channels, _MAP_ROWS, columns), np.float32)[:, :, :rows]
    letter = Letter(0, (TensorType(DType.FLOAT, part.shape),))

    def run() -> None:
        sender.send(receiver.address, Frame(Kind.DATA, 0, 0, 0, 0).to_bytes(), *pack(letter, [part]))
        arrival = receiver.receive(_WAIT_S, _WAIT_S)
        if arrival is None:
            raise ExecutionError("measuring: a message to this machine itself did not arrive; is its loopback device up?")
        Frame.parse(arrival.header)
        unpack(letter, arrival.payload)

    return Sample(Work("message", map_bytes=part.nbytes), _typical_s(run, budget_s) / 2, f"message{channels}x{rows}x{columns}")


def _typical_s(run: Callable[[], object], budget_s: float) -> float:
    crowd = np.ones(_CROWD_BYTES // 4, np.float32)
    run()
    times: list[float] = []
    until = time.perf_counter() + budget_s
    while len(times) < _LEAST_RUNS or (time.perf_counter() < until and len(times) < _RUNS):
        crowd.max()
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return typical(times)
