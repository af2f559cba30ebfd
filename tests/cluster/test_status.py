"""What a real cluster tells of itself, and `bbgrap top` while its coordinator goes and comes back."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing

import numpy as np
import pytest

from bbgrap.observing.spans import Spans
from bbgrap.session import InferenceSession
from tests.bbgrap.observing.receiver import receiver
from tests.cluster import tiny

pytestmark = pytest.mark.cluster

X = np.random.default_rng(1).random((8, 4), dtype=np.float32)


def test_counts_traffic_and_nodes_are_those_of_the_requests(shared):
    session = InferenceSession(tiny.model_bytes(), cluster=shared.connection, planner="bbgrap")
    session.run(None, {"x": X})
    before = told(shared)
    for _ in range(10):
        session.run(None, {"x": X})
    model, plan, sent, status = now = told(shared)
    assert (plan.serves, plan.nodes) == ("plan", ("agent0", "agent1"))
    answered = [sum(variant.answered for variant in known.variants) for known in (before[1], now[1])]
    assert answered[1] - answered[0] == 10
    counts = [(known.requests["done"], sum(known.latency.counts)) for known in (before[0], model)]
    assert [b - a for a, b in zip(*counts, strict=True)] == [10, 10]
    _, timeline = session.run_recorded(None, {"x": X})
    each = Counter()
    for span in timeline.spans:
        if span.lane == "send":
            each[timeline.devices[span.device], timeline.devices[span.peer]] += span.bytes
    assert each["agent0", "agent1"] == 16
    moved = Counter({pair: count - before[2].get(pair, 0) for pair, count in sent.items()})
    assert +moved == {pair: 10 * count for pair, count in each.items()}
    nodes = {node.name: node for node in status.nodes if node.state == "alive"}
    assert nodes.keys() == {"agent0", "agent1"}
    assert all(node.free_bytes > 0 and 0 <= node.busy <= 1 for node in nodes.values())
    assert abs(status.now - time.time()) < 60
    assert {"joined", "loaded", "serves"} <= {event.kind for event in status.events}


def told(cluster):
    """The tiny model, its plan, the bytes that went by pair, and the whole status."""
    status = cluster.connection.status()
    plans = ((m, p) for m in status.models if m.name == "model" for p in m.plans)  # others are as small, but have files
    model, plan = next((m, p) for m, p in plans if p.planner == "bbgrap" and p.shapes == {"x": (8, 4)})
    return model, plan, {(exchange.source, exchange.destination): exchange.bytes for exchange in status.exchanges}, status


def test_a_recorded_request_is_a_span_with_a_child_per_node(shared):
    session = InferenceSession(tiny.model_bytes(), cluster=shared.connection, planner="bbgrap")
    session.run(None, {"x": X})
    with receiver() as received:
        with closing(Spans(received.endpoint)) as spans, spans.request("tiny") as request:
            (y,), timeline = session.run_recorded(None, {"x": X})
            assert timeline is not None
            request.add(timeline)
        np.testing.assert_array_equal(y, tiny.expected(X))
        names = sorted(span.name for span in received.spans)
        assert names == ["infer tiny", "node agent0", "node agent1", "node coordinator"]
        (root,) = [span for span in received.spans if span.name == "infer tiny"]
        inside = [(root.start_time_unix_nano, span.start_time_unix_nano, span.end_time_unix_nano) for span in received.spans]
        assert all(begin <= start <= stop <= root.end_time_unix_nano for begin, start, stop in inside)
    status = shared.connection.status()
    plan = next(plan for model in status.models for plan in model.plans if plan.segments)
    assert all(segment.measured_s > 0 for segment in plan.segments)
    shown = shared.connection.shown_plan(plan.plan)
    assert (shown.devices, len(shown.records)) == (("agent0", "agent1", "coordinator"), 3)


def read_until(terminal: int, wanted: str, seen: str = "") -> str:
    """Read what a program writes to its terminal until it has written this."""
    deadline = time.monotonic() + 30
    while wanted not in seen:
        assert time.monotonic() < deadline, f"no {wanted!r} in {seen[-2000:]!r}"
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 65536).decode(errors="replace")
    return seen


@pytest.mark.faults
def test_top_survives_a_coordinator_that_is_away_and_leaves_the_terminal_as_it_was(fresh):
    terminal, theirs = pty.openpty()
    command = [sys.executable, "-c", "from bbgrap.cli.main import run; run()", "top", "--every", "0.2", "--coordinator", fresh.address]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    try:
        read_until(terminal, "2 nodes")
        fresh.kill("coordinator")
        read_until(terminal, "has not answered for")
        fresh.start_coordinator()
        read_until(terminal, "2 nodes")
        process.send_signal(signal.SIGTERM)
        rest = read_until(terminal, "\x1b[?1049l")
        assert "\x1b[?25h" in rest
        assert process.wait(30) == 0
        assert "Traceback" not in rest
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


STRUCK = """
import os, signal, sys
from bbgrap.cli.main import run

def strike(frame, event, argument):
    names = [each.f_code.co_name for each in (frame, frame.f_back, frame.f_back and frame.f_back.f_back) if each]
    if names == ["wait", "wait", "_watch"]:
        os.kill(os.getpid(), signal.SIGTERM)

sys.settrace(strike)
run()
"""
"""`bbgrap` with a signal as soon as it begins to wait for one by `threading`, which holds a lock then."""


@pytest.mark.faults
def test_top_ends_whenever_it_is_told_to(fresh):
    terminal, theirs = pty.openpty()
    command = [sys.executable, "-c", STRUCK, "top", "--every", "0.2", "--coordinator", fresh.address]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    try:
        seen = read_until(terminal, "2 nodes")
        process.send_signal(signal.SIGTERM)
        assert "\x1b[?25h" in read_until(terminal, "\x1b[?1049l", seen)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
