"""A worker shows the identity that its nanny was given, also the next worker, and no peer without one is heard."""

import os
import queue
import time
from pathlib import Path

import pytest
from bbgrap_agent.nanny import Nanny, WorkerEnded
from bbgrap_agent.worker_settings import WorkerSettings

from bbgrap.control.agent_events import WorkerReady
from bbgrap.protocol.data import Frame, Kind
from bbgrap.protocol.messages import AnswerPings, LinksTried, Peer, TryLinks
from bbgrap.transport.tcp import listen_at
from tests.bbgrap.transport.locked import LockedCluster

WITHIN_S = 30.0


@pytest.fixture
def cluster():
    return LockedCluster()


@pytest.fixture
def said():
    return queue.SimpleQueue()


@pytest.fixture
def nanny(cluster, said, tmp_path):
    identity = cluster.authority.identity("agent0")
    with listen_at("tcp://127.0.0.1:0") as listener:
        settings = WorkerSettings("agent0", 1, "127.0.0.1", "127.0.0.1", str(tmp_path), 1, 0)
        nanny = Nanny(listener, settings, said.put, identity)
        nanny.identity = identity
        nanny.start_if_due(time.monotonic())
        yield nanny
        nanny.stop()


def next_of(said, kind):
    while not isinstance(event := said.get(timeout=WITHIN_S), kind):
        pass
    return event


def worker_pid():
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return next(int(pid) for pid in children if b"bbgrap_agent.worker" in Path(f"/proc/{pid}/cmdline").read_bytes())


def test_a_worker_shows_what_its_nanny_was_given(cluster, said, nanny):
    join = next_of(said, WorkerReady).introduction
    assert join.fingerprint == nanny.identity.fingerprint
    peer = cluster.open()
    peer.allow([join.fingerprint])
    told = Peer(1, "peer", peer.address, peer.fingerprint)
    peer.connect(join.data_address, join.fingerprint)
    ping = Frame(Kind.PING, 0, 0, 7, 50_000).to_bytes()
    peer.send(join.data_address, ping, peer.address.encode())
    assert peer.receive(0.2) is None, "it does not know this peer yet"
    nanny.tell(AnswerPings((told,)))
    peer.connect(join.data_address, join.fingerprint)
    deadline = time.monotonic() + WITHIN_S
    while (arrival := peer.receive(0.5)) is None and time.monotonic() < deadline:
        peer.send(join.data_address, ping, peer.address.encode())
    assert Frame.parse(arrival.header).kind is Kind.PONG
    assert (len(arrival.payload), arrival.peer) == (50_000, join.fingerprint)
    peer.close()


def test_the_key_is_neither_in_arguments_nor_environment_and_the_next_worker_has_it_too(said, nanny):
    join = next_of(said, WorkerReady).introduction
    pid = worker_pid()
    secret = nanny.identity.key.splitlines()[1]
    for name in ("cmdline", "environ"):
        assert secret not in Path(f"/proc/{pid}/{name}").read_bytes()
    nanny.ready()
    os.kill(pid, 9)
    nanny.ended(next_of(said, WorkerEnded), time.monotonic())
    nanny.start_if_due(time.monotonic())
    again = next_of(said, WorkerReady).introduction
    assert (again.fingerprint, again.data_address) == (join.fingerprint, join.data_address)


def test_links_are_tried_over_tls(cluster, said, nanny):
    join = next_of(said, WorkerReady).introduction
    impostor = cluster.open()
    impostor.allow([join.fingerprint])
    itself = Peer(0, "agent0", join.data_address, join.fingerprint)
    nanny.tell(AnswerPings((itself,)))
    nanny.tell(TryLinks(1, (itself, Peer(1, "other", impostor.address, "ab" * 32))))
    assert next_of(said, LinksTried) == LinksTried(1, (1,))
    impostor.close()


def test_a_coordinator_that_listens_everywhere_is_let_ask_where_it_was_joined(cluster, said, nanny):
    """With `--bind tcp://0.0.0.0:7070` every agent elsewhere looked for it on its own machine, and its requests ran anew every 5 s."""
    join = next_of(said, WorkerReady).introduction
    head = cluster.open()
    head.allow([join.fingerprint])
    port = head.address.rpartition(":")[2]
    nanny.tell(AnswerPings((Peer(1, "coordinator", f"tcp://*:{port}", head.fingerprint),)))
    head.connect(join.data_address, join.fingerprint)
    deadline, ping = time.monotonic() + 5.0, Frame(Kind.PING, 0, 0, 7, 10).to_bytes()
    while (arrival := head.receive(0.2)) is None and time.monotonic() < deadline:
        head.send(join.data_address, ping, f"tcp://127.0.0.1:{port}".encode())
    assert arrival is not None
    assert Frame.parse(arrival.header).kind is Kind.PONG
    head.close()
