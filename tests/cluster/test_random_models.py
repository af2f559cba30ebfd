"""Agents, `simulate` and plain onnxruntime agree: random networks on one to five real agents with random speeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.cluster.types import COORDINATOR, LinkProfile
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.graph.onnx_io import save_graph
from bbgrap.local import LocalCluster
from bbgrap.session import InferenceSession
from tests.examples import examples
from tests.known_agents import known_cluster
from tests.partition import assert_close, plain_outputs, prepare
from tests.random_models import networks, plan_options, random_feeds

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]
RTOL = {"exact": 1e-5, "float16": 1e-2, "int8": 0.2}
"""Agents and `simulate` agree to the bit; how far plain onnxruntime may be away."""


@pytest.fixture(scope="module")
def growing() -> Iterator[LocalCluster]:
    """A cluster that starts with one agent."""
    with known_cluster(1) as cluster:
        yield cluster


def slow_links(name: str, names: Sequence[str]) -> tuple[LinkProfile, ...]:
    """Declare links so slow that messages take longer than work."""
    return tuple(LinkProfile(peer, 1e4, 1e-6) for peer in (*names, COORDINATOR) if peer != name)


@pytest.mark.parametrize(
    ("size", "count"),
    [
        (1, 2),
        *(pytest.param(n, 6, marks=pytest.mark.broad) for n in (2, 3, 5)),
        *(pytest.param(n, 60, marks=pytest.mark.slow) for n in range(1, 6)),
    ],
)
def test_agents_agree(size: int, count: int, growing: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    while len(growing.connection.nodes()) < size:
        growing.add_agent()
    names = [node.name for node in growing.connection.nodes()]
    folder = tmp_path_factory.mktemp("random")

    @settings(max_examples=examples(count), suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        graph = data.draw(networks())
        options = replace(data.draw(plan_options()), transfer_dtype=data.draw(st.sampled_from(["exact", "float16", "int8"])))
        links = data.draw(st.booleans())
        shares = {name: data.draw(st.integers(1, 100)) for name in names}
        cluster = Cluster(tuple(NodeProfile(name, share, links=slow_links(name, names) if links else ()) for name, share in shares.items()))
        for node in cluster.nodes:
            growing.connection.add_profile(node)
        path = Path(folder) / "model.onnx"
        save_graph(graph, path)
        feeds = random_feeds(graph)
        shapes = {name: feed.shape for name, feed in zip(graph.inputs, feeds, strict=True)}
        session = InferenceSession(path, cluster=growing, options=options)
        answers = session.run(None, dict(zip(graph.inputs, feeds, strict=True)))
        answering = Cluster(tuple(node for node in cluster.nodes if node.name in session.plan.agents))  # a busy machine may lose some
        artifacts = prepare(path, shapes, answering, options)[0].artifacts
        simulated = simulate(artifacts, feeds, local_kernels(artifacts))
        for got, same, want in zip(answers, simulated, plain_outputs(graph, feeds), strict=True):
            assert np.array_equal(got, same), f"agents and simulation differ by {np.abs(got - same).max()}"
            assert_close(got, want, f"{size} agents, {options.split}, {options.transfer_dtype}", RTOL[options.transfer_dtype])

    check()
