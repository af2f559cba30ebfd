"""Two machines on one: network namespaces joined by a link of a given rate, one core each.

    core 0                                core 1
    [coordinator, agent0, client] ══link══ [agent1]

Only the second machine's share of a request crosses the link. A link is a veth pair whose two ends send through a token bucket (`tc tbf`)
that may run ahead by little: with a larger bucket small messages would cross at the speed of memory. Where a packet of several frames fits,
it passes whole, as through a network card that cuts packets itself. Namespaces need root on Linux; `loopback` needs nothing.

Laws: whatever was made is gone when a context ends, Ctrl-C and SIGTERM included; names carry the process number, so two runs do not meet.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from bbgrap.bench import bound_to
from bbgrap.errors import ClusterUnavailableError, UsageError
from bbgrap.local import end_of
from bbgrap.session import Connection
from bbgrap.transport.credentials import Credentials
from benchmarks.lan import enter_network, run

CORES = (0, 1)
"""Of the two machines."""

BURST_S = 64e-6
"""How far a link may run ahead, if that is enough for a packet. Measured with `tbf` at 0.1, 1 and 10 Gbit/s: below, timers cost up to
half of the rate; with 64 KB at 100 Mbit/s, a row of halo crosses in a third of the time that it would take on a real link."""

_PACKET_BURST_S = 160e-6
"""How far it may run ahead to take packets whole: else the kernel cuts them into frames and takes a core for 1 Gbit/s (decision 19)."""

_LEAST_BURST_BYTES = 3072
"""Two Ethernet frames."""

_LARGEST_BURST_BYTES = 80_000
"""The largest packet of all, with the heads of its frames."""

_FRAME_BYTES = 1514
_PACKET_BYTES = 65_536

_ADDRESSES = ("10.77.0.1", "10.77.0.2")
_PORT = 7070
_START_S = 60.0
_STOP_S = 5.0
_RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}

Lock = Literal["tls", "plain", "insecure"]
"""How a cluster is locked: keys and TLS; keys, but tensors in clear; not at all."""
LOCKS: tuple[Lock, ...] = get_args(Lock)
_LOCKING: Mapping[Lock, Sequence[str]] = {"tls": (), "plain": ("--data-plane", "plain"), "insecure": ("--insecure",)}

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Rate:
    """A link by name, and its bits per second; None: loopback, not limited."""

    name: str
    bits_per_s: float | None

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Read `100mbit`, `2.5gbit` or `loopback`.

        Raises:
            UsageError: if it is something else.
        """
        name = text.strip().lower()
        if name == "loopback":
            return cls(name, None)
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]bit)", name)
        if found is None or not float(found[1]):
            raise UsageError(f"link: expected a rate like 100mbit or 10gbit, or loopback, got '{text}'")
        return cls(name, float(found[1]) * _RATES[found[2]])

    @property
    def burst_bytes(self) -> int:
        """The size of the token bucket."""
        per_s = (self.bits_per_s or 0.0) / 8
        return round(max(_LEAST_BURST_BYTES, per_s * BURST_S, min(per_s * _PACKET_BURST_S, _LARGEST_BURST_BYTES)))

    @property
    def packet_bytes(self) -> int | None:
        """The largest packet that passes whole, a power of two that fits into the bucket; network cards cut packets into frames themselves.

        None if none of several frames fits: then the kernel cuts them, on the sender's core.
        """
        fits = self.burst_bytes * 7 // 8
        return min(1 << fits.bit_length() - 1, _PACKET_BYTES) if fits >= 2 * _FRAME_BYTES else None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process runs: a network namespace (empty: that of this process), and a core."""

    namespace: str
    core: int


@dataclass(frozen=True, slots=True)
class Reached:
    """A coordinator, and how to connect to it from wherever: notes of tokens are found at addresses of one's own machine only."""

    address: str
    credentials: Credentials
    processes: tuple[int, ...] = ()
    """Numbers of the cluster's main processes."""

    def connect(self, timeout_s: float = 3.0) -> Connection:
        """Connect as an admin."""
        return Connection(self.address, timeout_s, self.credentials)


