"""What every data plane must do: called with a function that opens connected planes, for the real one and for the fake."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from bbgrap.transport.framing import Arrival
from bbgrap.transport.tcp import TcpDataPlane

OpenPlane = Callable[[], TcpDataPlane]


def receive(plane: TcpDataPlane, *senders: TcpDataPlane, timeout_s: float = 5.0) -> Arrival:
    """Return the next message; wake-ups in between are allowed. The senders are served meanwhile, as their threads would."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for sender in senders:
            assert sender.receive(0) is None
        arrival = plane.receive(0.01 if senders else 0.2)
        if arrival is not None:
            return arrival
    raise AssertionError("no message came")


def check_transport(open_plane: OpenPlane) -> None:
    """Run all checks, each on fresh planes."""
    for check in (
        _in_order,
        _payloads,
        _many_senders,
        _nothing_and_timeout,
        _wake,
        _unknown_address,
        _counted,
        _never_waits,
        _late_receiver,
        _small_between_large,
    ):
        check(open_plane)


def _in_order(open_plane: OpenPlane) -> None:
    a, b = open_plane(), open_plane()
    a.connect(b.address)
    for number in range(500):
        a.send(b.address, b"%04d" % number, b"x" * (number % 7))
    for number in range(500):
        arrival = receive(b, a)
        assert (bytes(arrival.header), bytes(arrival.payload)) == (b"%04d" % number, b"x" * (number % 7))
    _close(a, b)


def _payloads(open_plane: OpenPlane) -> None:
    a, b = open_plane(), open_plane()
    a.connect(b.address)
    for size in (0, 1, 31, 4096, 65535, 65536, 3_000_000):
        payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
        a.send(b.address, b"h", memoryview(payload))
        arrival = receive(b)
        assert bytes(arrival.header) == b"h"
        assert bytes(arrival.payload) == payload
        assert isinstance(arrival.sender, str)
    _close(a, b)


def _many_senders(open_plane: OpenPlane) -> None:
    target, senders = open_plane(), [open_plane() for _ in range(4)]
    for number, sender in enumerate(senders):
        sender.connect(target.address)
        for message in range(20):
            sender.send(target.address, b"%d %d" % (number, message))
    came: dict[bytes, list[int]] = {}
    for _ in range(80):
        sender_name, message_name = bytes(receive(target).header).split()
        came.setdefault(sender_name, []).append(int(message_name))
    assert came == {b"%d" % number: list(range(20)) for number in range(4)}
    _close(target, *senders)


def _nothing_and_timeout(open_plane: OpenPlane) -> None:
    plane = open_plane()
    assert plane.receive(0) is None
    began = time.monotonic()
    assert plane.receive(0.05) is None
    assert 0.03 < time.monotonic() - began < 1
    _close(plane)


def _wake(open_plane: OpenPlane) -> None:
    plane = open_plane()
    thread = threading.Timer(0.05, plane.wake)
    thread.start()
    assert plane.receive(None) is None
    thread.join()
    _close(plane)


def _unknown_address(open_plane: OpenPlane) -> None:
    a, b = open_plane(), open_plane()
    a.send(b.address, b"lost")
    a.connect(b.address)
    a.send(b.address, b"kept")
    assert bytes(receive(b).header) == b"kept"
    a.disconnect("tcp://127.0.0.1:9")
    _close(a, b)


def _counted(open_plane: OpenPlane) -> None:
    a, b = open_plane(), open_plane()
    a.connect(b.address)
    a.connect(b.address)
    a.disconnect(b.address)
    a.send(b.address, b"kept")
    assert bytes(receive(b).header) == b"kept"
    a.disconnect(b.address)
    a.send(b.address, b"lost")
    assert b.receive(0.05) is None
    _close(a, b)


def _never_waits(open_plane: OpenPlane) -> None:
    """Two that send much to each other before either receives must not lock each other up, and nothing may be lost."""
    a, b = open_plane(), open_plane()
    a.connect(b.address)
    b.connect(a.address)
    block = bytes(1 << 17)
    for number in range(400):
        a.send(b.address, b"%d" % number, block)
        b.send(a.address, b"%d" % number, block)
    for number in range(400):
        first = receive_both(a, b)
        assert first == (b"%d" % number, b"%d" % number)
    _close(a, b)


def receive_both(a: TcpDataPlane, b: TcpDataPlane) -> tuple[bytes, bytes]:
    """Take one message of each; both go on sending what had to wait while they receive."""
    came: dict[int, bytes] = {}
    deadline = time.monotonic() + 10
    while len(came) < 2 and time.monotonic() < deadline:
        for place, plane in enumerate((a, b)):
            arrival = plane.receive(0.001) if place not in came else None
            if arrival is not None:
                came[place] = bytes(arrival.header)
    return came[0], came[1]


def _late_receiver(open_plane: OpenPlane) -> None:
    a, b = open_plane(), open_plane()
    a.connect(b.address)
    a.send(b.address, b"early", b"payload")
    time.sleep(0.05)
    arrival = receive(b)
    assert (bytes(arrival.header), bytes(arrival.payload)) == (b"early", b"payload")
    _close(a, b)


def _small_between_large(open_plane: OpenPlane) -> None:
    """What is small waits for no large message that is on its way, and no large one goes before what is small and was sent earlier."""
    a, b = open_plane(), open_plane()
    a.connect(b.address)
    large = np.random.default_rng(0).integers(0, 256, 24 << 20, np.uint8)
    for number in range(3):
        a.send(b.address, b"small %d" % number, bytes(100))
        a.send(b.address, b"large %d" % number, large[number:].data)
    came = [receive(b, a) for _ in range(6)]
    headers = [bytes(arrival.header) for arrival in came]
    for size in (b"small", b"large"):
        assert [header for header in headers if header.startswith(size)] == [size + b" %d" % number for number in range(3)]
    assert all(headers.index(b"small %d" % number) < headers.index(b"large %d" % number) for number in range(3))
    for arrival in came:
        if bytes(arrival.header).startswith(b"large"):
            assert np.array_equal(np.frombuffer(arrival.payload, np.uint8), large[int(bytes(arrival.header)[-1:]) :])
    _close(a, b)


def _close(*planes: TcpDataPlane) -> None:
    for plane in planes:
        plane.close()
