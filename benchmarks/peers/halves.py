"""Cutting a model into two stages of a pipeline, where only one tensor crosses, balanced by measured time.

Both are written by onnx's own extractor. Times are of plain onnxruntime on one thread; what crosses is not weighed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx.utils import Extractor

from bbgrap.engine.sessions import make_session
from bbgrap.errors import ModelError
from bbgrap.graph import Array

# A stage runs so often and so long (s) at least: the few runs of a small one would fit into a time slice that another process took.
_RUNS = 5
_TIMED_S = 0.05


@dataclass(frozen=True, slots=True)
class Halves:
    """The files of both stages, the tensor between them, and the measured seconds of each."""

    paths: tuple[Path, Path]
    cut: str
    seconds: tuple[float, float]


class Stage:
    """One stage, wherever it runs."""

    def __init__(self, path: Path) -> None:
        """Load it on one thread."""
        self._session = make_session(path, threads=1)
        self._names = [item.name for item in self._session.get_inputs()]

    def run(self, values: Sequence[Array]) -> list[Array]:
        """Return its outputs."""
        outputs: list[Array] = self._session.run(None, dict(zip(self._names, values, strict=True)))
        return outputs


def cuts(graph: onnx.GraphProto) -> list[str]:
    """Return the tensors that alone cross from the nodes before them to those after, in order; none is an input or output."""
    last_use = {name: number for number, node in enumerate(graph.node) for name in _read(node)}
    last_use |= dict.fromkeys((item.name for item in graph.output), len(graph.node))
    weights = {item.name for item in graph.initializer}
    weights |= {name for node in graph.node if node.op_type == "Constant" for name in node.output}
    alive = {item.name for item in graph.input} - weights
    outer = alive | {item.name for item in graph.output}
    found = []
    for number, node in enumerate(graph.node):
        alive = {name for name in (*alive, *node.output) if last_use.get(name, -1) > number and name not in weights}
        if len(alive) == 1 and not alive & outer:
            found.append(*alive)
    return list(dict.fromkeys(found))


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """Yield what a node reads, the bodies of control flow included."""
    yield from node.input
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            for inner in body.node:
                yield from _read(inner)


def halve(path: Path, feeds: Mapping[str, Array], folder: Path) -> Halves:
    """Write the two stages of a model into a folder; those of the tried cuts whose slower stage is fastest.

    Raises:
        ModelError: if nowhere only one tensor crosses.
    """
    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    extractor = Extractor(model)
    candidates = cuts(model.graph)
    ends = [item.name for item in model.graph.input if item.name in feeds], [item.name for item in model.graph.output]
    if not candidates:
        raise ModelError(f"model '{path}': expected a place where one tensor alone crosses, got none: a pipeline cannot be cut")
    best: Halves | None = None
    low, high = 0, len(candidates)
    while low < high:
        middle = (low + high) // 2
        cut = candidates[middle]
        paths = folder / f"{path.stem}-{middle}-first.onnx", folder / f"{path.stem}-{middle}-second.onnx"
        onnx.save(extractor.extract_model(ends[0], [cut]), paths[0])
        onnx.save(extractor.extract_model([cut], ends[1]), paths[1])
        found = Halves(paths, cut, _times(paths, [feeds[name] for name in ends[0]]))
        low, high = (middle + 1, high) if found.seconds[0] < found.seconds[1] else (low, middle)
        worse = found if best is not None and max(best.seconds) <= max(found.seconds) else best
        best = best if worse is found else found
        for file in worse.paths if worse is not None else ():
            file.unlink()
    assert best is not None
    return best


def _times(paths: Sequence[Path], values: Sequence[Array]) -> tuple[float, float]:
    found = []
    for path in paths:
        stage = Stage(path)
        times = []
        while len(times) < _RUNS or sum(times) < _TIMED_S:
            began = time.perf_counter()
            outputs = stage.run(values)
            times.append(time.perf_counter() - began)
        values = outputs
        found.append(statistics.median(times[1:]))
    return found[0], found[1]