@dataclass(frozen=True)
class Testbed:
    """Two places, the address of each, and the coordinator of each cluster."""

    places: tuple[Place, Place]
    hosts: tuple[str, str]
    coordinators: tuple[Reached, ...]

    @property
    def coordinator(self) -> Reached:
        """The first cluster's."""
        return self.coordinators[0]


def can_limit() -> bool:
    """Whether this process may make network namespaces."""
    return sys.platform == "linux" and os.geteuid() == 0


@contextmanager
def open_testbed(rate: Rate, locks: Sequence[Lock] = ("tls",)) -> Iterator[Testbed]:
    """Start a coordinator and two agents joined by a link, once for each way to lock them; they are gone afterwards.

    Raises:
        UsageError: if this machine has fewer than two cores for this process, or namespaces are not allowed.
        ClusterUnavailableError: if a process does not start; the message has the end of its log.
    """
    if not set(CORES) <= os.sched_getaffinity(0):
        raise UsageError(f"test-bed: expected cores {list(CORES)} for this process, got {sorted(os.sched_getaffinity(0))}")
    with ExitStack() as stack:
        stack.enter_context(terminable())
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bbgrap-testbed-", ignore_cleanup_errors=True)))
        places, hosts = stack.enter_context(linked(rate))
        clusters = []
        for number, lock in enumerate(locks):
            port = 0 if rate.bits_per_s is None else _PORT + number
            clusters.append(_cluster(stack, places, f"tcp://{hosts[0]}:{port}", home / f"{lock}{number}", lock))
        yield Testbed(places, hosts, tuple(clusters))


def _cluster(stack: ExitStack, places: Sequence[Place], bind: str, home: Path, lock: Lock) -> Reached:
    """Start a coordinator and its agents, until the stack is closed."""
    home.mkdir()
    ready, state, keys = home / "address", home / "state", home / "state" / "keys"
    options = ["--bind", bind, "--state-dir", str(state), "--ready-file", str(ready), "--until-eof", *_LOCKING[lock]]
    coordinator = stack.enter_context(process_at(places[0], home / "coordinator.log", "bbgrap_coordinator.main", *options))
    _wait(ready.exists, coordinator, home / "coordinator.log")
    address, processes = ready.read_text(), [coordinator]
    with_key = ["--insecure"] if lock == "insecure" else ["--token-file", str(keys / "join.token"), "--keys-dir", str(home / "keys")]
    for number, place in enumerate(places):
        options = ["--join", address, "--name", f"agent{number}", "--threads", "1", "--cores", str(place.core), "--until-eof", *with_key]
        log = home / f"agent{number}.log"
        processes.append(stack.enter_context(process_at(place, log, "bbgrap_agent.main", *options)))
        _wait(lambda log=log: "joined as" in log.read_text(), processes[-1], log)  # type: ignore[misc]
    credentials = Credentials(insecure=True) if lock == "insecure" else Credentials(token_file=keys / "local.token")
    return Reached(address, credentials, tuple(process.pid for process in processes))


