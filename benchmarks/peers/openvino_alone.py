"""OpenVINO with all threads of one node, in full precision, reading the same ONNX file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.peers.peer import Answers, Feeds, Peer, Running, Setting


@contextmanager
def _open(setting: Setting) -> Iterator[Running]:
    import openvino

    core = openvino.Core()
    model = core.read_model(setting.path)
    model.reshape({name: list(array.shape) for name, array in setting.feeds.items()})  # it is faster on shapes that it knows
    options = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(model, "CPU", options).create_infer_request()

    def run(feeds: Feeds) -> Answers:
        found = request.infer(dict(feeds), share_inputs=True)
        return [found[number].copy() for number in range(len(found))]

    yield Running(run, lambda feeds: lambda: run(feeds), {"options": options})


PEER = Peer("openvino", "OpenVINO, one node", _open, {"openvino": "openvino"}, nodes=1)
