"""How long single kernels take on this machine: small networks of typical layers, run whole, each kernel timed by onnxruntime.

A kernel is timed where it stands in a network, not alone: its maps come in the layout that the kernel before it made (in blocks of
channels between convolutions), and its weights come from memory, as those of a large model do: caches are filled with something else
before every run. What is counted of it is what planners count (`bbgrap.tdl.work`).

A worker may have little memory, so there is one network at a time, its weights are in one place, and what it took is given back.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from bbgrap.engine.sessions import give_back_arena, open_session, session_options
from bbgrap.errors import ExecutionError
from bbgrap.graph.onnx_write import save_graph
from bbgrap.graph.types import Array, DType, Graph, TensorType
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.plan import Tile, whole_output
from bbgrap.tdl.operators.estimators import DOMAIN
from bbgrap.tdl.work import is_fused
from bbgrap.work import KINDS, Work
from bbgrap.zoo.builder import Builder
from bbgrap.zoo.forests import TARGETS, complete_trees
from bbgrap_agent.byte_networks import MAPS, byte_networks
from bbgrap_agent.speed_fitting import Check, Sample, typical

_IMAGES = ((224, 224), (112, 224))
_TOKENS = ((16, 256), (64, 384), (128, 768), (64, 768), (197, 768))
"""Rows and features of token matrices."""

_VECTORS = ((1, 2048, 1000), (1, 768, 3072), (1, 4096, 1024), (4, 768, 768), (8, 1024, 1024), (1, 256, 256), (2, 512, 2048))
"""Rows, depth and columns of products that mostly read their weights."""

_SOUND = 16_384
"""Numbers in a sound that is cut into signals, which are transformed."""

_SIGNALS = (64, 128, 256, 400, 512, 960, 1024, 2048)
"""Lengths of the signals; two are no powers of two."""

_FORESTS = ((10, 9), (20, 3), (20, 5), (20, 7), (50, 4), (50, 6), (50, 8), (100, 4))
"""Trees, and their levels, through which a table of rows passes."""

_TABLE = (1000, 20)

_CROWD_BYTES = 64 << 20
"""Beyond the caches of common machines: reading so much leaves nothing else in them."""

_RUNS = 25
_LEAST_RUNS = 3
"""Runs of each network; fewer where the time is up, but never less."""

_FUSED = ".relu"
"""What names of activations end with that are done by the kernel before them."""

_ENTRY = "entry"
"""The first kernel of a network, which reads what was in no cache: it is not counted."""

_EVENT = re.compile(r"(?P<node>[A-Za-z0-9.]+?)(_nchwc)?(_token_\d+)?_kernel_time")
"""How onnxruntime names the time of a kernel: by its node or by what its node makes, and what became of it."""


def kernel_samples(threads: int, budget_s: float, check: Check) -> dict[str, list[Sample]]:
    """Return measured pieces of work by kind, run for about so many seconds in all; every network is run at least a few times."""
    found: dict[str, list[Sample]] = {kind: [] for kind in KINDS}
    makers = list(networks())
    for left, make in zip(range(len(makers), 0, -1), makers, strict=True):
        samples, took_s = measure_network(make, threads, max(budget_s, 0) / left, check)
        budget_s -= took_s
        for sample in samples:
            found[sample.work.kind].append(sample)
        give_back_arena()
    return found


def networks() -> Iterator[Callable[[], Graph]]:
    """Yield what makes the networks whose kernels are timed."""
    for channels, rows, columns in MAPS:
        yield partial(_maps, channels, rows, columns)
    for rows, columns in _IMAGES:
        yield partial(_image, rows, columns)
    for rows, features in _TOKENS:
        yield partial(_tokens, rows, features)
    for rows, depth, columns in _VECTORS:
        yield partial(_vectors, rows, depth, columns)
    yield _signals
    yield _forests
    yield from byte_networks(_ENTRY)


def measure_network(
    make: Callable[[], Graph], threads: int, budget_s: float, check: Check, crowd_bytes: int = _CROWD_BYTES
) -> tuple[list[Sample], float]:
    """Run a network for about so many seconds, once it is made; return its kernels with their typical times, and how long it ran.

    So many bytes of something else are read before each run.
    """
    check()
    graph = make()
    name, counted = graph.name, works(graph)
    random = np.random.default_rng(0)
    feed = {value: _numbers(random, graph.types[value]) for value in graph.inputs}
    with tempfile.TemporaryDirectory(prefix="bbgrap-probe-") as folder:
        file = Path(folder) / "network"
        save_graph(graph, file, inline_limit=0)
        del graph  # its weights are in a file now, which onnxruntime maps
        give_back_arena()
        options = session_options(threads=threads, shared_pool=threads > 1)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "kernels")
        session = open_session(file, options, {})
        give_back_arena()
        crowd = np.ones(crowd_bytes // 4, np.float32)  # not before: sessions take most while they are made
        began = time.perf_counter()
        for run in range(_RUNS + 1):
            check()
            if run > _LEAST_RUNS and time.perf_counter() - began > budget_s:
                break
            crowd.max()
            session.run(None, feed)
        took_s = time.perf_counter() - began
        times = kernel_times(Path(session.end_profiling()).read_text(encoding="utf-8"))
    samples = []
    for event, work in counted.items():
        kernel = event.removesuffix(_FUSED)
        # the first run touches memory for the first time
        if kernel != _ENTRY and len(times.get(event, ())) > 1:
            samples.append(Sample(work, typical(times[event][1:]), f"{name}.{kernel}"))
    return samples, took_s


def _numbers(random: np.random.Generator, kind: TensorType) -> Array:
    if kind.dtype is DType.UINT8:
        return random.integers(0, 256, kind.known_shape, np.uint8)
    return random.random(kind.known_shape, dtype=np.float32)


def kernel_times(profile: str) -> dict[str, list[float]]:
    """Return the seconds of each run of each kernel, by node, of a profile that onnxruntime wrote.

    Raises:
        ExecutionError: if it is cut off.
    """
    times: dict[str, list[float]] = {}
    try:
        events = json.loads(profile)
    except ValueError as error:
        folder = tempfile.gettempdir()
        raise ExecutionError(f"what onnxruntime wrote of its kernels in '{folder}' is cut off: is the disk full?") from error
    for event in events:
        match = _EVENT.fullmatch(str(event.get("name")))
        if event.get("cat") == "Node" and match:
            # whole microseconds, cut off: half of one is missing on average
            times.setdefault(match["node"], []).append((event["dur"] + 0.5) / 1e6)
    return times


def works(graph: Graph) -> Mapping[str, Work]:
    """Return what each kernel does, by the name its time goes by: that of the activation that is fused into it, if there is one."""
    found: dict[str, Work] = {}
    pieces = Pieces(graph, all_descriptions(graph))
    for node in graph.nodes:
        if is_fused(graph, node):
            found[node.name] = found.pop(node.inputs[0])
        else:
            work = pieces.work(node, Tile(0, whole_output(graph, node)))
            if work.flops or work.map_bytes:
                found[node.name] = work
    return found


def _relu(net: Builder, x: str) -> str:
    return net.act("Relu", x, f"{x}{_FUSED}")


def _maps(channels: int, rows: int, columns: int) -> Graph:
    """Layers on maps as they are inside an image network."""
    net = Builder(f"maps{channels}x{rows}x{columns}", (1, channels, rows, columns))
    x = _relu(net, net.conv("input", _ENTRY, channels, 1))
    x = _relu(net, net.conv(x, "conv3", channels, 3))
    wide = _relu(net, net.conv(x, "expand", 4 * channels, 1))
    x = _relu(net, net.conv(wide, "reduce", channels, 1))
    x = _relu(net, net.conv(x, "half", channels // 2, 3))
    x = _relu(net, net.conv(x, "back", channels, 1))
    deep = _relu(net, net.conv(x, "depth3", channels, 3, groups=channels))
    x = _relu(net, net.conv(deep, "point", channels, 1))
    x = _relu(net, net.conv(x, "depth5", channels, 5, groups=channels))
    x = _relu(net, net.conv(x, "stride", channels, 3, stride=2))
    x = _relu(net, net.conv(x, "conv5", channels // 2, 5))
    scaled = net.binary("Mul", wide, wide, "square")
    summed = net.binary("Add", scaled, wide, "sum")
    outputs = [net.mean(x, "mean"), net.mean(wide, "means"), net.max_pool(wide, "window3", 3, 2, 1), net.max_pool(deep, "window2", 2, 2)]
    outputs += [net.concat([wide, scaled], "joined"), net.double(deep, "doubled"), net.act("Sigmoid", summed, "sigmoid")]
    return net.graph(*outputs)


def _image(rows: int, columns: int) -> Graph:
    """The layers that read a picture."""
    net = Builder(f"image{rows}x{columns}", (1, 3, rows, columns))
    stem = _relu(net, net.conv("input", "stem", 64, 7, stride=2))
    first = _relu(net, net.conv("input", "first", 64, 3))
    small = _relu(net, net.conv("input", "small", 32, 3, stride=2))
    deep = _relu(net, net.conv(small, "depth", 32, 3, groups=32))
    return net.graph(net.max_pool(stem, "window3", 3, 2, 1), net.max_pool(first, "window2", 2, 2), net.mean(deep, "mean"))


def _tokens(rows: int, features: int) -> Graph:
    """Layers on rows of features, as they are inside a language model."""
    net = Builder(f"tokens{rows}x{features}", (rows, features))
    ones, zeros = net.weight("scale", np.ones(features, np.float32)), net.weight("shift", np.zeros(features, np.float32))
    x = net.binary("Add", "input", zeros, _ENTRY)
    x = net.node("LayerNormalization", "normed", [x, ones, zeros], (rows, features), {"axis": -1})
    wide = net.dense(x, "expand", 4 * features)
    square = net.binary("Mul", wide, wide, "square")
    bent = net.act("Erf", square, "erf")
    wide = net.binary("Add", bent, wide, "sum")
    x = net.dense(wide, "reduce", features)
    chances = net.node("Softmax", "chances", [net.transpose(x, "across", (1, 0))], (features, rows), {"axis": -1})
    mixed = net.node("MatMul", "mixed", [x, chances], (rows, rows))
    joined = net.concat([net.dense(x, "out", features), x], "joined", 1)
    return net.graph(mixed, joined, net.node("Softmax", "wide", [wide], (rows, 4 * features), {"axis": -1}))


def _vectors(rows: int, depth: int, columns: int) -> Graph:
    """Products of few rows."""
    net = Builder(f"vectors{rows}x{depth}x{columns}", (rows, depth))
    x = net.dense(net.dense("input", "there", columns), "back", depth)
    return net.graph(net.dense(x, "again", columns))


def _signals() -> Graph:
    """Fourier transforms of the pieces of a sound."""
    net = Builder("signals", (1, _SOUND, 1))
    sound = net.binary("Add", "input", net.weight("silence", np.zeros(1, np.float32)), _ENTRY)
    spectra = []
    for length in _SIGNALS:
        number = net.weight(f"length{length}", np.array(length))
        made = (1, _SOUND // length, length // 2 + 1, 2)
        spectra.append(net.node("STFT", f"spectra{length}", [sound, number, "", number], made))
    return net.graph(*spectra)


def _forests() -> Graph:
    """Trees of decisions."""
    rows, features = _TABLE
    net = Builder("forests", _TABLE)
    x = net.binary("Add", "input", net.weight("nothing", np.zeros(1, np.float32)), _ENTRY)
    made = []
    for trees, levels in _FORESTS:
        attributes = complete_trees(features, trees, levels)
        made.append(net.node("TreeEnsembleRegressor", f"trees{trees}x{levels}", [x], (rows, TARGETS), attributes, domain=DOMAIN))
    return net.graph(*made)
