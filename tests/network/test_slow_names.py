"""Names of hosts that take seconds to be looked up, as where a name server is away (root, Linux; `make test-network`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import until

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]
HOST = "bbgrap-names"
SETTINGS = Path("/etc/netns") / HOST
SLOW_S = 6.0
"""Longer than agents and clients bear a silent connection."""
SERVER = """
import socket, sys, threading, time
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
print("ready", flush=True)

def answer(question, peer):
    time.sleep(float(sys.argv[1]))
    ends = question.index(0, 12) + 5
    is_v4 = question[ends - 4 : ends - 2] == bytes([0, 1])
    found = bytes([0xC0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, 1]) if is_v4 else b""
    server.sendto(question[:2] + bytes([0x81, 0x80, 0, 1, 0, is_v4, 0, 0, 0, 0]) + question[12:ends] + found, peer)

while True:
    threading.Thread(target=answer, args=server.recvfrom(512), daemon=True).start()
"""


INSIDE = ("ip", "netns", "exec", HOST)


def said_inside(*words: str) -> str:
    """Return what a program says that ends well."""
    done = subprocess.run([*INSIDE, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture
def names() -> Iterator[None]:
    """A namespace in which every name is that of this machine, and is found after `SLOW_S`."""
    if os.geteuid() != 0:
        pytest.fail("network namespaces need root")
    SETTINGS.mkdir(parents=True)
    (SETTINGS / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:10 attempts:1\n")
    (SETTINGS / "nsswitch.conf").write_text("hosts: dns\n")
    try:
        subprocess.run(["ip", "netns", "add", HOST], check=True)
        subprocess.run(["ip", "-n", HOST, "link", "set", "lo", "up"], check=True)
        with subprocess.Popen([*INSIDE, sys.executable, "-c", SERVER, str(SLOW_S)], stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            yield
            server.kill()
    finally:
        subprocess.run(["ip", "netns", "del", HOST], check=False, capture_output=True)
        for file in SETTINGS.iterdir():
            file.unlink()
        SETTINGS.rmdir()


AGAIN = """
import time, zmq
from bbgrap.transport.control_client import ControlClient
from bbgrap.transport.control_server import ControlServer
with zmq.Context() as ours, zmq.Context() as theirs:
    server = ControlServer(theirs, "tcp://127.0.0.1:0")
    with ControlClient(ours, server.address.replace("127.0.0.1", "head.test")) as client:
        ends = time.monotonic() + 30
        while (came := server.receive()) is None and time.monotonic() < ends:
            client.reopen()
            client.send([b"hello"])
            time.sleep(1.0)
    server.close()
print("nothing came" if came is None else "came", flush=True)
"""


@pytest.mark.usefixtures("names")
def test_who_opens_silent_connections_anew_is_heard_when_the_name_is_found() -> None:
    assert said_inside(sys.executable, "-c", AGAIN) == "came\n"


@pytest.mark.usefixtures("names")
def test_a_client_waits_for_the_name_and_then_for_the_coordinator(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as output:
        words = ["bbgrap-coordinator", "--bind", "tcp://127.0.0.1:7070", "--insecure", "--state-dir", str(tmp_path / "state")]
        coordinator = subprocess.Popen([*INSIDE, *words], stdout=output, stderr=output)
    try:
        until(lambda: "coordinator at" in log.read_text(), why=log.read_text)
        nodes = said_inside("bbgrap", "nodes", "--coordinator", "tcp://head.test:7070", "--insecure", "--json")
        assert nodes.splitlines()[-1] == "[]"
    finally:
        coordinator.terminate()
        coordinator.wait(30)
