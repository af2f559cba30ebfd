"""The shared-memory channel between real processes: used, dropped with its client, and of no use to strangers."""

import os
import random
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

import bbgrap
from bbgrap.protocol.client_messages import Greeting, Hello
from bbgrap.transport.shared_memory import is_possible
from tests.cluster import tiny
from tests.cluster.strangers import mapped
from tests.known_agents import known_cluster
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(not is_possible(), reason="this system has no sealed memory")]

ROWS = 40_000
CLIENT = f"""
import sys, threading
import numpy as np
import bbgrap
from tests.cluster import tiny
x = np.ones(({ROWS}, 4), np.float32)
session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=sys.argv[1])
session.run(None, {{"x": x}})
def hammer():
    while True:
        session.run(None, {{"x": x}})
for _ in range(4):
    threading.Thread(target=hammer, daemon=True).start()
print("running", flush=True)
threading.Event().wait()
"""


def mappings(cluster):
    return mapped(cluster, "bbgrap-channel").get(cluster.processes["coordinator"].pid, 0)


def wait_mappings(cluster, count):
    until(lambda: mappings(cluster) == count, 20, lambda: f"expected {count}, got {mappings(cluster)}")


def x_and_answer(seed=0):
    x = np.random.default_rng(seed).random((ROWS, 4), dtype=np.float32)
    return x, tiny.expected(x)


def test_large_tensors_take_it_and_are_exact(shared):
    channel = shared.connection._control.channel
    wait_mappings(shared, 1)
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=shared.connection, planner="bbgrap")
    kept = []
    for seed in range(6):
        x, expected = x_and_answer(seed)
        (y,) = session.run(None, {"x": x})
        kept.append((y, expected))
    assert channel._other._read > 6 * y.nbytes, "outputs went another way"
    for y, expected in kept:
        np.testing.assert_array_equal(y, expected)
        y[:] = 0


def test_a_client_killed_while_its_requests_run_leaves_nothing(shared):
    wait_mappings(shared, 1)
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=shared.connection, planner="bbgrap")
    x, expected = x_and_answer()
    session.run(None, {"x": x})
    client = subprocess.Popen([sys.executable, "-c", CLIENT, shared.address], stdout=subprocess.PIPE, text=True)
    with client:
        assert client.stdout.readline() == "running\n"
        wait_mappings(shared, 2)
        os.kill(client.pid, signal.SIGKILL)
    for _ in range(5):
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)
    wait_mappings(shared, 1)
    assert all(process.poll() is None for process in shared.processes.values())


def test_without_it_everything_works_as_well_until_there_is_another_one(shared, monkeypatch):
    with bbgrap.connect(shared.address) as connection:
        session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=connection, planner="bbgrap")
        x, expected = x_and_answer()
        session.run(None, {"x": x})
        monkeypatch.setattr(connection, "_is_near", False)
        connection._control.channel._connection.shutdown(socket.SHUT_RDWR)
        for _ in range(3):
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)
        assert connection._control.channel is None
        monkeypatch.undo()
        for _ in range(3):
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)
        assert connection._control.channel is not None
    wait_mappings(shared, 1)


@pytest.mark.faults
def test_a_client_has_one_again_after_its_coordinator_was_started_anew(tmp_path):
    with known_cluster(1, tmp_path) as cluster:
        session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=cluster.connection, planner="bbgrap")
        x, expected = x_and_answer()
        session.run(None, {"x": x})
        cluster.kill("coordinator")
        cluster.start_coordinator()
        for _ in range(3):
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)
        assert cluster.connection._control.channel is not None
        wait_mappings(cluster, 1)


def test_garbage_on_it_harms_nobody(shared):
    number = shared.connection.number()
    name = shared.connection.ask(Hello(number), Greeting).channel.split()[0]
    draw = random.Random(3)
    for round_ in range(20):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.settimeout(10)
            stranger.connect(f"\0{name}")
            file = os.memfd_create("garbage", os.MFD_ALLOW_SEALING)
            os.ftruncate(file, draw.choice([0, 1, 4096, 1 << 27]))
            socket.send_fds(stranger, [draw.randbytes(draw.choice([1, 16, 17]))], [file] * draw.choice([0, 1, 2]))
            os.close(file)
            assert stranger.recv(100) == b"", f"round {round_}: it was welcomed"
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=shared.connection, planner="bbgrap")
    x, expected = x_and_answer()
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)
    assert shared.processes["coordinator"].poll() is None
