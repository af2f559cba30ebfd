"""Devices of one machine lay payloads in memory for each other: real coordinator, real confined workers."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import bbgrap
from bbgrap.transport.shared_memory import is_possible
from tests.cluster import tiny
from tests.cluster.strangers import mapped, processes_of

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(not is_possible(), reason="this system has no sealed memory")]

ROWS = 40_000


def asks(session, times):
    for seed in range(times):
        x = np.random.default_rng(seed).random((ROWS, 4), dtype=np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], tiny.expected(x))


def workers_of(cluster):
    return [process.pid for process in processes_of(cluster) if "bbgrap_agent.worker" in process.cmdline()]


def share(cluster):
    """Wait until all three have memory from and for each other; return their numbers."""
    deadline = time.monotonic() + 20
    while True:
        expected = {cluster.processes["coordinator"].pid, *workers_of(cluster)}
        shared = mapped(cluster, "bbgrap-payloads")
        if len(expected) == 3 and shared == dict.fromkeys(expected, 4):
            return expected
        assert time.monotonic() < deadline, f"{shared} of {expected}"
        time.sleep(0.05)


def sent_bytes():
    """What all processes of this machine have sent each other by its network."""
    devices = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[9]) for line in devices if line.split()[0] == "lo:")


def test_what_devices_send_each_other_does_not_go_over_the_network(shared):
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=shared.connection, planner="bbgrap")
    asks(session, 2)
    share(shared)
    sent = []
    for _ in range(20):  # until other programs are quiet: what they send comes on top
        before = sent_bytes()
        asks(session, 20)
        sent.append(sent_bytes() - before)
        if sent[-1] < 20 * 4 * 4 * ROWS / 2:  # half of what the inputs have
            return
    pytest.fail(f"with 20 inputs of {4 * 4 * ROWS} bytes at least {min(sent)} were sent")


@pytest.mark.faults
def test_a_new_worker_shares_again(fresh):
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=fresh.connection, planner="bbgrap")
    asks(session, 2)
    first = share(fresh)
    os.kill(workers_of(fresh)[0], signal.SIGKILL)
    asks(session, 5)
    while share(fresh) == first:
        pass
    asks(session, 5)
