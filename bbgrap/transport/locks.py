"""The keys of control connections: CURVE, as ZeroMQ has it, and what its failures mean in words.

A `ServerLock` is the coordinator's: its own pair of keys, and who may connect. A `ClientLock` is anybody else's: the coordinator's public
key, which it must prove to have, and an own pair. Without a lock a connection is neither encrypted nor is anybody known: `--insecure`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

from bbgrap.protocol.tokens import Token

NOBODY = bytes(32)
"""What stands for a key where connections have no lock."""
FAILED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
CLOSED = 3
"""Handshakes that the other side ends without a reason until the keys are blamed: a coordinator that is ended does so to one or two."""
_BY_THE_OTHER = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED})


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A pair of keys, 32 bytes each."""

    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def make(cls) -> KeyPair:
        """Return a new pair."""
        public, secret = zmq.curve_keypair()
        return cls(z85.decode(public), z85.decode(secret))

    @classmethod
    def of(cls, secret: bytes) -> KeyPair:
        """Return the pair that a secret key belongs to."""
        return cls(z85.decode(zmq.curve_public(z85.encode(secret))), secret)


@dataclass(frozen=True, slots=True)
class ServerLock:
    """The coordinator's keys, and whether a public key may connect; `admits` is called from another thread."""

    own: KeyPair
    admits: Callable[[bytes], bool]

    def set_on(self, socket: zmq.Socket[bytes]) -> None:
        """Lock a socket that will be bound."""
        socket.curve_server = True
        socket.curve_secretkey = z85.encode(self.own.secret)


@dataclass(frozen=True, slots=True)
class ClientLock:
    """The keys of somebody who connects; `source` says where they are from, for messages."""

    server: bytes
    own: KeyPair
    source: str

    @classmethod
    def of(cls, token: Token, source: str) -> ClientLock:
        """Return the keys in a token."""
        return cls(token.server, KeyPair.of(token.secret), source)

    def set_on(self, socket: zmq.Socket[bytes]) -> None:
        """Lock a socket that will be connected."""
        socket.curve_serverkey = z85.encode(self.server)
        socket.curve_publickey = z85.encode(self.own.public)
        socket.curve_secretkey = z85.encode(self.own.secret)


FindLock = Callable[[], ClientLock | None]
"""Returns the keys for the next connection, for they may have been replaced; None: it shall have none."""


def no_lock() -> None:
    """Return no keys: connections are insecure."""
    return


def was_closed(event: int, value: int) -> bool:
    """Whether the other side has ended a handshake without a reason; one that takes too long may be well."""
    return event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and value in _BY_THE_OTHER


def refusal(lock: ClientLock | None, address: str, event: int, value: int, *, closed: bool) -> str:
    """Return why no connection can be made, in words; empty if it may be made yet. `closed`: handshakes were ended again and again."""
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH and lock is not None:
        return (
            f"the coordinator at {address} does not know the key of {lock.source}: it was revoked, has expired, or was never made there;"
            " get a new one there with 'bbgrap token create', for agents with --role agent"
        )
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
        if lock is None:
            return f"the coordinator at {address} is locked: leave out --insecure, and give a token (--token-file, or BBGRAP_TOKEN)"
        return (
            f"the coordinator at {address} has no lock: it runs with --insecure, or is older than keys; nothing was sent to it."
            " Say --insecure here, too, if that is meant"
        )
    if not closed:
        return ""
    if lock is None:
        return (
            f"what listens at {address} ends every connection: it is no coordinator, or locked; give a token (--token-file, BBGRAP_TOKEN)"
        )
    return (
        f"the coordinator at {address} is not the one that {lock.source} is for: it has another key, or is no coordinator; was its state"
        " directory removed? then get a new token there"
    )
