"""Plan variants with real processes: the fastest serves, streams go to every agent, and nobody's request is lost with one."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import bbgrap
from bbgrap.planners.options import PlanOptions
from tests.cluster import tiny

pytestmark = pytest.mark.cluster
STREAM = PlanOptions(planner="auto", objective="throughput")


def rows(count, seed=0):
    return np.random.default_rng(seed).random((count, 4), dtype=np.float32)


def run_all(session, inputs, in_flight):
    with ThreadPoolExecutor(in_flight) as pool:
        answers = list(pool.map(lambda x: session.run(None, {"x": x})[0], inputs))
    for x, y in zip(inputs, answers, strict=True):
        np.testing.assert_array_equal(y, tiny.expected(x))


def test_the_variants_of_a_plan_are_timed_and_one_of_them_serves(shared):
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=shared.connection, options=PlanOptions(planner="auto"))
    measured = session.prepare({"x": (8, 4)}).report["measured"]
    assert [(variant["name"], variant["nodes"]) for variant in measured["variants"]] == [
        ("auto", ["agent0", "agent1"]),
        ("single on agent0", ["agent0"]),
    ]
    times = {variant["name"]: variant["median_ms"] for variant in measured["variants"]}
    assert measured["chosen"] == [min(times, key=times.__getitem__)]
    run_all(session, [rows(8, seed) for seed in range(20)], 1)
    assert "serves" in shared.log("coordinator", 1000)


def test_a_stream_over_two_agents_is_answered_rightly(shared):
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=shared.connection, options=STREAM)
    report = session.prepare({"x": (8, 4)}).report
    assert report["nodes_used"] == ["agent0", "agent1"]
    assert report["serving"] == "single on agent0 and single on agent1"
    run_all(session, [rows(8, seed) for seed in range(40)], 8)
    shown = json.loads(shared.connection.shown_plan(session.plan.key).report)["measured"]
    assert shown["chosen"] == [variant["name"] for variant in shown["variants"]] == ["single on agent0", "single on agent1"]


def test_a_stream_survives_the_loss_of_an_agent(fresh):
    options = PlanOptions(planner="single", objective="throughput")  # as `auto`, but nobody has to be measured first
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=fresh.connection, options=options)
    session.prepare({"x": (8, 4)})
    killer = threading.Timer(0.3, lambda: fresh.kill("agent1"))
    killer.start()
    while fresh.connection.nodes()[-1].name == "agent1":
        run_all(session, [rows(8, seed) for seed in range(40)], 8)
    killer.join()
    run_all(session, [rows(8, seed) for seed in range(40)], 8)


@pytest.mark.broad
def test_more_requests_than_the_coordinator_queues_wait_at_the_client(fresh):
    """While no agent is there more requests come than one client may have wait; all are answered when one is back."""
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=fresh.connection, planner="bbgrap")
    session.prepare({"x": (66, 4)})
    fresh.kill("agent0")
    fresh.kill("agent1")
    said = []
    submit = session.connection.try_call

    def listening(*arguments, **more):
        try:
            return submit(*arguments, **more)
        except Exception as error:
            said.append(str(error))
            raise

    session.connection.try_call = listening
    try:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(run_all, session, [rows(66, seed) for seed in range(300)], 300)
            deadline = time.monotonic() + 20
            while not any("128 of them of this client" in text for text in said) and time.monotonic() < deadline:
                time.sleep(0.05)
            fresh.add_agent("agent0")
            running.result()
    finally:
        del session.connection.try_call
    assert any("128 of them of this client" in text for text in said)
