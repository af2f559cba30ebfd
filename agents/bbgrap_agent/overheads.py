"""What working together costs a machine itself: starting segments, maps at their borders, and both ends of messages.

Segments. What enters a compiled segment is joined from pieces, what leaves it is brought out of onnxruntime: every border costs one copy,
and a start. The session measured here does one cheap element-wise function, and another one that does three tells how much of the
time that is. A plain border of a convolution would cost a change of layout more; compiled segments have none between each other
(docs/decisions/0006), so it is not counted.

Both are done between kernels, which leave nothing else in the caches near a core: so it is measured.

Messages. One thread sends itself messages over the loopback device, as an executor does: packing, both calls of the operating system,
unpacking. An end is half of that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from bbgrap.engine.sessions import make_session
from bbgrap.errors import ExecutionError
from bbgrap.graph.onnx_write import write_graph
from bbgrap.graph.types import Array, DType
from bbgrap.protocol.data import Frame
from bbgrap.protocol.message_layout import unpack
from bbgrap.protocol.messages import Peer
from bbgrap.runtime.blocked import aligned_empty
from bbgrap.runtime.execution import SlicePlan
from bbgrap.runtime.schedule import BufferSpec, LocalPart, LocalSend, Schedule
from bbgrap.transport.local_program import LocalProgram
from bbgrap.transport.tcp import TcpDataPlane
from bbgrap.transport.tls import TlsIdentity
from bbgrap.work import Work
from bbgrap.zoo.builder import Builder
from bbgrap_agent.speed_fitting import Sample, typical

_BORDERS = ((64, 56, 56), (64, 28, 56), (128, 28, 28), (256, 14, 14), (256, 7, 14), (512, 4, 7))
"""Channels, rows and columns of the maps at the borders of segments."""

_ROWS = ((16, 2, 16), (64, 1, 56), (64, 3, 56), (256, 2, 28), (512, 4, 14), (64, 28, 56), (256, 28, 28), (512, 28, 28))
"""Channels, rows and columns of what is sent: rows out of maps of `_MAP_ROWS` rows, from halos to whole halves."""
_MAP_ROWS = 56

_CROWD_BYTES = 4 << 20
"""What kernels have read and written since the last message or the start of the segment: more than the caches near a core hold."""

_FUNCTIONS = 3
"""How many functions the longer segment has."""
_LEAST_PART = 0.25
"""Of a run of the short segment, at least so much is no kernel: chosen, where noise says otherwise."""

_RUNS = 100
_LEAST_RUNS = 3
_WAIT_S = 1.0


def segment_samples(threads: int, budget_s: float) -> list[Sample]:
    """Return what segments cost besides their kernels, by bytes of the maps that enter; as many leave."""
    return [_border(*of, threads, budget_s / len(_BORDERS)) for of in _BORDERS]


def _border(channels: int, rows: int, columns: int, threads: int, budget_s: float) -> Sample:
    held = np.ones((1, channels, rows, columns), np.float32)
    runs = [_segment(held, count, threads) for count in (1, _FUNCTIONS)]
    once, several = _typical_s(runs, budget_s)
    kernel = max(several - once, 0.0) / (_FUNCTIONS - 1)
    seconds = max(once - kernel, once * _LEAST_PART)
    return Sample(Work("segment", map_bytes=held.nbytes), seconds, f"border{channels}x{rows}x{columns}")


def _segment(held: Array, count: int, threads: int) -> Callable[[], object]:
    """Return what joins a map out of two pieces and runs a segment of so many functions on it."""
    net = Builder("border", held.shape)
    x = "input"
    for number in range(count):
        x = net.act("Neg", x, f"y{number}")
    session = make_session(write_graph(net.graph(x), weights="inline").data, threads=threads, shared_pool=threads > 1)
    half = held.shape[2] // 2

    def run() -> object:
        joined = aligned_empty(held.shape)
        joined[:, :, :half] = held[:, :, :half]
        joined[:, :, half:] = held[:, :, half:]
        return session.run([x], {"input": joined})

    return run


def message_samples(budget_s: float, identity: TlsIdentity | None = None) -> list[Sample]:
    """Return what one end of a message costs the processor, by its bytes; with an identity it is ciphered."""
    sender, receiver = (TcpDataPlane("tcp://127.0.0.1:0", "127.0.0.1", identity=identity) for _ in range(2))
    fingerprint = "" if identity is None else identity.fingerprint
    try:
        receiver.allow([fingerprint])
        sender.connect(receiver.address, fingerprint)
        return [_message(sender, receiver, *of, budget_s / len(_ROWS)) for of in _ROWS]
    finally:
        sender.close()
        receiver.close()


def _message(sender: TcpDataPlane, receiver: TcpDataPlane, channels: int, rows: int, columns: int, budget_s: float) -> Sample:
    shape = (1, channels, _MAP_ROWS, columns)
    step = LocalSend(0, 1, (LocalPart(0, (((0, 1),), ((0, channels),), ((0, rows),), ((0, columns),))),))
    schedule = Schedule(0, 2, (BufferSpec("map", DType.FLOAT, shape),), (step,))
    program = LocalProgram(0, schedule, SlicePlan(schedule), {1: Peer(1, "", receiver.address)})
    held, layout = {0: np.ones(shape, np.float32)}, program.sent[0]

    def run() -> None:
        program.send(sender, 0, step, held)
        arrival = receiver.receive(_WAIT_S, _WAIT_S)
        if arrival is None:
            raise ExecutionError("measuring: a message to this machine itself did not arrive; is its loopback device up?")
        Frame.parse(arrival.header)
        unpack(layout, arrival.payload)

    (seconds,) = _typical_s([run], budget_s)
    return Sample(Work("message", map_bytes=layout.nbytes or 0), seconds / 2, f"message{channels}x{rows}x{columns}")


def _typical_s(runs: Sequence[Callable[[], object]], budget_s: float) -> list[float]:
    """Return the typical seconds of each of some functions, called in turns for about so long."""
    crowd = np.ones(_CROWD_BYTES // 4, np.float32)
    times: list[list[float]] = [[] for _ in runs]
    until = time.perf_counter() + budget_s
    for turn in range(_RUNS + 1):
        if turn > _LEAST_RUNS and time.perf_counter() > until:
            break
        for run, taken in zip(runs, times, strict=True):
            crowd.max()
            began = time.perf_counter()
            run()
            taken.append(time.perf_counter() - began)
    return [typical(taken[1:]) for taken in times]  # the first turn warms up
