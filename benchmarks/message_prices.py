"""What does a message cost right after a kernel, and the next ones in a row? `python -m benchmarks.message_prices` (a minute).

    kernel ── send ── send ── send ── receive ── receive ── receive ── kernel ── ...

One process has both ends, with an agent's code and locked connections over loopback; what it receives has arrived. Seconds are those of its
processor, so that other programs take part by what they leave in caches only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnxruntime as ort
from bbgrap_agent.deployment import Deployment
from onnx import TensorProto, helper, numpy_helper

from bbgrap.costmodel.messages import COLD_MESSAGE_S, GENERIC
from bbgrap.engine.sessions import make_session
from bbgrap.graph.types import DType
from bbgrap.protocol.data import Frame
from bbgrap.protocol.message_layout import unpack
from bbgrap.runtime.execution import SlicePlan
from bbgrap.runtime.schedule import BufferSpec, LocalPart, LocalSend, Schedule
from bbgrap.transport.certificates import Authority
from bbgrap.transport.tcp import TcpDataPlane

FLOATS = 768
"""Of a message: a decoder's word."""

PAUSE_S = 5e-3


def matrices() -> Callable[[], object]:
    """Return a kernel that reads 19 MB of weights, as a decoder's segment does."""
    random = np.random.default_rng(0)
    weights = [numpy_helper.from_array(random.standard_normal(size).astype(np.float32), name) for name, size in _LAYERS.items()]
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "down"], ["y"]),
    ]
    return _kernel(nodes, weights, (1, FLOATS))


def convolutions() -> Callable[[], object]:
    """Return a kernel that computes on a map of ResNet50's first stage."""
    weight = numpy_helper.from_array(np.ones((64, 64, 3, 3), np.float32), "w")
    return _kernel([helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)], [weight], (1, 64, 28, 56))


_LAYERS = {"up": (FLOATS, 4 * FLOATS), "down": (4 * FLOATS, FLOATS)}


def _kernel(nodes: list[Any], weights: list[Any], shape: tuple[int, ...]) -> Callable[[], object]:
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(nodes, "kernel", given, [helper.make_empty_tensor_value_info("y")], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session: ort.InferenceSession = make_session(model.SerializeToString(), threads=1)
    feed = {"x": np.ones(shape, np.float32)}
    return lambda: session.run(None, feed)


class Ends:
    """One data plane in the middle, and those that it exchanges messages with."""

    def __init__(self, peers: int) -> None:
        authority = Authority.make()
        identities = [authority.identity(f"end{number}") for number in range(peers + 1)]
        self.middle, *self.peers = (TcpDataPlane("tcp://127.0.0.1:0", "127.0.0.1", identity=identity) for identity in identities)
        mine, *others = identities
        self.middle.allow([identity.fingerprint for identity in others])
        for peer, identity in zip(self.peers, others, strict=True):
            peer.allow([mine.fingerprint])
            self.middle.connect(peer.address, identity.fingerprint)
            peer.connect(self.middle.address, mine.fingerprint)
        self._steps = tuple(LocalSend(0, number + 1, (LocalPart(0, None),)) for number in range(peers))
        schedule = Schedule(0, peers + 1, (BufferSpec("sum", DType.FLOAT, (1, FLOATS)),), self._steps)
        there = tuple(peer.address for peer in self.peers)
        self._out = Deployment(0, schedule, (), (), ("", *there), SlicePlan(schedule))
        self._back = Deployment(0, schedule, (), (), ("", *(self.middle.address for _ in there)), SlicePlan(schedule))
        self._held = {0: np.ones((1, FLOATS), np.float32)}

    def round(self, kernel: Callable[[], object]) -> list[float]:
        """Do a round; return the processor's seconds of each message sent, then of each received."""
        for peer, step in zip(self.peers, self._steps, strict=True):
            self._back.send(peer, 0, step, self._held)
        kernel()
        times = [_timed(lambda step=step: self._out.send(self.middle, 0, step, self._held)) for step in self._steps]
        times += [_timed(lambda: self._take(self.middle)) for _ in self.peers]
        for peer in self.peers:
            self._take(peer)
        return times

    def _take(self, plane: TcpDataPlane) -> None:
        arrival = plane.receive(1.0, 200e-6)
        assert arrival is not None, "a message to this machine itself arrives"
        Frame.parse(arrival.header)
        unpack(self._out.sent[0], arrival.payload)

    def close(self) -> None:
        """Close all connections."""
        for plane in (self.middle, *self.peers):
            plane.close()


def _timed(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def measure(rounds: int, peers: int) -> list[dict[str, Any]]:
    """Return for every kernel what messages cost, in microseconds, kernel by kernel in turns."""
    kernels: Mapping[str, Callable[[], object]] = {
        "none": lambda: None,
        "matrices": matrices(),
        "convolutions": convolutions(),
        "pause": lambda: time.sleep(PAUSE_S),
    }
    ends = Ends(peers)
    times: dict[str, list[list[float]]] = {name: [] for name in kernels}
    for number in range(rounds + 3):
        for name, kernel in kernels.items():
            found = ends.round(kernel)
            if number >= 3:
                times[name].append(found)
    ends.close()
    return [{"kernel": name, "us": [1e6 * statistics.median(of) for of in zip(*found, strict=True)]} for name, found in times.items()]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--peers", type=int, default=3, help="to whom one is sent, in a row")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = measure(given.rounds, given.peers)
    if given.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"predicted of each: {1e6 * (COLD_MESSAGE_S + GENERIC['message'].overhead_s):.0f}")
    names = [f"{what} {number + 1}, us" for what in ("send", "receive") for number in range(given.peers)]
    print(f"| after | {' | '.join(names)} |")
    print("|---" * (len(names) + 1) + "|")
    for row in rows:
        print(f"| {row['kernel']} | {' | '.join(format(us, '.0f') for us in row['us'])} |")


if __name__ == "__main__":
    main()
