"""Memory gets from one device to another over their brokers, and from nobody else to anybody."""

import errno
import mmap
import os
import socket
import threading
import time

import numpy as np
import pytest

from bbgrap.transport import memory_broker, outbox, shared_memory
from bbgrap.transport.framing import PIECE_BYTES
from bbgrap.transport.memory_broker import MADE, OFFERED, start_broker
from bbgrap.transport.outgoing_connection import OutgoingConnection
from bbgrap.transport.payload_memory import LEAST_BYTES, MEMORY_BYTES, PayloadReader, PayloadWriter
from bbgrap.transport.shared_memory import TOKEN_BYTES, is_invitation, is_possible, map_sealed
from tests.bbgrap.transport.check_transport import check_transport, receive
from tests.bbgrap.transport.locked import LockedCluster, share_memory
from tests.waiting import until

pytestmark = pytest.mark.skipif(not is_possible(), reason="this system has no sealed memory")


@pytest.fixture(autouse=True)
def _quickly_told(monkeypatch):
    monkeypatch.setattr(outbox, "_CONNECT_S", 0.3)


def brokers():
    return [thread for thread in threading.enumerate() if thread.name == "memory broker"]


@pytest.fixture
def two():
    clients = [start_broker(), start_broker()]
    yield clients
    for client in clients:
        client.socket.close()
    until(lambda: not brokers())


def connected():
    """Open two planes that share memory, and see to it that the first one lays its payloads there."""
    cluster = LockedCluster(shares_memory=True)
    sender, target = cluster.open(), cluster.open()
    sender.connect(target.address)
    share_memory(sender, target)
    return cluster, sender, target


def test_both_get_the_same_memory(two):
    sender, target = two
    invitation = target.new_word()
    assert is_invitation(invitation)
    sender.ask(invitation)
    kind, word, made = until(sender.receive)
    assert (kind, word) == (MADE, invitation.partition(" ")[2])
    kind, word, offered = until(target.receive)
    assert (kind, word) == (OFFERED, invitation.partition(" ")[2])
    ours, theirs = (map_sealed(each, MEMORY_BYTES) for each in (made, offered))
    ours[5000:5004] = b"here"
    assert theirs[5000:5004] == b"here"
    for each in (made, offered):
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(each, 100)
        os.close(each)


def test_nobody_waits_for_what_is_nowhere(two):
    sender, target = two
    for asked in (f"bbgrap-{'0' * 32} {'0' * 32}", "../etc/passwd 00", "x" * 300, target.name, f"{target.name} {'g' * 32}"):
        assert is_invitation(asked) == asked.startswith("bbgrap-00")
        sender.ask(asked)
    sender.ask(target.new_word())  # it goes on
    assert until(sender.receive)[0] == MADE
    assert sender.receive() is None


