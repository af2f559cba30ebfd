"""What loading takes of an agent's memory at its worst moment."""

import hashlib
import logging
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from bbgrap_agent import loading
from bbgrap_agent.loading import load
from bbgrap_agent.weight_files import weight_file
from bbgrap_agent.weights import WeightStore
from onnx import TensorProto, helper

from bbgrap.cluster import Cluster
from bbgrap.compiler.artifacts import SegmentModel, WeightRef
from bbgrap.engine import layout
from bbgrap.engine.layout import block_size
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import prepare_graph
from bbgrap.engine.sessions import make_session
from bbgrap.errors import ModelError
from bbgrap.graph import DType, TensorType
from bbgrap.graph.weights import digest_of
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.messages import Deploy
from bbgrap.runtime.schedule import BufferSpec, LocalRun, Schedule
from bbgrap.zoo import materialize
from tests.agents.segment_loading import run

ROWS, SEGMENTS = 2048, 8
TYPE = TensorType(DType.FLOAT, (ROWS, ROWS))
counts_memory = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux says what a process takes, and only glibc keeps what is freed"
)


def product(number: int, wide: np.ndarray | None = None) -> SegmentModel:
    """Return a segment that multiplies by 16 MiB of weights, or by those given: the allocator takes more of the system at once."""
    weight = np.full(TYPE.shape, number, np.float32) if wide is None else wide
    rows = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name, size in zip("xy", weight.shape, strict=True)]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "product", rows[:1], rows[1:], [external(weight)])
    skeleton = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    weights = {"w": WeightRef(digest_of(weight), TensorType(DType.FLOAT, weight.shape))}
    return SegmentModel(f"product {number}", hashlib.sha256(skeleton).hexdigest(), skeleton, ("x",), ("y",), weights)


