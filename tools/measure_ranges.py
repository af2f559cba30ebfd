"""Measure the ranges of maps that the quantized networks of the zoo are made with, over seeded inputs, and write them to a file.

python tools/measure_ranges.py > bbgrap/zoo/ranges.json
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from bbgrap import zoo
from bbgrap.engine.reference import Reference
from bbgrap.graph import Graph
from bbgrap.graph.onnx_io import save_graph
from bbgrap.zoo.quantized import mapped_values

NETWORKS = ("mobilenet_v2", "resnet50", "tiny")
INPUTS = 4
DIGITS = 4


def ranges_of(graph: Graph) -> dict[str, tuple[float, float]]:
    """Return the range of every mapped value, over `INPUTS` seeded inputs of normally distributed numbers."""
    names = mapped_values(graph)
    normalized = {node.inputs[0]: node.outputs[0] for node in graph.nodes if node.op == "BatchNormalization"}
    inner = tuple(normalized.get(name, name) for name in names[1:])
    random = np.random.default_rng(0)
    feeds = [random.standard_normal(graph.types["input"].known_shape, np.float32) for _ in range(INPUTS)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "exposed.onnx"
        save_graph(replace(graph, outputs=inner), path)
        model = Reference(path, threads=None)
        answers = [[feed, *model.run({"input": feed})] for feed in feeds]
    return {
        name: (_rounded(min(answer[k].min() for answer in answers)), _rounded(max(answer[k].max() for answer in answers)))
        for k, name in enumerate(names)
    }


def _rounded(value: np.floating) -> float:
    return float(f"{value:.{DIGITS}g}")


def main() -> None:
    """Print the file."""
    print(json.dumps({network: ranges_of(zoo.build(network)) for network in NETWORKS}, indent=1))


if __name__ == "__main__":
    main()
