"""How long single kernels take on this machine: small networks of typical layers, run whole, each kernel timed by onnxruntime.

A kernel is timed where it stands in a network, not alone: its maps come in the layout that the kernel before it made (in blocks of
channels between convolutions), and its weights come from memory, since other weights were used in between. What is counted of it is
what planners count (`bbgrap.tdl.work`).
"""

from __future__ import annotations

import json
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from bbgrap.engine.sessions import open_session, session_options
from bbgrap.graph.onnx_write import write_graph
from bbgrap.graph.types import Graph
from bbgrap.shapemap import ShapeMap
from bbgrap.tdl.rule import describe
from bbgrap.tdl.work import KINDS, Work, is_fused, work_of
from bbgrap.zoo.builder import Builder
from bbgrap_agent.fitting import Sample

_MAPS = ((64, 56, 56), (64, 28, 56), (128, 28, 28), (128, 14, 28), (256, 14, 14), (256, 7, 14), (512, 7, 7), (512, 4, 7))
"""Channels, rows and columns of maps: those of common image networks, whole and half of the rows."""

_IMAGES = ((224, 224), (112, 224))
_TOKENS = ((16, 256), (64, 384), (128, 768), (64, 768), (197, 768))
"""Rows and features of token matrices."""

_VECTORS = ((1, 2048, 1000), (1, 768, 3072), (1, 4096, 1024), (4, 768, 768), (8, 1024, 1024), (1, 256, 256), (2, 512, 2048))
"""Rows, depth and columns of products that mostly read their weights."""

_RUNS = 25
_LEAST_RUNS = 3
"""Runs of each network; fewer where the time is up, but never less."""

_EVENT = re.compile(r"(?P<node>[A-Za-z0-9.]+?)(_nchwc)?(_token_\d+)?_kernel_time")
"""How onnxruntime names the time of a kernel: by its node or by what its node makes, and what became of it."""


def kernel_samples(threads: int, budget_s: float) -> dict[str, list[Sample]]:
    """Return measured pieces of work by kind, taken within about so many seconds; every network is run at least a few times."""
    found: dict[str, list[Sample]] = {kind: [] for kind in KINDS}
    graphs = list(networks())
    deadline = time.perf_counter() + budget_s
    for left, graph in zip(range(len(graphs), 0, -1), graphs, strict=True):
        now = time.perf_counter()
        for sample in measure_network(graph, threads, now + max(deadline - now, 0) / left):
            found[sample.work.kind].append(sample)
    return found


def networks() -> Iterator[Graph]:
    """Yield the networks whose kernels are timed."""
    for channels, rows, columns in _MAPS:
        yield _maps(channels, rows, columns)
    for rows, columns in _IMAGES:
        yield _image(rows, columns)
    for rows, features in _TOKENS:
        yield _tokens(rows, features)
    for rows, depth, columns in _VECTORS:
        yield _vectors(rows, depth, columns)


def measure_network(graph: Graph, threads: int, until: float) -> list[Sample]:
    """Run a network until a time of the clock `time.perf_counter`; return its kernels with the median of their times."""
    with tempfile.TemporaryDirectory(prefix="bbgrap-probe-") as folder:
        options = session_options(threads=threads, shared_pool=threads > 1)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "kernels")
        session = open_session(write_graph(graph, weights="inline").data, options, {})
        random = np.random.default_rng(0)
        feed = {name: random.random(graph.types[name].known_shape, dtype=np.float32) for name in graph.inputs}
        for run in range(_RUNS + 1):
            if run > _LEAST_RUNS and time.perf_counter() > until:
                break
            session.run(None, feed)
        times = kernel_times(Path(session.end_profiling()).read_text(encoding="utf-8"))
    samples = []
    for name, work in works(graph).items():
        # the first run touches memory for the first time
        if len(times.get(name, ())) > 1:
            samples.append(Sample(work, statistics.median(times[name][1:]), f"{graph.name}.{name}"))
    return samples


def kernel_times(profile: str) -> dict[str, list[float]]:
    """Return the seconds of each run of each kernel, by node, of a profile that onnxruntime wrote."""
    times: dict[str, list[float]] = {}
    for event in json.loads(profile):
        match = _EVENT.fullmatch(str(event.get("name")))
        if event.get("cat") == "Node" and match:
            # whole microseconds, cut off: half of one is missing on average
            times.setdefault(match["node"], []).append((event["dur"] + 0.5) * 1e-6)
    return times


