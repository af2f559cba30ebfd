"""With real processes: a node that answers wrongly is named, and what happened is in the audit log."""

import json
import stat
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from typer.testing import CliRunner

import bbgrap
from bbgrap.cli.main import app
from bbgrap.planners.options import PlanOptions
from bbgrap.zoo import materialize
from tests.known_agents import PLAIN, known_cluster

ORDER = ("started", "enrolled", "joined", "brought", "prepared")
pytestmark = pytest.mark.cluster
EVERYWHERE = PlanOptions(planner="single", objective="throughput")
"""The whole model on every node."""


@pytest.mark.faults
def test_of_three_agents_the_one_that_answers_wrongly_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("LIE_BY", "0.01")
    x = np.random.default_rng(0).random((1, 3, 32, 32), dtype=np.float32)
    with known_cluster(2, tmp_path, (*PLAIN, "--verify-fraction", "1"), pin=False) as cluster:
        options = ["--join", cluster.address, "--name", "agent2", "--threads", "1", "--cache-dir", str(tmp_path), "--until-eof"]
        cluster._start("agent2", ["-m", "tests.cluster.lying_agent", *options])
        cluster._wait_joined(["agent2"])
        session = bbgrap.InferenceSession(materialize("tiny"), cluster=cluster.connection, options=EVERYWHERE)
        assert session.prepare({"input": x.shape}).report["nodes_used"] == ["agent0", "agent1", "agent2"]
        seen, deadline = {}, time.monotonic() + 60
        with ThreadPoolExecutor(6) as pool:
            while not seen.get("agent2"):
                assert time.monotonic() < deadline
                list(pool.map(lambda _: session.run(None, {"input": x}), range(12)))
                time.sleep(0.2)
                seen = {node.name: node.differed for node in cluster.connection.nodes()}
        assert (seen["agent0"], seen["agent1"]) == (0, 0)
        said = CliRunner().invoke(app, ["nodes", "--coordinator", cluster.address]).stdout
        assert said.splitlines()[0].split()[-2:] == ["verified", "differed"]
        assert all(node.verified for node in cluster.connection.nodes())
        assert "'agent2' answered wrongly" in cluster.log("coordinator", 2000)
        path = cluster.logs / "state" / "audit.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {tuple(line["named"]) for line in lines if line["event"] == "differed"} == {("agent2",)}
    events = [line["event"] for line in lines if line["event"] not in {"differed", "ran", "verified"}]
    assert sorted([event for event in events if event != "profile set"], key=ORDER.index) == [
        "started",
        *["enrolled"] * 3,
        *["joined"] * 3,
        "brought",
        "prepared",
    ]
