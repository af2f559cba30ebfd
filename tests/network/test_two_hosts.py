"""Two hosts with addresses of their own, as network namespaces joined by a rate-limited link (root, Linux; `make test-network`)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.network, pytest.mark.timeout(180)]
HOSTS = {"bbgrap-a": "10.77.0.1", "bbgrap-b": "10.77.0.2"}
COORDINATOR = "tcp://10.77.0.1:7070"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[None]:
    """Two namespaces with a link of 1 Gb/s between them."""
    if os.geteuid() != 0:
        pytest.fail("network namespaces need root")
    first, second = HOSTS
    try:
        for host in HOSTS:
            ip("netns", "add", host)
        ip("link", "add", "eth0", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", second)
        for host, address in HOSTS.items():
            ip("-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", host, "link", "set", "lo", "up")
            ip("-n", host, "link", "set", "eth0", "up")
            limit = ["tc", "-n", host, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "1gbit", "burst", "64kb", "latency", "50ms"]
            subprocess.run(limit, check=True, capture_output=True)
        yield
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "del", host], check=False, capture_output=True)


def start(host: str, log: Path, *command: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as stream:
        return subprocess.Popen(["ip", "netns", "exec", host, sys.executable, "-m", *command], stdout=stream, stderr=stream)


def run(host: str, keys: Path, *words: str) -> subprocess.CompletedProcess[str]:
    surroundings = {**os.environ, "BBGRAP_COORDINATOR": COORDINATOR, "BBGRAP_TOKEN_FILE": str(keys / "local.token")}
    return subprocess.run(["ip", "netns", "exec", host, "bbgrap", *words], capture_output=True, text=True, env=surroundings, check=False)


def test_agents_on_two_hosts_answer_clients_on_both(hosts: None, tmp_path: Path) -> None:
    first, second = HOSTS
    keys = tmp_path / "state" / "keys"

    def agent(host: str, name: str) -> subprocess.Popen[bytes]:
        options = ["--name", name, "--threads", "1", "--token-file", str(keys / "join.token"), "--keys-dir", str(tmp_path / name)]
        return start(host, tmp_path / f"{name}.log", "bbgrap_agent.main", "--join", COORDINATOR, *options)

    processes = [
        start(
            first, tmp_path / "coordinator.log", "bbgrap_coordinator.main", "--bind", COORDINATOR, "--state-dir", str(tmp_path / "state")
        ),
    ]
    try:
        deadline = time.monotonic() + 30
        while not (keys / "join.token").exists():
            assert time.monotonic() < deadline, (tmp_path / "coordinator.log").read_text()
            time.sleep(0.1)
        processes += [agent(first, "a"), agent(second, "b")]
        while run(first, keys, "nodes", "--json").stdout.count('"alive"') < len(HOSTS):
            assert time.monotonic() < deadline, "\n".join(log.read_text() for log in tmp_path.glob("*.log"))
            time.sleep(0.3)
        for host in HOSTS:
            done = run(host, keys, "submit", "zoo:tiny", "--planner", "bbgrap", "--verify")  # which cuts it whatever machines can do
            assert done.returncode == 0, done.stderr
            assert "over a, b" in done.stdout
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(10)
