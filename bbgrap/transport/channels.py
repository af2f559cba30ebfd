"""The coordinator's end of all shared-memory channels: who has one, and what comes over them."""

from __future__ import annotations

import logging
import secrets
import selectors
import socket
import sys
from collections import OrderedDict, deque
from collections.abc import Sequence

from bbgrap.errors import RemoteProtocolError
from bbgrap.protocol.messages import BytesLike
from bbgrap.transport.channel import Channel, accept_channel
from bbgrap.transport.peer_warnings import PeerWarnings
from bbgrap.transport.shared_memory import TOKEN_BYTES, is_same_user, listen

MAX_INVITED = 1024
"""Clients that have been invited and have not come: those on other machines never do. Of more, the oldest are forgotten."""
MAX_CHANNELS = 16
"""Chosen: each may take 256 MiB; further clients use ZeroMQ."""
_AT_ONCE = 32
"""Connections that are taken in before others get their turn."""
_LOOKS = 4
"""In one call: for a connection, its offer, and its first message."""

_log = logging.getLogger("bbgrap.transport")


class Channels:
    """Channels of clients.

    Invariants: `_open` has the newest channel of an identity; every connection is registered; used by one thread.
    """

    def __init__(self) -> None:
        """Listen, if this system can."""
        self._selector = selectors.DefaultSelector()
        self._warnings = PeerWarnings(_log)
        self._open: dict[bytes, Channel] = {}
        self._strangers: dict[socket.socket, None] = {}
        self._ready: deque[tuple[bytes, Channel]] = deque()
        self._invited: OrderedDict[bytes, bytes] = OrderedDict()
        found = listen()
        self._name = "" if found is None else found[0]
        self._listener = None if found is None else found[1]
        if self._listener is not None:
            self._selector.register(self._listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        """A file descriptor that is readable when there is something to receive; for a poller."""
        if sys.platform == "win32":
            raise NotImplementedError("coordinators do not run on Windows")
        return self._selector.fileno()

    def invite(self, identity: bytes) -> str:
        """Return where a client on this machine may offer memory, with a word that only it knows; empty if it cannot."""
        if not self._name:
            return ""
        word = secrets.token_bytes(TOKEN_BYTES)
        self._invited[word] = identity
        while len(self._invited) > MAX_INVITED:
            self._invited.popitem(last=False)
        return f"{self._name} {word.hex()}"

    def end(self, key: bytes) -> None:
        """End the channels of all identities that begin with a key, and forget who was invited of them."""
        for identity, channel in list(self._open.items()):
            if identity.startswith(key):
                self._forget(identity, channel)
        self._invited = OrderedDict((word, identity) for word, identity in self._invited.items() if not identity.startswith(key))

    def send(self, identity: bytes, frames: Sequence[BytesLike]) -> bool:
        """Send a message; False if it must go another way."""
        channel = self._open.get(identity)
        return channel is not None and channel.send(frames)

    def receive(self) -> tuple[bytes, list[BytesLike]] | None:
        """Take a waiting message, or None."""
        for _ in range(_LOOKS):
            while self._ready:
                identity, channel = self._ready.popleft()
                try:
                    frames = channel.receive()
                except (ConnectionError, RemoteProtocolError) as error:
                    if isinstance(error, RemoteProtocolError):
                        self._warnings.warn("a process on this machine", f"{error}; the connection is closed")
                    self._forget(identity, channel)
                    continue
                if frames is not None:
                    return identity, frames
            events = self._selector.select(0)
            if not events:
                break
            for key, _ in events:
                self._attend(key)
        return None  # whatever comes still: strangers must not keep the caller here

    def listen_again(self) -> None:
        """Take in clients again after a crowd; to be called some times a second."""
        if self._listener is not None and self._listener not in self._selector.get_map():
            self._selector.register(self._listener, selectors.EVENT_READ)

    def close(self) -> None:
        """End all."""
        for channel in self._open.values():
            channel.close()
        for connection in self._strangers:
            connection.close()
        if self._listener is not None:
            self._listener.close()
        self._open, self._strangers = {}, {}
        self._selector.close()

    def _attend(self, key: selectors.SelectorKey) -> None:
        if key.data is not None:
            self._ready.append(key.data)
        elif key.fileobj is self._listener:
            self._accept(self._listener)
        elif key.fileobj in self._strangers and isinstance(key.fileobj, socket.socket):  # not turned away a moment ago
            self._greet(key.fileobj)

    def _accept(self, listener: socket.socket) -> None:
        """Take in who waits; after a crowd, nobody until the next `listen_again`: every user of this machine may knock."""
        for _ in range(_AT_ONCE):
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._take_in(connection)
        self._selector.unregister(listener)

    def _take_in(self, connection: socket.socket) -> None:
        if len(self._open) >= MAX_CHANNELS or not is_same_user(connection):
            connection.close()
            return
        while len(self._strangers) + len(self._open) >= MAX_CHANNELS:
            self._turn_away(next(iter(self._strangers)))
        connection.setblocking(False)
        self._strangers[connection] = None
        self._selector.register(connection, selectors.EVENT_READ)

    def _greet(self, connection: socket.socket) -> None:
        try:
            word, channel = accept_channel(connection, self._invited.__contains__)
        except BlockingIOError:
            return
        except RemoteProtocolError as error:
            self._warnings.warn("a process on this machine", f"{error}; the connection is closed")
            self._turn_away(connection)
            return
        identity = self._invited.pop(word)
        del self._strangers[connection]
        if identity in self._open:
            self._forget(identity, self._open[identity])
        self._open[identity] = channel
        self._selector.modify(connection, selectors.EVENT_READ, (identity, channel))

    def _turn_away(self, connection: socket.socket) -> None:
        del self._strangers[connection]
        self._selector.unregister(connection)
        connection.close()

    def _forget(self, identity: bytes, channel: Channel) -> None:
        if self._open.get(identity) is channel:
            del self._open[identity]
            self._selector.unregister(channel)
            channel.close()
