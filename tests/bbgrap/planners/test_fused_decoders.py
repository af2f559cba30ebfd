"""Decoders of fused operators under every planner: answers are those of the whole model, with several sequences and several words."""

import numpy as np
import pytest

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.graph.lower import lower
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.registry import PLANNERS
from bbgrap.zoo.decoder import DecoderSizes
from bbgrap.zoo.llama import llama
from tests.partition import all_values, assert_close, compiled, run_checked

SIZES = DecoderSizes(1, 96, 6, 3, 100, 64)
OPTIONS = [*(PlanOptions(name) for name in PLANNERS), PlanOptions("bbgrap", "channels"), PlanOptions("bbgrap", "inputs")]


@pytest.fixture(scope="module", params=[(32, 2, 1, 5), (4, 1, 4, 5), (32, 3, 5, 0)], ids=["batch", "words", "prompt"])
def case(request):
    bits, batch, sequence, past = request.param
    graph = lower(llama("fused", SIZES, bits=bits, batch=batch, sequence=sequence, past=past))
    random = np.random.default_rng(0)
    caches = [random.standard_normal(graph.types[name].known_shape).astype(np.float32) for name in graph.inputs[2:]]
    feeds = [random.integers(0, SIZES.words, (batch, sequence)), np.ones((batch, sequence + past), np.int64), *caches]
    return graph, feeds, all_values(graph, feeds)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: f"{options.planner} {options.split}")
def test_answers_are_those_of_the_whole_model(case, options):
    graph, feeds, values = case
    cluster = Cluster(tuple(NodeProfile(f"node{number}", share=share) for number, share in enumerate((2, 1, 1))))
    outputs = run_checked(compiled(graph, cluster, options).optimized, feeds, values, 1e-4)
    for name, got in zip(graph.outputs, outputs, strict=True):
        assert_close(got, values[name], name, 1e-4)
