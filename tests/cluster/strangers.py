"""What strangers say to a cluster, what they hear, and what a cluster is: for `test_strangers`."""

from __future__ import annotations

import hashlib
import re
import socket
import sqlite3
import ssl
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import zmq

from bbgrap.errors import RemoteProtocolError
from bbgrap.local import LocalCluster
from bbgrap.protocol.data import Frame, Kind
from bbgrap.protocol.directions import TO_AGENT, TO_CLIENT, TO_COORDINATOR
from bbgrap.protocol.messages import BytesLike
from bbgrap.transport.control_client import ControlClient
from bbgrap.transport.framing import GREETING, frame_head
from bbgrap.transport.locks import ClientLock
from bbgrap.transport.tls import TlsIdentity, client_context
from tests.messages import AGENT, CLIENT, KEYS

EVERYTHING = [*AGENT, *CLIENT, *KEYS]
QUIET_S = 0.3
"""Who has said nothing for so long says nothing more."""
ZMTP = b"\xff" + bytes(8) + b"\x7f\x03\x01"
HEARD_S = 1.0
_GREETING_BYTES = 64
_WELCOME_BYTES = 170
"""What CURVE answers to anybody who knows the coordinator's public key, besides its greeting."""
NO_ANSWER_BYTES = _GREETING_BYTES + _WELCOME_BYTES

UNIX = Path("/proc/net/unix")
Address = tuple[str, int]


def split(address: str) -> Address:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host, int(port)


def data_ports(cluster: LocalCluster) -> list[Address]:
    """Return where the coordinator and all agents listen for data."""
    data = re.findall(r"data plane at (tcp://[\d.:]+)", (cluster.logs / "coordinator.log").read_text())[-1]
    return [split(data), *(split(node.address) for node in cluster.connection.nodes())]


# --- what a cluster is ----------------------------------------------------------------------------------------------------------------


def state_of(cluster: LocalCluster) -> dict[str, Any]:
    """Return all of a cluster that a stranger must not change."""
    folder = cluster.logs / "state"
    files = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for part in ("keys", "models", "plans")
        for path in sorted((folder / part).rglob("*"))
        if path.is_file()
    }
    with sqlite3.connect(f"file:{folder / 'state.db'}?mode=ro", uri=True) as database:
        rows = {table: sorted(database.execute(f"SELECT * FROM {table}")) for table in ("models", "profiles", "plans", "numbers")}  # noqa: S608
    database.close()
    return {
        "nodes": sorted((node.name, node.address, node.state) for node in cluster.connection.nodes()),
        "keys": sorted((key.name, key.kind, key.key, key.made, key.expires, key.revoked, key.by) for key in cluster.connection.tokens()),
        "files": files,
        "rows": rows,
        "processes": sorted(process.pid for process in processes_of(cluster)),
    }


def processes_of(cluster: LocalCluster) -> list[psutil.Process]:
    own = [psutil.Process(process.pid) for process in cluster.processes.values()]
    return [*own, *(child for process in own for child in process.children(recursive=True))]


def memory_of(cluster: LocalCluster, *, workers: bool = False) -> dict[int, int]:
    """Return the resident bytes of every process; workers take hundreds of megabytes to measure themselves, when they will."""
    found = processes_of(cluster)
    return {process.pid: process.memory_info().rss for process in found if workers or "bbgrap_agent.worker" not in process.cmdline()}


# --- control --------------------------------------------------------------------------------------------------------------------------


def say_to_coordinator(
    address: str, lock: ClientLock | None, messages: Iterable[Any], *, session: bytes | None = None
) -> tuple[list[Any], str]:
    """Say all of that with a key; return what is answered, and why there is no connection."""
    with zmq.Context() as context, ControlClient(context, address, lambda: lock, closed_before_sure=1) as control:
        if session is not None:
            control._session = session
        for message in messages:
            control.send(TO_COORDINATOR.encode(message))
        heard: list[Any] = []
        until = time.monotonic() + HEARD_S
        while time.monotonic() < until and not control.refused:
            if control.socket.poll(50):
                while (frames := control.receive()) is not None:
                    heard.append(_answer(frames))
                    until = time.monotonic() + QUIET_S
        return heard, control.refused