@contextmanager
def linked(rate: Rate) -> Iterator[tuple[tuple[Place, Place], tuple[str, str]]]:
    """Make two namespaces and the link between them; yields their places and addresses.

    Raises:
        UsageError: if this process may not.
    """
    if rate.bits_per_s is None:
        yield (Place("", CORES[0]), Place("", CORES[1])), ("127.0.0.1", "127.0.0.1")
        return
    if not can_limit():
        raise UsageError(f"link '{rate.name}': network namespaces need root on Linux; measure 'loopback' instead")
    names = tuple(f"bbgrap{os.getpid()}-{number}" for number in range(2))
    try:
        for name in names:
            run("ip", "netns", "add", name)
        run("ip", "link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for name, address in zip(names, _ADDRESSES, strict=True):
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("ip", "-n", name, "link", "set", device, "up")
            limit = ["rate", f"{rate.bits_per_s:.0f}bit", "burst", str(rate.burst_bytes), "latency", "50ms"]
            run("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf", *limit)
            if rate.packet_bytes is not None:
                run("ip", "-n", name, "link", "set", "eth0", "gso_max_size", str(rate.packet_bytes))
        yield (Place(names[0], CORES[0]), Place(names[1], CORES[1])), _ADDRESSES
    finally:
        for name in names:
            run("ip", "netns", "del", name, check=False)


def at(place: Place, work: Callable[..., R], *arguments: Any) -> R:  # noqa: ANN401 - whatever `work` takes
    """Call a function in a process of its own at a place, and return what it returns; all must be picklable.

    Raises:
        ClusterUnavailableError: if the process ended without an answer.
        Exception: what the function raised.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(there, place, work, arguments))
    process.start()
    there.close()
    try:
        ok, value = here.recv()
    except EOFError:
        process.join()
        raise ClusterUnavailableError(f"test-bed: the process at {place} ended with status {process.exitcode}") from None
    except BaseException:
        process.terminate()
        raise
    finally:
        process.join(_STOP_S)
    if not ok:
        raise value
    result: R = value
    return result


def enter(place: Place) -> None:
    """Move this thread, and what it starts from now on, to a place."""
    os.sched_setaffinity(0, {place.core})
    if not place.namespace:
        return
    with Path(f"/var/run/netns/{place.namespace}").open("rb") as namespace:
        enter_network(namespace)


def probe(places: Sequence[Place], host: str, seconds: float = 0.2) -> tuple[float, float]:
    """Return what a link gives a plain TCP connection: bits per second of a large message, and seconds of a byte there and back."""
    server = _elsewhere(places[1], lambda: socket.create_server((host, 0)))
    with server:
        port = server.getsockname()[1]
        client = _elsewhere(places[0], socket.socket)
        with client:
            client.connect((host, port))
            answering = threading.Thread(target=_echo, args=(server, places[1].core), daemon=True)
            answering.start()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with bound_to(frozenset({places[0].core})):
                trips = [_send(client, 1) for _ in range(50)]
                size = 1 << 16
                took = _send(client, size)
                while took < seconds:
                    size = min(size * 4, round(size * seconds / took * 1.3))
                    took = _send(client, size)
                took = min(took, *(_send(client, size) for _ in range(2)))
    answering.join(_STOP_S)
    round_trip = statistics.median(trips)
    # The fastest of a few: whatever disturbs a transfer makes it slower.
    return size * 8 / max(took - round_trip, 1e-9), round_trip


def _send(client: socket.socket, size: int) -> float:
    data = size.to_bytes(8, "little") + bytes(size)
    began = time.perf_counter()
    client.sendall(data)
    client.recv(1)
    return time.perf_counter() - began


def _echo(server: socket.socket, core: int) -> None:
    """Answer every message, eight bytes of length and content, with one byte."""
    os.sched_setaffinity(0, {core})
    stream, _ = server.accept()
    buffer = bytearray(1 << 20)
    with stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while head := stream.recv(8, socket.MSG_WAITALL):
            left = int.from_bytes(head, "little")
            while left:
                left -= stream.recv_into(buffer, min(left, len(buffer)))
            stream.sendall(b".")


def _elsewhere(place: Place, make: Callable[[], R]) -> R:
    """Return what a function makes in a thread at a place: a socket stays in the namespace that it was made in."""
    made: list[R] = []

    def work() -> None:
        enter(place)
        made.append(make())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return made[0]


def _answer(pipe: Pipe, place: Place, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        enter(place)
        pipe.send((True, work(*arguments)))
    except Exception as error:  # whatever it is, the parent must learn of it
        pipe.send((False, error))


@contextmanager
def process_at(place: Place, log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module at a place as long as the context lasts."""
    prefix = ["ip", "netns", "exec", place.namespace] if place.namespace else []
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with log.open("wb") as stream, bound_to(frozenset({place.core})):
        started = subprocess.Popen(
            [*prefix, sys.executable, "-m", *command], stdin=subprocess.PIPE, stdout=stream, stderr=stream, env=surroundings
        )
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
        assert started.stdin is not None
        started.stdin.close()


def _wait(done: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while not done():
        if process.poll() is not None or time.monotonic() > deadline:
            raise ClusterUnavailableError(f"test-bed: '{log.stem}' did not start; the end of its log:\n{end_of(log)}")
        time.sleep(0.02)


@contextmanager
def terminable() -> Iterator[None]:
    """Have SIGTERM unwind the contexts, as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        with suppress(ValueError):
            signal.signal(signal.SIGTERM, before)