def external(weight: np.ndarray) -> TensorProto:
    """Return a weight that refers to a file, as those of skeletons do."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=weight.shape, data_location=TensorProto.EXTERNAL)
    for field, value in (("location", "weights"), ("offset", "0"), ("length", str(weight.nbytes))):
        entry = tensor.external_data.add()
        entry.key, entry.value = field, value
    return tensor


def stored(folder: Path, count: int) -> tuple[WeightStore, tuple[SegmentModel, ...]]:
    """Return segments, and a store that has their weights on disk."""
    store, segments = WeightStore(folder), tuple(product(number) for number in range(count))
    for number, segment in enumerate(segments):
        assert store._write(segment.weights["w"].digest, np.full(TYPE.shape, number, np.float32))
    return store, segments


def deploy(segments: tuple[SegmentModel, ...]) -> Deploy:
    """Return a deployment that runs segments one after the other."""
    sizes = (ROWS, *(ref.type.known_shape[1] for segment in segments for ref in segment.weights.values()))
    buffers = tuple(BufferSpec("row", DType.FLOAT, (1, size)) for size in sizes)
    steps = tuple(LocalRun(number, (number,), (number + 1,)) for number in range(len(segments)))
    return Deploy(1, (), Schedule(0, 1, buffers, steps, (0,), (len(segments),)), segments)


@counts_memory
def test_weights_are_in_memory_once_while_they_are_packed(tmp_path):
    store = WeightStore(tmp_path)
    wide = np.ones((ROWS, 4 * ROWS), np.float32)
    segment = product(0, wide)
    assert store._write(segment.weights["w"].digest, wide)
    assert most_taken_while_loaded(deploy((segment,)), store) < 1.5 * wide.nbytes


@counts_memory
def test_a_convolution_takes_no_more_while_it_is_loaded_than_plans_count(tmp_path):
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:  # what others have freed here may be taken first, or not
        most, counted, weight_bytes = fresh.submit(load_of_a_convolution, tmp_path).result()
    assert most < counted + weight_bytes // 2


def load_of_a_convolution(folder: Path) -> tuple[int, int, int]:
    """Load a convolution: how many bytes that takes at most, what plans count, and how large its weights are."""
    store, channels = WeightStore(folder), ROWS // 2
    weight = np.ones((channels, channels, 2, 2), np.float32)
    maps = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, channels, s, s]) for name, s in (("x", 3), ("y", 2))]
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "maps", maps[:1], maps[1:], [external(weight)])
    skeleton = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    assert store._write(digest_of(weight), weight)
    weights = {"w": WeightRef(digest_of(weight), TensorType(DType.FLOAT, weight.shape))}
    segment = SegmentModel("maps", hashlib.sha256(skeleton).hexdigest(), skeleton, ("x",), ("y",), weights)
    plain = deploy((segment,))
    buffers = tuple(BufferSpec(name, DType.FLOAT, (1, channels, s, s)) for name, s in (("x", 3), ("y", 2)))
    message = replace(plain, schedule=replace(plain.schedule, buffers=buffers))
    return most_taken_while_loaded(message, store), segment.weight_bytes + segment.bytes_while_loaded, weight.nbytes


def most_taken_while_loaded(message: Deploy, store: WeightStore) -> int:
    """Return the most bytes that a load takes beside files, of what this process had not taken before."""
    before, most, is_over = taken(), 0, threading.Event()

    def watch():
        nonlocal most
        while not is_over.is_set():
            most = max(most, taken())
            time.sleep(1e-3)

    watcher = threading.Thread(target=watch)
    watcher.start()
    load(message, store, 1, "127.0.0.1")
    is_over.set()
    watcher.join()
    return most - before


def test_a_weight_whose_file_is_gone_meanwhile_is_given_from_memory(tmp_path, monkeypatch):
    store, segments = stored(tmp_path, 1)
    (digest,) = (ref.digest for ref in segments[0].weights.values())
    found = store.parts({"w": digest})
    assert found["w"].nbytes == TYPE.nbytes
    monkeypatch.setattr(store, "parts", lambda digests: found)
    assert store.get(digest) is not None
    weight_file(tmp_path, digest).unlink()
    loaded = load(deploy(segments), store, 1, "127.0.0.1")
    assert np.array_equal(loaded.segments[0]([np.ones((1, ROWS), np.float32)])[0], np.zeros((1, ROWS)))


def test_a_segment_that_is_no_model_is_refused_in_words(tmp_path):
    store, (segment,) = stored(tmp_path, 1)
    garbage = b"no model at all"
    broken = replace(segment, skeleton=garbage, digest=hashlib.sha256(garbage).hexdigest(), whole=True)
    with pytest.raises(ModelError, match="segment 'product 0': it is broken"):
        load(deploy((broken,)), store, 1, "127.0.0.1")


@pytest.mark.skipif(block_size() is None, reason="onnxruntime does not block feature maps on this CPU")
def test_segments_are_compiled_from_files_as_from_memory(tmp_path, monkeypatch, caplog):
    graph = load_graph(materialize("tiny"), {"input": (1, 3, 32, 32)})
    ((planned, _),) = prepare_graph(graph, Cluster.even(2), PlanOptions("bbgrap", "rows"))
    artifacts, store = planned.artifacts, WeightStore(tmp_path)
    for digest, array in artifacts.weights.items():
        assert store._write(digest, array)
    caplog.set_level(logging.INFO, "bbgrap.agent")
    folders, own = [], layout.optimized

    def optimized(*arguments):
        folders.append(arguments[-1])
        return own(*arguments)

    monkeypatch.setattr(layout, "optimized", optimized)
    answers = []
    for small in (0, 1 << 30):
        monkeypatch.setattr(loading, "SMALL_BYTES", small)
        loaded = [load(Deploy(1, (), d.schedule, d.segments), store, 1, "127.0.0.1") for d in artifacts.devices]
        answers.append(run(artifacts, [np.ones((1, 3, 32, 32), np.float32)], loaded))
    said = [record.getMessage() for record in caplog.records if "compiled for this machine" in record.getMessage()]
    assert said[:2] == said[2:]
    assert not said[0].startswith("0 of")
    assert set(folders) == {tmp_path, None}
    assert all(np.array_equal(one, other) for one, other in zip(*answers, strict=True))


@counts_memory
def test_copies_of_one_segment_at_a_time_are_in_memory(tmp_path, monkeypatch):
    store, segments = stored(tmp_path, SEGMENTS)
    sizes = [taken()]

    def made(*arguments, **options):
        session = make_session(*arguments, **options)
        sizes.append(taken())
        return session

    monkeypatch.setattr(loading, "make_session", made)
    load(deploy(segments), store, 1, "127.0.0.1")
    assert max(sizes) - sizes[0] < (SEGMENTS + 4) * TYPE.nbytes


def taken() -> int:
    """Return the bytes of this process that are in no file."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10
