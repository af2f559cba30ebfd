"""Who comes to a locked data plane: accepted, handshaken and looked at in a thread of its own, before its bytes reach anybody.

    listener ── rate ──► handshake (3 s, 64 at a time) ── fingerprint allowed? ── greeting ──► `arrived`
                 └─ strangers come too often ──► the listener hears hosts of peers only, for a second

Each handshake costs a millisecond that kernels need, so strangers get ten a second in all; hosts of peers have a rate of their own each,
and never wait for strangers. Accepting and closing costs something, too, and what waits at the listener is first come, first served: so
in a crowd the kernel keeps strangers out where it can, and else the listener is looked at some times a second.

Laws: whoever has not shown an allowed certificate gets no byte to the reader, and takes some 100 KiB at most; connections that are open
notice nothing of those that knock; a computing thread is never woken for a stranger.
"""

from __future__ import annotations

import logging
import math
import selectors
import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from bbgrap.transport.dead_peers import detect_dead_peer, facts_of
from bbgrap.transport.framing import GREETING
from bbgrap.transport.listener_filter import CANNOT_SHUT, hear_all, hear_only
from bbgrap.transport.strangers import PeerWarnings, Rate
from bbgrap.transport.tls import HANDSHAKE_S, peer_of, reason_of
from bbgrap.transport.wakeup_queue import WakeupQueue

MAX_UNFINISHED = 64
"""Handshakes at a time; the oldest goes first. Chosen: they take milliseconds, so those of a large cluster that starts at once fit."""
MAX_STRANGER_BYTES = 64 << 10
"""What may be read of somebody before the handshake is finished; a real one has 1.5 KB."""
STRANGERS_PER_S = 10.0
"""Handshakes of unknown hosts, in all: 1 % of a core. Chosen."""
KNOWN_PER_S = 20.0
KNOWN_AT_ONCE = 64
"""Handshakes of one host of a peer. Chosen: its agents, several times over."""
MAX_HOSTS = 128
"""Of peers that are told from strangers; beyond, those are that come from then on. Chosen: a filter of the kernel took 210 of IPv6."""
_BATCH = 64
_SHUT_OUT_S = 1.0
"""How long a crowd of strangers is not heard. Chosen: what a peer new at its host may wait for."""
_PAUSE_S = 0.05
"""After so many connections at once, and after one that came too often, there is a pause: each look takes time from those who compute."""
_CROWD_PAUSE_S = 0.2
"""The same where the kernel cannot keep strangers out. Of 0.05 s a busy client felt 6 to 18 %, of 0.2 s up to 9 %."""

_log = logging.getLogger("bbgrap.transport")


class Accepted(NamedTuple):
    """A connection of somebody who is allowed to send."""

    connection: ssl.SSLSocket
    host: str
    fingerprint: str


@dataclass(slots=True, eq=False)
class _Stranger:
    connection: ssl.SSLSocket
    host: str
    is_known: bool
    until: float


