"""A host whose name has two addresses, of which the first takes no connections, or one of IPv6 only (root, Linux; `make test-network`)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import until

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]
HOST = "bbgrap-twice"
SETTINGS = Path("/etc/netns") / HOST
INSIDE = ("ip", "netns", "exec", HOST)
AT = "127.0.0.5"


@pytest.fixture
def names() -> Iterator[None]:
    """A namespace in which `head` is 127.0.0.1 and `AT`, in this order, and `six` is `::1`."""
    if os.geteuid() != 0:
        pytest.fail("network namespaces need root")
    SETTINGS.mkdir(parents=True)
    hosts = SETTINGS / "hosts"
    hosts.write_text(f"127.0.0.1 localhost head\n{AT} head\n::1 six\n")
    try:
        subprocess.run(["ip", "netns", "add", HOST], check=True)
        subprocess.run(["ip", "-n", HOST, "link", "set", "lo", "up"], check=True)
        yield
    finally:
        subprocess.run(["ip", "netns", "del", HOST], check=False, capture_output=True)
        hosts.unlink()
        SETTINGS.rmdir()


@pytest.mark.usefixtures("names")
@pytest.mark.parametrize("drops", [False, True])
def test_agents_and_clients_find_the_coordinator_at_the_second(tmp_path: Path, drops: bool) -> None:
    if drops:
        subprocess.run([*INSIDE, "iptables", "-A", "INPUT", "-d", "127.0.0.1", "-p", "tcp", "--dport", "7070", "-j", "DROP"], check=True)
    join_and_ask(tmp_path, AT, "head")


@pytest.mark.usefixtures("names")
def test_a_coordinator_whose_name_has_an_address_of_ipv6_only_is_found(tmp_path: Path) -> None:
    join_and_ask(tmp_path, "[::1]", "six")


def join_and_ask(tmp_path: Path, at: str, name: str) -> None:
    """Start a coordinator at an address, have an agent join it by a name, and list the nodes by that name."""
    log = tmp_path / "log"
    keys = tmp_path / "state" / "keys"
    started = []
    with log.open("wb") as output:

        def start(*words: str) -> None:
            started.append(subprocess.Popen([*INSIDE, *words], stdout=output, stderr=output))

        try:
            start("bbgrap-coordinator", "--bind", f"tcp://{at}:7070", "--state-dir", str(tmp_path / "state"))
            until(lambda: "coordinator at" in log.read_text(), why=log.read_text)
            folders = ("--keys-dir", str(tmp_path / "keys"), "--cache-dir", str(tmp_path / "cache"))
            start("bbgrap-agent", "--join", f"tcp://{name}:7070", "--name", "far", "--token-file", str(keys / "join.token"), *folders)
            until(lambda: "joined as 'far'" in log.read_text(), why=log.read_text)
            asking = ("bbgrap", "nodes", "--coordinator", f"tcp://{name}:7070", "--token-file", str(keys / "local.token"))
            done = subprocess.run([*INSIDE, *asking], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stdout
            assert "far" in done.stdout
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait(20)
