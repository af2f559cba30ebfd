"""Quantized and float16 models: the same answer as plain onnxruntime, to the bit where its kernels do not depend on the piece."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import plan_graph
from bbgrap.engine.reference import Reference
from bbgrap.engine.spread import ReferenceAnswers
from bbgrap.graph import Array
from bbgrap.graph.types import DType
from bbgrap.planners.options import PlanOptions
from tests.quantized_models import DYNAMIC, FORMATS, INTEGER, converted, networks, of_four_bits

BRIEF = [PlanOptions(), PlanOptions(split="channels"), PlanOptions(planner="tofu")]
"""What the default suite runs, over unequal nodes; `make test-conformance` runs all of `OPTIONS`."""

OPTIONS = [
    *(PlanOptions(split=split) for split in ("rows", "columns", "channels", "inputs", "batch")),
    *(PlanOptions(planner=planner) for planner in ("widest", "tofu", "hypar", "fewer-exchanges", "pipeline")),
    PlanOptions(planner="auto", search_seconds=0.5),
]
CLUSTERS = [Cluster.even(2), Cluster((NodeProfile("fast", share=5), NodeProfile("slow", share=2), NodeProfile("middle", share=3)))]


def answers(path: Path, x: Array, options: PlanOptions, cluster: Cluster) -> list[Array]:
    graph = load_graph(path, {"input": x.shape})
    compiled = plan_graph(graph, cluster, options).compiled
    artifacts = export(compiled.optimized)
    return simulate(artifacts, [x], local_kernels(artifacts))


def assert_same(path: Path, x: Array, ways: Sequence[PlanOptions], *, to_the_bit: bool) -> None:
    witnesses = ReferenceAnswers(path, {"input": x})
    for cluster in CLUSTERS[1:] if ways is BRIEF else CLUSTERS:
        for options in ways:
            found = witnesses.judge(answers(path, x, options, cluster))
            label = f"{len(cluster.nodes)} nodes, {options.planner} {options.split}: {found.text}"
            assert found.verified, label
            assert found.bit_identical or not to_the_bit, label


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, tuple[int, ...]]]:
    return networks(tmp_path_factory.mktemp("quantized"))


WAYS = pytest.mark.parametrize("ways", [BRIEF, pytest.param(OPTIONS, marks=pytest.mark.conformance)], ids=["brief", "all"])


USUAL = [
    ("tiny", "qdq-u8s8-channels"), ("tiny", "operators-u8s8-tensors"), ("tiny", "dynamic-u8"), ("tiny", "float16"),
    ("attention", "qdq-u8s8-channels"), ("attention", "float16-inside"),
]  # fmt: skip
"""One of each kind of numbers; the others are in `make test-more`."""


@pytest.mark.timeout(300)
@WAYS
@pytest.mark.parametrize(
    ("network", "form"),
    [
        pytest.param(network, form, marks=() if (network, form) in USUAL else pytest.mark.broad)
        for network in ("tiny", "attention")
        for form in FORMATS
    ],
)
def test_a_converted_model_answers_as_onnxruntime_does(
    network: str, form: str, ways: Sequence[PlanOptions], sources: dict[str, tuple[Path, tuple[int, ...]]]
) -> None:
    path, x = converted(form, *sources[network])
    # In a transformer, floats stand between the integers: their sums depend on the piece, by their last bit.
    assert_same(path, x, ways, to_the_bit=network == "tiny" and form in INTEGER | DYNAMIC)


@WAYS
@pytest.mark.parametrize(("accuracy", "pairs"), [(0, False), (4, False), (4, True)])
def test_products_with_weights_of_four_bits_answer_as_onnxruntime_does(
    accuracy: int, pairs: bool, ways: Sequence[PlanOptions], tmp_path: Path
) -> None:
    assert_same(*of_four_bits(tmp_path, accuracy=accuracy, pairs=pairs), ways, to_the_bit=False)


@pytest.mark.parametrize("form", INTEGER)
def test_a_convolutional_network_is_cut_in_its_integer_form(form: str, sources: dict[str, tuple[Path, tuple[int, ...]]]) -> None:
    path, x = converted(form, *sources["tiny"])
    graph = load_graph(path, {"input": x.shape})
    convolutions = [node for node in graph.nodes if "Conv" in node.op]
    of_bytes = [node for node in convolutions if node.op == "QLinearConv"]
    # onnxruntime itself computes some convolutions of signed maps in floats
    assert len(of_bytes) == len(convolutions) == 13 or (form == "qdq-s8s8-channels" and len(of_bytes) >= 7)
    assert {graph.types[node.outputs[0]].dtype for node in of_bytes} <= {DType.UINT8, DType.INT8}


def test_weights_of_float16_are_folded(sources: dict[str, tuple[Path, tuple[int, ...]]]) -> None:
    path, x = converted("float16", *sources["tiny"])
    graph = load_graph(path, {"input": x.shape})
    casts = [node for node in graph.nodes if node.op == "Cast"]
    assert all(node.inputs[0] not in graph.weights or graph.weights[node.inputs[0]].array.nbytes <= 1024 for node in casts)
    assert Reference(path).run({"input": x})[0].dtype == np.float16