def works(graph: Graph) -> Mapping[str, Work]:
    """Return what each kernel does, by the name its time goes by: that of the activation that is fused into it, if there is one."""
    found: dict[str, Work] = {}
    for node in graph.nodes:
        if is_fused(graph, node):
            found[node.name] = found.pop(node.inputs[0])
        else:
            work = work_of(graph, node, describe(graph, node), ShapeMap.full(graph.types[node.outputs[0]].known_shape))
            if work.flops or work.map_bytes:
                found[node.name] = work
    return found


def _maps(channels: int, rows: int, columns: int) -> Graph:
    """Layers on maps as they are inside an image network."""
    net = Builder(f"maps{channels}x{rows}x{columns}", (1, channels, rows, columns))
    x = net.act("Relu", net.conv("input", "entry", channels, 1), "entered")
    x = net.act("Relu", net.conv(x, "conv3", channels, 3), "relu3")
    wide = net.act("Relu", net.conv(x, "expand", 4 * channels, 1), "expanded")
    x = net.act("Relu", net.conv(wide, "reduce", channels, 1), "reduced")
    x = net.act("Relu", net.conv(x, "half", channels // 2, 3), "halved")
    x = net.act("Relu", net.conv(x, "back", channels, 1), "backed")
    deep = net.act("Relu", net.conv(x, "depth3", channels, 3, groups=channels), "deep3")
    x = net.act("Relu", net.conv(deep, "point", channels, 1), "pointed")
    x = net.act("Relu", net.conv(x, "depth5", channels, 5, groups=channels), "deep5")
    x = net.act("Relu", net.conv(x, "stride", channels, 3, stride=2), "strided")
    x = net.act("Relu", net.conv(x, "conv5", channels // 2, 5), "relu5")
    scaled = net.binary("Mul", wide, wide, "square")
    outputs = [net.mean(x, "mean"), net.max_pool(wide, "window3", 3, 2, 1), net.max_pool(deep, "window2", 2, 2)]
    outputs += [net.mean(wide, "means"), net.concat([wide, scaled], "joined"), net.binary("Add", scaled, wide, "sum")]
    outputs += [net.double(deep, "doubled")]
    return net.graph(*outputs)


def _image(rows: int, columns: int) -> Graph:
    """The layers that read a picture."""
    net = Builder(f"image{rows}x{columns}", (1, 3, rows, columns))
    stem = net.act("Relu", net.conv("input", "stem", 64, 7, stride=2), "stemmed")
    first = net.act("Relu", net.conv("input", "first", 64, 3), "firsted")
    small = net.act("Relu", net.conv("input", "small", 32, 3, stride=2), "smalled")
    deep = net.act("Relu", net.conv(small, "depth", 32, 3, groups=32), "deep")
    up = net.up_conv(small, "up", 16)
    return net.graph(net.max_pool(stem, "window", 3, 2, 1), net.max_pool(first, "window2", 2, 2), net.mean(deep, "mean"), up)


def _tokens(rows: int, features: int) -> Graph:
    """Layers on rows of features, as they are inside a language model."""
    net = Builder(f"tokens{rows}x{features}", (rows, features))
    ones = net.weight("scale", np.ones(features, np.float32))
    zeros = net.weight("shift", np.zeros(features, np.float32))
    x = net.node("LayerNormalization", "normed", ["input", ones, zeros], (rows, features), {"axis": -1})
    wide = net.dense(x, "expand", 4 * features)
    bent = net.act("Tanh", net.binary("Mul", wide, wide, "square"), "tanh")
    summed = net.binary("Add", bent, wide, "sum")
    x = net.dense(summed, "reduce", features)
    across = net.transpose(x, "across", (1, 0))
    chances = net.node("Softmax", "chances", [across], (features, rows), {"axis": -1})
    y = net.node("MatMul", "mixed", [x, chances], (rows, rows))
    out = net.dense(x, "out", features)
    erf = net.act("Erf", out, "erf")
    joined = net.concat([erf, x], "joined", 1)
    return net.graph(y, joined, net.node("Softmax", "chances2", [wide], (rows, 4 * features), {"axis": -1}))


def _vectors(rows: int, depth: int, columns: int) -> Graph:
    """Products of few rows: a chain long enough that weights do not stay near the processor."""
    net = Builder(f"vectors{rows}x{depth}x{columns}", (rows, depth))
    there = net.act("Relu", net.dense("input", "there", columns), "thered")
    back = net.act("Relu", net.dense(there, "back", depth), "backed")
    return net.graph(net.dense(back, "again", columns))