def _answer(frames: Sequence[BytesLike]) -> object:
    try:
        return TO_CLIENT.decode(frames)
    except RemoteProtocolError:
        return TO_AGENT.decode(frames)


def raw_control() -> Iterator[bytes]:
    """Yield what somebody says who leaves the handshake out, or does it wrongly: every message in clear."""
    said = b"".join(
        b"".join(_zmtp_frame(frame, more=place < len(frames) - 1) for place, frame in enumerate(frames))
        for frames in ([bytes(16), *TO_COORDINATOR.encode(message)] for message in EVERYTHING)
    )
    ready = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"[:27]
    yield ZMTP + b"NULL".ljust(20, b"\0") + bytes(32) + ready + said
    yield ZMTP + b"CURVE".ljust(20, b"\0") + bytes(32) + said
    yield ZMTP + b"CURVE".ljust(20, b"\0") + bytes(32) + b"\x04\xc8\x05HELLO\x01\x00" + bytes(72 + 120) + said
    yield ZMTP + b"PLAIN".ljust(20, b"\0") + bytes(32) + b"\x04\x0e\x05HELLO\x03joe\x03joe" + said
    yield said
    yield b"\x06" + struct.pack(">Q", 1 << 40) + said


def _zmtp_frame(frame: BytesLike, *, more: bool) -> bytes:
    return bytes([2 | more]) + struct.pack(">Q", len(frame)) + bytes(frame)


def say_raw(address: Address, said: bytes, wait_s: float = HEARD_S) -> bytes:
    """Say some bytes to a port; return what is answered until the connection ends, or for a while."""
    heard = b""
    with socket.create_connection(address, 2) as connection:
        connection.settimeout(wait_s)
        with suppress(OSError):
            connection.sendall(said)
            while received := connection.recv(1 << 16):
                heard += received
    return heard


# --- data -----------------------------------------------------------------------------------------------------------------------------


def frames(epochs: Iterable[int], answer_to: str) -> bytes:
    """Return a frame of every kind, from every device of some deployments, for some requests."""
    said = GREETING
    for epoch in epochs:
        for kind in Kind:
            for source in range(4):
                payload = answer_to.encode() if kind is Kind.PING else np.zeros(64, np.float32).tobytes() if kind is Kind.DATA else b""
                for request in range(1, 4):
                    header = Frame(kind, source, epoch, request, 200 + source).to_bytes()
                    said += frame_head(header, len(payload)) + payload
    return said


def say_secretly(address: Address, identity: TlsIdentity | None, said: bytes) -> bytes:
    """Say something over TLS, with a certificate or without; return what is answered."""
    if identity is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    else:
        context = client_context(identity)
    heard = b""
    with socket.create_connection(address, 2) as connection:
        connection.settimeout(HEARD_S)
        with suppress(OSError), context.wrap_socket(connection) as secret:
            secret.sendall(said)
            while received := secret.recv(1 << 16):
                heard += received
    return heard


@contextmanager
def listener() -> Iterator[tuple[str, socket.socket]]:
    """Listen for whom a cluster might be made to connect to; return the address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}", listening


def local_sockets(cluster: LocalCluster) -> list[str]:
    """Return the names of the abstract sockets at which a cluster's processes take memory; those of others come and go."""
    files = set()
    for process in processes_of(cluster):
        for file in Path(f"/proc/{process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it was closed meanwhile
                files.add(str(file.readlink()))
    known = re.findall(r" (\d+) @(bbgrap-[0-9a-f]{32})$", UNIX.read_text(), re.MULTILINE)
    return sorted({name for inode, name in known if f"socket:[{inode}]" in files})


def mapped(cluster: LocalCluster, label: str) -> dict[int, int]:
    """Return how many memories of a kind the processes of a cluster have mapped, of those that have any."""
    counts = {each.pid: Path(f"/proc/{each.pid}/maps").read_text().count(f"memfd:{label}") for each in processes_of(cluster)}
    return {pid: count for pid, count in counts.items() if count}
