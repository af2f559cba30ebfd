"""Steps of a device are measured where agents would do them, and the clock walks through them."""

from __future__ import annotations

from collections import Counter
from xml.etree import ElementTree

import numpy as np
import pytest

from bbgrap import zoo
from bbgrap.cluster.types import LOCAL, NodeProfile
from bbgrap.costmodel.clock import Await, Busy, Post
from bbgrap.protocol.message_layout import layouts_sent
from bbgrap.runtime.schedule import LocalJoin, LocalReceive, LocalRun, LocalSend
from benchmarks import scale
from benchmarks.device_times import Stopwatch, Walk
from benchmarks.network import ModelAt, parse_planner
from benchmarks.scale import Around, Case, cluster_of, idle_model, real_link
from benchmarks.testbed import Rate
from tests.partition import prepare


def test_links_of_real_machines():
    assert real_link(Rate.parse("1gbit")).latency_s == 0.1e-3
    assert real_link(Rate.parse("10gbit")).bandwidth_bytes_per_s == 1.25e9
    assert real_link(Rate.parse("loopback")) == LOCAL


def test_the_coordinator_is_on_the_first_node():
    cluster = cluster_of(Case(3, "1gbit", real_link(Rate.parse("1gbit"))), NodeProfile("measured"))
    assert [node.name for node in cluster.nodes] == ["node0", "node1", "node2"]
    assert cluster.link(cluster.host, 0) == LOCAL
    assert cluster.link(cluster.host, 2) == cluster.link(1, 2)


def test_a_walk_becomes_acts(tmp_path):
    path = zoo.materialize("tiny")
    cluster = cluster_of(Case(2, "loopback", LOCAL), NodeProfile("measured"))
    shape = (1, 3, 32, 32)
    artifacts = prepare(path, {"input": shape}, cluster, parse_planner("bbgrap:rows"))[0].artifacts
    watch = Stopwatch(lambda: 0.01, turns=1)
    device = artifacts.devices[0]
    walk = watch.device(device, artifacts.weights)()
    host = watch.host(artifacts.host, [np.zeros(shape, np.float32)])()
    for found, schedule in ((walk, device.schedule), (host, artifacts.host)):
        assert len(found.seconds) == len(found.schedule.steps) + kinds(found)[LocalReceive]
        assert all(seconds > 0 for seconds in found.seconds)
        # compiling adds joins, and changes nothing that others see
        assert kinds(found)[LocalRun] == sum(isinstance(step, LocalRun) for step in schedule.steps)
        assert kinds(found)[LocalSend] == sum(isinstance(step, LocalSend) for step in schedule.steps)
    sizes = {
        m: layout.nbytes for s in (device.schedule, artifacts.devices[1].schedule, artifacts.host) for m, layout in layouts_sent(s).items()
    }
    acts = Counter(type(act) for act in walk.acts(sizes))
    assert acts[Post] == kinds(walk)[LocalSend]
    assert acts[Await] == kinds(walk)[LocalReceive]
    assert acts[Busy] == len(walk.seconds)


def kinds(walk: Walk) -> Counter:
    return Counter(type(step) for step in walk.schedule.steps if not isinstance(step, LocalJoin))


def test_a_simulation_has_a_row_per_case():
    around = Around(NodeProfile("measured"), (1, 3, 32, 32), idle_s=1e-3)
    cases = [Case(nodes, "1gbit", real_link(Rate.parse("1gbit"))) for nodes in (1, 3)]
    rows = scale.simulate(ModelAt("tiny"), parse_planner("bbgrap:rows"), cases, around, turns=1)
    assert [row["nodes"] for row in rows] == [1, 3]
    for row in rows:
        assert row["speedup"] == pytest.approx(row["single_ms"] / row["simulated_ms"])
        assert row["simulated_ms"] > row["busiest_ms"] > 0
    # a link of 0.1 ms must be waited for, there and back
    assert rows[1]["simulated_ms"] - rows[1]["busiest_ms"] > 0.2
    ElementTree.fromstring(scale.picture(rows))  # noqa: S314 - ours


def test_the_idle_model_loads():
    import onnxruntime as ort

    session = ort.InferenceSession(idle_model((1, 3, 8, 8)), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.full((1, 3, 8, 8), 5, np.float32)})
    assert found.tolist() == [[[[5.0]]]]
