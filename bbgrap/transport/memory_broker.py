"""Memory for payloads, passed from the process of one device to that of another on the same machine.

    sender ── word, name ──► its broker ── memory ──► broker of that name ── word, memory ──► receiver
           ◄── word, memory ──┘

A device that reads strangers' models may have no local sockets (`bbgrap.transport.confinement`), so a thread of the process that watches
over it passes memory on: the nanny of a worker, or the coordinator for itself. The receiver gives the word and its broker's name over the
connection that the memory is for. Laws: both brokers are processes of one user; a broker never waits for a stranger longer than
`_PATIENCE_S`; who has no broker, or is on another machine, goes without.
"""

from __future__ import annotations

import logging
import os
import secrets
import selectors
import socket
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from bbgrap.transport.payload_memory import MEMORY_BYTES
from bbgrap.transport.shared_memory import TOKEN_BYTES, is_invitation, is_same_user, listen, offer_memory, receive_memory

MADE, OFFERED = b"m", b"o"
"""What a device is told with a memory: it was made for its payloads, or for those of somebody else."""
_PATIENCE_S = 0.5
_PAUSE_S = 0.01
"""After everything that is asked: neither a device nor another process of this user makes a broker work all the time."""

_log = logging.getLogger("bbgrap.transport")


@dataclass(frozen=True, slots=True)
class MemoryClient:
    """A device's end of its broker: the socket, and the name that others offer memory at."""

    socket: socket.socket
    name: str

    def __post_init__(self) -> None:
        """Never wait: some versions of Python do not pass flags on with descriptors."""
        self.socket.setblocking(False)

    def new_word(self) -> str:
        """Return a name with a word, at which the sender of one connection may offer memory."""
        return f"{self.name} {secrets.token_hex(TOKEN_BYTES)}"

    def ask(self, invitation: str) -> None:
        """Want memory that is offered at an invitation; it comes by `receive`, or never."""
        with suppress(OSError):
            self.socket.send(invitation.encode())

    def receive(self) -> tuple[bytes, str, int] | None:
        """Take a memory that has come: `MADE` or `OFFERED`, the word, its descriptor; None if there is none.

        Raises:
            ConnectionError: if the broker has ended.
        """
        try:
            came = receive_memory(self.socket, 1 + TOKEN_BYTES)
        except BlockingIOError:
            return None
        return None if came is None else (came[0][:1], came[0][1:].hex(), came[1])


def start_broker() -> MemoryClient | None:
    """Start the thread of a broker, which ends with its device's socket.

    None if this system cannot share memory, or has no thread or descriptor left.
    """
    found = listen()
    if found is None:
        return None
    name, listener = found
    with ExitStack() as undo:
        undo.callback(listener.close)
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.callback(ours.close)
            undo.callback(theirs.close)
            ours.setblocking(False)
            selector = selectors.DefaultSelector()
            undo.callback(selector.close)
            selector.register(ours, selectors.EVENT_READ)
            selector.register(listener, selectors.EVENT_READ)
            threading.Thread(target=_serve, args=(ours, listener, selector), name="memory broker", daemon=True).start()
        except (OSError, RuntimeError):
            return None
        undo.pop_all()
    return MemoryClient(theirs, name)


def _serve(device: socket.socket, listener: socket.socket, selector: selectors.BaseSelector) -> None:
    with device, listener, selector:
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    _pass_on(listener, device)
                else:
                    try:
                        asked = device.recv(256)
                    except OSError:
                        asked = b""
                    if not asked:  # it has ended
                        return
                    _offer(asked, device)
            time.sleep(_PAUSE_S)


def _offer(asked: bytes, device: socket.socket) -> None:
    """Make memory, and give it to the broker of an invitation and to the device that asks."""
    text = asked.decode("ascii", "replace")
    if not is_invitation(text):
        return
    try:
        other, memory = offer_memory(text, "bbgrap-payloads", MEMORY_BYTES, _PATIENCE_S)
        other.close()
        _give(device, MADE, bytes.fromhex(text.partition(" ")[2]), memory)
    except OSError as error:
        _log.info("payloads go over the network also to a device on this machine: %s", error)


def _pass_on(listener: socket.socket, device: socket.socket) -> None:
    """Take in what another broker offers; strangers are hung up on."""
    try:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(_PATIENCE_S)
            if is_same_user(connection) and (came := receive_memory(connection)) is not None:
                _give(device, OFFERED, *came)
    except OSError:
        pass  # who offered has gone, or the device takes no more: payloads travel with their messages then


def _give(device: socket.socket, kind: bytes, word: bytes, memory: int) -> None:
    """Pass memory on to the device, which this process does not need then."""
    try:
        socket.send_fds(device, [kind + word], [memory])
    finally:
        os.close(memory)
