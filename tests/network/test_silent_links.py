"""Links that swallow what is sent, between two network namespaces (root, Linux; `make test-network`)."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bbgrap.protocol.data import Frame, Kind
from bbgrap.transport.tcp import TcpDataPlane
from tests.network.namespaces import ip

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]
HOST, OURS, THEIRS = "bbgrap-silent", "10.78.0.1", "10.78.0.2"
NOBODY = "02:00:00:00:00:99"
RECEIVER = """
import sys, time
from bbgrap.transport.tcp import TcpDataPlane
plane = TcpDataPlane("tcp://10.78.0.2:0", "10.78.0.2", computes=True)
print(plane.address, flush=True)
time.sleep(float(sys.argv[1]))
came = 0
while True:
    if plane.receive(None) is not None:
        came += 1
        print(came, flush=True)
"""


@pytest.fixture
def link() -> Iterator[str]:
    """A link to another namespace; yields the name of our end."""
    if os.geteuid() != 0:
        pytest.fail("network namespaces need root")
    ours = f"bbs{os.getpid()}"
    try:
        ip("netns", "add", HOST)
        ip("link", "add", ours, "type", "veth", "peer", "name", "eth0", "netns", HOST)
        ip("addr", "add", f"{OURS}/24", "dev", ours)
        ip("link", "set", ours, "up")
        ip("-n", HOST, "addr", "add", f"{THEIRS}/24", "dev", "eth0")
        ip("-n", HOST, "link", "set", "eth0", "up")
        yield ours
    finally:
        subprocess.run(["ip", "netns", "del", HOST], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", ours], check=False, capture_output=True)


@contextmanager
def receiver(busy_s: float = 0.0) -> Iterator[subprocess.Popen[str]]:
    words = ["ip", "netns", "exec", HOST, sys.executable, "-c", RECEIVER, str(busy_s)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def sending(address: str) -> Iterator[tuple[TcpDataPlane, queue.SimpleQueue[tuple[str, str]]]]:
    plane = TcpDataPlane(f"tcp://{OURS}:0", OURS)
    told: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    plane.on_broken = lambda *broken: told.put(broken)
    plane.connect(address)
    try:
        yield plane, told
    finally:
        plane.close()


def read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def cut(side: str, link: str) -> None:
    match side:
        case "there":
            ip("neigh", "replace", THEIRS, "lladdr", NOBODY, "dev", link, "nud", "permanent")
        case "back":
            ip("-n", HOST, "neigh", "replace", OURS, "lladdr", NOBODY, "dev", "eth0", "nud", "permanent")
        case "down":
            ip("-n", HOST, "link", "set", "eth0", "down")


HEADER = Frame(Kind.DATA, 0, 1, 1, 1).to_bytes()


@pytest.mark.parametrize("side", ["there", "back", "down"])
def test_a_link_that_swallows_what_is_sent_is_told_of_within_a_second(link: str, side: str) -> None:
    with receiver() as process:
        address = read(process)
        with sending(address) as (plane, told):
            plane.send(address, HEADER, b"x")
            assert read(process) == "1"
            time.sleep(3)  # idle for so long that nobody looks any more, and the last word is old
            plane.send(address, HEADER, b"x")
            assert read(process) == "2"
            time.sleep(0.2)
            assert told.empty()
            cut(side, link)
            began = time.monotonic()
            plane.send(address, HEADER, b"x" * 1000)
            broken, reason = told.get(timeout=10)
            took = time.monotonic() - began
            assert broken == address
            assert "acknowledged nothing" in reason
            assert 0.4 < took < 1.5, took
            assert "no connection can be made" in told.get(timeout=10)[1]


def test_a_link_that_heals_serves_again(link: str) -> None:
    with receiver() as process:
        address = read(process)
        cut("there", link)
        with sending(address) as (plane, told):
            plane.send(address, HEADER, b"lost")
            assert "no connection can be made: no answer within 1 s" in told.get(timeout=10)[1]
            ip("neigh", "del", THEIRS, "dev", link)
            plane.send(address, HEADER, b"kept")
            assert read(process) == "1"


def test_a_link_that_is_cut_while_its_receiver_is_full_is_told_of_too(link: str) -> None:
    with receiver(60) as process:
        address = read(process)
        with sending(address) as (plane, told):
            for _ in range(40):
                plane.send(address, HEADER, bytes(1 << 20))
            time.sleep(2)
            assert told.empty()
            cut("there", link)
            assert told.get(timeout=60)[0] == address


def test_a_receiver_that_computes_for_seconds_is_well(link: str) -> None:
    with receiver(4) as process:
        address = read(process)
        with sending(address) as (plane, told):
            time.sleep(0.3)
            for _ in range(40):
                plane.send(address, HEADER, bytes(1 << 20))
            for _ in range(2000):
                plane.send(address, HEADER, b"small")
                time.sleep(0.001)
            for number in range(1, 2041):
                assert read(process) == str(number)
            assert told.empty()