@pytest.mark.parametrize("descriptors", [0, 1, 2])
@pytest.mark.parametrize("size", [0, TOKEN_BYTES, TOKEN_BYTES + 1])
def test_what_strangers_offer_changes_nothing(two, descriptors, size):
    """Those of the same user; others are not listened to."""
    _, target = two
    memories = [os.memfd_create("stranger") for _ in range(descriptors)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(f"\0{target.name}")
        if size:
            socket.send_fds(stranger, [bytes(size)], memories)
    came = None
    if descriptors == 1 and size == TOKEN_BYTES:
        kind, word, came = until(target.receive)  # whoever gets it sees that nobody was invited so, and that it is not sealed
        assert (kind, word) == (OFFERED, "00" * TOKEN_BYTES)
        with pytest.raises(ValueError, match="seals"):
            map_sealed(came, MEMORY_BYTES)
        memories.append(came)
    for each in memories:
        os.close(each)
    assert target.receive() is None


@pytest.mark.parametrize("asked_by", [memory_broker, shared_memory])
def test_another_user_is_not_served(asked_by, two, monkeypatch):
    sender, target = two
    monkeypatch.setattr(asked_by, "is_same_user", lambda connection: False)
    sender.ask(target.new_word())
    time.sleep(0.2)
    assert target.receive() is None
    assert asked_by is memory_broker or sender.receive() is None


def test_a_broker_ends_with_its_device():
    client = start_broker()
    assert len(brokers()) == 1
    client.socket.close()
    until(lambda: not brokers())


@pytest.mark.filterwarnings("error")
def test_without_a_descriptor_left_there_is_no_broker_and_no_thread_fails(monkeypatch):
    def refuse():
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(memory_broker.selectors, "DefaultSelector", refuse)
    before = threading.active_count()
    assert start_broker() is None
    assert threading.active_count() == before


def test_the_laws_of_a_data_plane_hold():
    check_transport(LockedCluster(shares_memory=True).open)
    until(lambda: not brokers())


def test_payloads_do_not_travel_with_their_messages():
    _, sender, target = connected()
    outgoing = sender._outbox._outgoing[target.address]
    before = outgoing.written
    for size in (LEAST_BYTES - 1, LEAST_BYTES, 100_000, 5_000_000, 40_000_000):
        payload = np.random.default_rng(size).integers(0, 256, size, np.uint8).data
        sender.send(target.address, b"h", payload[:1000], payload[1000:])
        assert receive(target, sender).payload == payload
    heads = 8 * (40_000_000 // PIECE_BYTES)
    assert LEAST_BYTES + 40_000_000 < outgoing.written - before - heads < LEAST_BYTES + 40_001_000, (
        "the smallest, and what is larger than the memory"
    )
    sender.close()
    target.close()
    until(lambda: not brokers())


def test_what_is_laid_for_a_connection_that_breaks_is_lost_and_told():
    cluster, sender, target = connected()
    outgoing = sender._outbox._outgoing[target.address]
    first = outgoing.memory
    sender.send(target.address, b"kept", bytes(LEAST_BYTES))
    assert bytes(receive(target, sender).header) == b"kept"
    target.allow([])
    sender.send(target.address, b"lost", bytes(LEAST_BYTES))
    assert sender.told.get(timeout=10)[0] == target.address
    assert target.receive(0.1) is None
    target.allow([plane.fingerprint for plane in cluster.planes.values()])
    share_memory(sender, target)
    assert outgoing.memory is not first
    for number in range(100):
        sender.send(target.address, b"%d" % number, bytes([number]) * LEAST_BYTES)
        arrival = receive(target, sender)
        assert bytes(arrival.header) == b"%d" % number
        assert bytes(arrival.payload) == bytes([number]) * LEAST_BYTES
    sender.close()
    target.close()
    until(lambda: not brokers())


def test_a_connection_that_takes_nothing_has_lost_what_was_laid():
    """It must not go over the next one, which has other memory."""
    memory = mmap.mmap(-1, MEMORY_BYTES)
    PayloadReader(memory)
    ours, theirs = socket.socketpair()
    outgoing = OutgoingConnection("tcp://127.0.0.1:1", socket=ours, ready=True, memory=PayloadWriter(memory))
    theirs.close()
    (pieces,) = outgoing.framed(b"h", [bytes(LEAST_BYTES)])
    assert sum(map(len, pieces)) < LEAST_BYTES
    assert outgoing.write(pieces) == 0
    assert outgoing.lost
    outgoing.shut()
    (pieces,) = outgoing.framed(b"h", [bytes(LEAST_BYTES)])
    assert sum(map(len, pieces)) > LEAST_BYTES


def test_who_does_not_read_is_written_to_over_the_connection():
    """What finds no room in the memory waits as it did before; the order stays."""
    _, sender, target = connected()
    payloads = [np.full(3 << 20, number, np.uint8) for number in range(20)]
    for number, payload in enumerate(payloads):
        sender.send(target.address, b"%d" % number, payload.data)
    assert sender._outbox._outgoing[target.address].waiting
    for number, payload in enumerate(payloads):
        arrival = receive(target, sender)
        assert bytes(arrival.header) == b"%d" % number
        assert bytes(arrival.payload) == payload.tobytes()
    sender.close()
    target.close()
    until(lambda: not brokers())
