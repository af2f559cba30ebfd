"""Two hosts with addresses of their own, as network namespaces joined by a rate-limited link (root, Linux; `make test-network`)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.network.namespaces import ip, two_hosts
from tests.waiting import until

pytestmark = [pytest.mark.network, pytest.mark.timeout(180)]
HOSTS = {"bbgrap-a": "10.77.0.1", "bbgrap-b": "10.77.0.2"}
COORDINATOR = "tcp://10.77.0.1:7070"
TUNNEL, BEHIND = "bbgrap-t", ("10.79.0.1", "10.79.0.2")


@pytest.fixture
def hosts() -> Iterator[None]:
    """Two hosts with a link of 1 Gb/s between them."""
    with two_hosts(HOSTS, dict.fromkeys(HOSTS, ("rate", "1gbit", "burst", "64kb", "latency", "50ms"))):
        yield


def start(host: str, log: Path, *command: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as stream:
        return subprocess.Popen(["ip", "netns", "exec", host, sys.executable, "-m", *command], stdout=stream, stderr=stream)


def run(host: str, keys: Path, *words: str) -> subprocess.CompletedProcess[str]:
    surroundings = {**os.environ, "BBGRAP_COORDINATOR": COORDINATOR, "BBGRAP_TOKEN_FILE": str(keys / "local.token")}
    return subprocess.run(["ip", "netns", "exec", host, "bbgrap", *words], capture_output=True, text=True, env=surroundings, check=False)


@pytest.fixture
def keys(hosts: None, tmp_path: Path) -> Iterator[Path]:
    """A coordinator on the first host, an agent on each; the folder of the coordinator's keys."""
    first, second = HOSTS
    keys = tmp_path / "state" / "keys"
    options = ["--bind", COORDINATOR, "--state-dir", str(tmp_path / "state")]
    processes = [start(first, tmp_path / "coordinator.log", "bbgrap_coordinator.main", *options)]
    try:
        await_(lambda: (keys / "join.token").exists(), tmp_path)
        processes += [agent(first, "a", keys), agent(second, "b", keys)]
        await_(lambda: run(first, keys, "nodes", "--json").stdout.count('"alive"') == len(HOSTS), tmp_path)
        yield keys
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(10)


def agent(host: str, name: str, keys: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start an agent; its files lie beside the coordinator's."""
    home = keys.parent.parent
    options = ["--name", name, "--threads", "1", "--token-file", str(keys / "join.token"), "--keys-dir", str(home / name)]
    return start(host, home / f"{name}.log", "bbgrap_agent.main", "--join", COORDINATOR, *options, *words)


def await_(condition: Callable[[], bool], logs: Path) -> None:
    until(condition, 30, lambda: "\n".join(log.read_text() for log in logs.glob("*.log")), every_s=0.3)


def submit(host: str, keys: Path, planner: str = "bbgrap") -> str:
    done = run(host, keys, "submit", "zoo:tiny", "--planner", planner, "--verify")  # one which cuts it whatever machines can do
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def losing_long_packets() -> Iterator[None]:
    """A way between two further addresses of the hosts that loses packets of more than 1,280 bytes, and tells nobody: as tunnels do."""
    try:
        ip("netns", "add", TUNNEL)
        ip("-n", TUNNEL, "link", "add", "bridge", "type", "bridge")
        ip("-n", TUNNEL, "link", "set", "bridge", "up")
        for number, host in enumerate(HOSTS):
            ip("link", "add", "tunnel", "netns", host, "type", "veth", "peer", "name", f"end{number}", "netns", TUNNEL)
            ip("-n", host, "link", "set", "tunnel", "gso_max_segs", "1")  # else the bridge takes what is cut into packets later
            ip("-n", host, "addr", "add", f"{BEHIND[number]}/24", "dev", "tunnel")
            ip("-n", host, "link", "set", "tunnel", "up")
            ip("-n", TUNNEL, "link", "set", f"end{number}", "master", "bridge")
            ip("-n", TUNNEL, "link", "set", f"end{number}", "up")
        ip("-n", TUNNEL, "link", "set", "end1", "mtu", "1280")
        yield
    finally:
        subprocess.run(["ip", "netns", "del", TUNNEL], check=False, capture_output=True)


def test_a_way_that_loses_long_packets_is_told_of_and_nothing_is_planned_over_it(keys: Path, tmp_path: Path) -> None:
    """Short messages pass it: requests over it went on for as long as their clients waited."""
    first, second = HOSTS
    told = tmp_path / "coordinator.log"
    with losing_long_packets():
        process = agent(second, "c", keys, "--advertise", BEHIND[1])
        try:
            await_(lambda: "'c' does not reach 'a'" in told.read_text(), tmp_path)
            assert "mtu 1280" in told.read_text()
            assert "over a, b;" in submit(first, keys)
            ip("-n", second, "link", "set", "tunnel", "mtu", "1280")
            await_(lambda: "reach each other again" in told.read_text(), tmp_path)
            assert "over a, b, c;" in submit(first, keys, "layerwise")
        finally:
            process.terminate()
            process.wait(10)


def test_agents_on_two_hosts_answer_clients_on_both(keys: Path) -> None:
    for host in HOSTS:
        assert "over a, b" in submit(host, keys)


def test_an_agent_whose_host_gets_another_address_takes_part_again(keys: Path, tmp_path: Path) -> None:
    """As a laptop does that comes into another network."""
    first, second = HOSTS
    submit(first, keys)
    ip("-n", second, "addr", "del", "10.77.0.2/24", "dev", "eth0")
    await_(lambda: "over a;" in submit(first, keys), tmp_path)
    ip("-n", second, "addr", "add", "10.77.0.3/24", "dev", "eth0")
    await_(lambda: "begins anew" in (tmp_path / "b.log").read_text(), tmp_path)
    await_(lambda: run(first, keys, "nodes", "--json").stdout.count('"alive"') == len(HOSTS), tmp_path)
    # What is planned anew needs them both; what was known already may go on where it was.
    assert "over a, b" in submit(first, keys, "layerwise")
    assert "10.77.0.3" in run(first, keys, "nodes", "--json").stdout


def test_an_agent_behind_a_link_that_stalls_is_not_lost_again_and_again(keys: Path, tmp_path: Path) -> None:
    """As radio links do: it was lost and let in each time, so that it was never measured and no plan was ever made."""
    submit("bbgrap-a", keys)
    drop = ("-t", "raw", "{}", "PREROUTING", "-i", "eth0", "-j", "DROP")
    for _ in range(5):
        for what, seconds in (("-A", 0.8), ("-D", 2.5)):
            words = [word.format(what) for word in drop]
            subprocess.run(["ip", "netns", "exec", "bbgrap-b", "iptables", *words], check=True)
            time.sleep(seconds)
    await_(lambda: run("bbgrap-a", keys, "nodes", "--json").stdout.count('"alive"') == len(HOSTS), tmp_path)
    assert 1 <= (tmp_path / "coordinator.log").read_text().count("agent 'b' was lost; ") <= 2
    submit("bbgrap-a", keys)