class Acceptor:
    """Accepts connections on one listener.

    Invariants: `_unfinished` are the handshakes that go on, in the order they came; until `_shut_out_until` the listener hears hosts of
    peers only; only the thread touches them.
    """

    def __init__(self, listener: socket.socket, context: ssl.SSLContext, hosts: set[str]) -> None:
        """Start; `hosts` are those of peers, as addresses, and others may add to it."""
        self.arrived: WakeupQueue[Accepted] = WakeupQueue()
        self.allowed: frozenset[str] = frozenset()
        """The fingerprints that may come in; set by another thread."""
        self._listener = listener
        self._context = context
        self._hosts = hosts
        self._strangers = Rate(STRANGERS_PER_S, STRANGERS_PER_S)
        self._known: dict[str, Rate] = {}
        self._unfinished: dict[_Stranger, None] = {}
        self._shut_out_until = math.inf
        self._can_shut_out = True
        self._warnings = PeerWarnings(_log)
        self._calls: WakeupQueue[None] = WakeupQueue()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._calls.fileno(), selectors.EVENT_READ)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="acceptor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all handshakes, and what nobody has taken out of `arrived`; the listener stays open."""
        self._closing = True
        self._calls.put(None)
        self._thread.join()
        for stranger in self._unfinished:
            stranger.connection.close()
        for accepted in self.arrived.take():
            accepted.connection.close()
        self._selector.close()
        self._calls.close()
        self.arrived.close()

    def _run(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select(self._end_what_is_over()):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, _Stranger) and key.data in self._unfinished:
                    self._go_on(key.data)
                elif key.data is None:
                    self._calls.take()

    def _end_what_is_over(self) -> float | None:
        """End handshakes that took too long, and the time in which strangers are not heard; return how long nothing more is over."""
        now = time.monotonic()
        if self._shut_out_until <= now:
            hear_all(self._listener)
            self._shut_out_until = math.inf
        until = self._shut_out_until
        for stranger in list(self._unfinished):  # in order of `until`
            if stranger.until > now:
                until = min(until, stranger.until)
                break
            self._end(stranger, f"the handshake was not over within {HANDSHAKE_S:g} s")
        return None if until == math.inf else until - now

    def _accept(self) -> None:
        """Take in who waits, or close the connections of those that come too often."""
        all_heard = True
        for _ in range(_BATCH):
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                if all_heard:
                    return
                break
            except OSError:  # no descriptors left, or it is gone already
                break
            # What listens everywhere gives addresses of IPv4 so.
            all_heard = self._begin(connection, str(address[0]).removeprefix("::ffff:")) and all_heard
        time.sleep(_PAUSE_S if all_heard or self._can_shut_out else _CROWD_PAUSE_S)

    def _shut_out_strangers(self, now: float) -> None:
        """Let the kernel keep them out for a while, if it can."""
        if self._shut_out_until < math.inf or not self._can_shut_out:
            return
        self._can_shut_out = hear_only(self._listener, tuple(self._hosts))
        if self._can_shut_out:
            self._shut_out_until = now + _SHUT_OUT_S
        else:
            _log.warning("%s", CANNOT_SHUT)

    def _begin(self, connection: socket.socket, host: str) -> bool:
        """Begin a handshake; return whether the rate of its host allows one."""
        now = time.monotonic()
        is_known = host in self._hosts
        rate = self._known.setdefault(host, Rate(KNOWN_PER_S, KNOWN_AT_ONCE)) if is_known else self._strangers
        if not rate.take(now) or not self._make_room(is_known=is_known):
            connection.close()
            if not is_known:
                self._shut_out_strangers(now)
            self._warnings.warn(host, "data plane: it connects too often, and is not heard for a while")
            return False
        try:
            connection.setblocking(False)
            hear_all(connection)
            detect_dead_peer(connection)
            secure = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        except (OSError, ValueError):
            connection.close()
            return True
        stranger = _Stranger(secure, host, is_known, now + HANDSHAKE_S)
        self._unfinished[stranger] = None
        self._selector.register(secure, selectors.EVENT_READ, stranger)
        return True

    def _make_room(self, *, is_known: bool) -> bool:
        """End the oldest handshake if there are too many, of unknown hosts first; False if they all go before."""
        if len(self._unfinished) < MAX_UNFINISHED:
            return True
        oldest = next((stranger for stranger in self._unfinished if not stranger.is_known), None)
        if oldest is None and is_known:
            oldest = next(iter(self._unfinished))
        if oldest is None:
            return False
        self._end(oldest, f"data plane: {MAX_UNFINISHED} handshakes are not over, the most there may be")
        return True

    def _go_on(self, stranger: _Stranger) -> None:
        connection = stranger.connection
        if facts_of(connection).received > MAX_STRANGER_BYTES:
            self._end(stranger, f"data plane: more than {MAX_STRANGER_BYTES >> 10} KiB in a handshake")
            return
        try:
            connection.do_handshake()
            fingerprint = peer_of(connection)
            if fingerprint not in self.allowed:
                # It may come a moment too early, and tries again: no reason to warn.
                _log.debug("%s: a node of this cluster that is not a peer: %s", stranger.host, fingerprint)
                self._end(stranger)
                return
            connection.send(GREETING)
        except ssl.SSLWantReadError:
            return
        except ssl.SSLWantWriteError:  # it does not read: that is its end, in 3 s
            return
        except OSError as error:
            # Of a host that has spoken TLS before it is known that it can: what ends now ends itself, as agents do that are stopped.
            is_its_end = stranger.is_known and isinstance(error, ssl.SSLEOFError)
            self._end(stranger, "" if is_its_end else f"data plane: {reason_of(error)}")
            return
        if len(self._hosts) >= MAX_HOSTS and stranger.host not in self._hosts:  # nodes may have another address whenever they start
            self._hosts.clear()
            self._known.clear()
        self._hosts.add(stranger.host)
        self._forget(stranger)
        self.arrived.put(Accepted(connection, stranger.host, fingerprint))

    def _end(self, stranger: _Stranger, reason: str = "") -> None:
        if reason:
            self._warnings.warn(stranger.host, reason)
        self._forget(stranger)
        stranger.connection.close()

    def _forget(self, stranger: _Stranger) -> None:
        del self._unfinished[stranger]
        with suppress(KeyError, ValueError):
            self._selector.unregister(stranger.connection)
