"""Shelves: where a data plane lays large payloads for one on the same machine, instead of sending them through the network's buffers.

    sender ── copies ──► shelf: | given back, a byte per page | payloads ── | ──► receiver, which reads them there
       └── frame with the place, over TCP ─────────────────────────────────────►

A shelf belongs to one TCP connection; its sender makes the memory (`bbgrap.transport.sealed`) and offers it under a name that follows from
the receiver's address. Laws: both are processes of one user; a place is used again only when the receiver has let go of it; who sends a
place that is on none of its shelves loses its connection; what does not fit on a shelf is sent as everything else. Messages keep their
order, for every frame goes over TCP.
"""

from __future__ import annotations

import logging
import mmap
import secrets
import selectors
import socket
import weakref
from collections.abc import Sequence

import numpy as np

from bbgrap.errors import RemoteProtocolError
from bbgrap.protocol.messages import Buffer
from bbgrap.transport.arena import ALIGN, Arena
from bbgrap.transport.sealed import TOKEN_BYTES, WELCOME, accept_memory, is_same_user, listen_at, offer_memory

SHELF_BYTES = 64 << 20
"""Chosen: feature maps of 2048 x 2048 positions and 4 channels; pages are taken only as they are used."""
MAX_SHELVES = 64
"""That one receiver keeps. Chosen: as many processes on one machine as anybody starts; others send everything over TCP."""
_FIRST = -(-(SHELF_BYTES // ALIGN) // ALIGN) * ALIGN
"""Where payloads begin; before, there is a byte for every page: whether the payload that begins there was given back."""

_log = logging.getLogger("bbgrap.transport")


class Shelf:
    """The sender's end of a shelf; one thread at a time uses it.

    Invariant: the arena's blocks are the payloads that have been laid down and not been seen to be given back.
    """

    def __init__(self, connection: socket.socket, memory: mmap.mmap, token: bytes) -> None:
        """Take over memory that has been offered over a local connection."""
        self.token = token
        self._connection = connection
        self._bytes = np.frombuffer(memory, np.uint8)
        self._arena = Arena(_FIRST, SHELF_BYTES - _FIRST)
        self._welcome = False

    def put(self, pieces: Sequence[Buffer], total: int) -> int | None:
        """Lay down a payload, given in pieces; return its place, or None if the receiver has no shelf yet or it is full."""
        if not self._is_welcome():
            return None
        for start, _ in list(self._arena):
            if self._bytes[start // ALIGN]:
                self.take_back(start)
        place = self._arena.take(total)
        if place is None:
            return None
        position = place
        for piece in pieces:
            self._bytes[position : position + len(piece)] = np.frombuffer(piece, np.uint8)
            position += len(piece)
        return place

    def take_back(self, place: int) -> None:
        """Free the place of a payload that nobody reads."""
        self._bytes[place // ALIGN] = 0
        self._arena.drop(place)

    def close(self) -> None:
        """End it; the receiver may go on reading what it has."""
        self._connection.close()
        self._welcome = False

    def _is_welcome(self) -> bool:
        if not self._welcome:
            try:
                self._welcome = self._connection.recv(len(WELCOME)) == WELCOME
            except OSError:  # not yet, or it has ended
                return False
        return self._welcome


def offer_shelf(connection: socket.socket) -> Shelf | None:
    """Offer a shelf to the other end of a TCP connection; None if that is on another machine, or of another user."""
    try:
        here, (host, port, *_) = connection.getsockname()[0], connection.getpeername()
    except OSError:
        return None
    if here != host:
        return None
    token = secrets.token_bytes(TOKEN_BYTES)
    for name in (shelf_name(host, port), shelf_name("", port)):
        offered = offer_memory(name, token, SHELF_BYTES, "shelf")
        if offered is not None:
            return Shelf(*offered, token)
    return None


def shelf_name(host: str, port: int) -> str:
    """Return where shelves are offered to who listens for TCP connections at a host (all: empty) and port."""
    return f"bbgrap-{host or '*'}:{port}"


class Shelves:
    """The receiver's shelves; one thread uses it, but for payloads that are let go.

    Invariants: every connection is registered; with a token if its memory is in `_open`, without if nothing came of it yet.
    """

    def __init__(self, host: str, port: int) -> None:
        """Listen for those who send to this address, if this system can."""
        self._selector = selectors.DefaultSelector()
        self._open: dict[bytes, mmap.mmap] = {}
        self._listener = listen_at(shelf_name(host, port))
        if self._listener is not None:
            self._selector.register(self._listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        """A file descriptor that is readable when `attend` has something to do."""
        return self._selector.fileno()

    def attend(self) -> None:
        """Take what is offered, and forget what has ended."""
        for key, _ in self._selector.select(0):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            if connection is self._listener:
                self._accept(self._listener)
            elif key.data is None:
                self._take(connection)
            else:
                del self._open[key.data]
                self._forget(connection)

    def payload(self, token: bytes, place: int, nbytes: int) -> memoryview:
        """Return a payload, read-only; its place is given back when nobody uses it any more.

        Raises:
            RemoteProtocolError: if it is not on a shelf.
        """
        shelf = self._open.get(token)
        if shelf is None or place % ALIGN or not _FIRST <= place <= SHELF_BYTES - nbytes:
            raise RemoteProtocolError(f"data plane: {nbytes} bytes at place {place} of a shelf that has not so many, or is not known")
        # Views of a view of an array refer to that array only; to what refers to a memory they do, and hold it.
        content = np.ndarray(nbytes, np.uint8, shelf, place)
        content.flags.writeable = False
        weakref.finalize(content, shelf.__setitem__, place // ALIGN, 1).atexit = False
        return content.data

    def close(self) -> None:
        """End all; payloads last as long as they are used."""
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._open = {}
        self._selector.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        if len(self._selector.get_map()) > MAX_SHELVES or not is_same_user(connection):
            connection.close()
            return
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ)

    def _take(self, connection: socket.socket) -> None:
        try:
            token, memory = accept_memory(connection, SHELF_BYTES)
        except BlockingIOError:
            return
        except RemoteProtocolError as error:
            _log.warning("%s; the connection is closed", error)
            self._forget(connection)
            return
        if token in self._open:
            self._forget(connection)
            return
        self._open[token] = memory
        self._selector.modify(connection, selectors.EVENT_READ, token)

    def _forget(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()
