"""The data plane over plain TCP: one connection per direction and pair of devices.

    Outbox ──► connections to others          the sender's thread, and a postman for what the network does not take at once
    connections of others ──► receive()       the receiver's thread

Large payloads between two processes of one machine are laid on shelves (`bbgrap.transport.shelf`), if both want that.

Who is patient does not look at every piece of a large payload that a slow network brings: each look would take its core from a kernel.

Laws: see `bbgrap.transport.data`; whoever sends other bytes than messages loses its connection, and takes no memory to speak of.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass

from bbgrap.errors import RemoteProtocolError, UsageError
from bbgrap.protocol.messages import Buffer
from bbgrap.transport.data import Admit, Arrival
from bbgrap.transport.framing import Reader
from bbgrap.transport.mailbox import Mailbox
from bbgrap.transport.outbox import Outbox, detect_silence
from bbgrap.transport.shelf import Shelves

MAX_CONNECTIONS = 512
"""Incoming connections. Chosen: one per device of the largest clusters we know, several times over."""
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
_CHUNK_BYTES = 64 << 10
_MOST_REPEATS = 8
"""Times that one connection is read before all are looked at: chosen."""
_GATHER_S = 1e-3
"""How long who is patient lets a payload gather, while it takes at least twice as long until it is complete (decision 18)."""

_log = logging.getLogger("bbgrap.transport")


@dataclass(slots=True, eq=False)
class _Caller:
    """An incoming connection."""

    socket: socket.socket
    host: str
    reader: Reader
    begun_s: float = 0.0
    """When the large payload that is being received began."""


class TcpDataPlane:
    """The data plane over TCP.

    Invariants: `_callers` are the open incoming connections, in the order they came; `_arrived` is empty whenever the network is read;
    the selector looks for all of them but those that are `_gathering`.
    """

    def __init__(self, bind: str, advertise: str, *, patient: bool = False, shelves: bool = False) -> None:
        """Listen on `tcp://HOST:PORT` (port 0: a free one; host `*`: all); `advertise` is the host others use.

        With `shelves` large payloads from and to this machine's processes do not go through the network's buffers.

        `patient` is for processes that share a core with kernels; whoever polls `fileno` then asks for `gathers_s`, too.

        Raises:
            UsageError: if the address cannot be listened on.
        """
        self._listener = _listen(bind)
        listens_at, port = self._listener.getsockname()[:2]
        self.address = f"tcp://{advertise}:{port}"
        self.admit: Admit = lambda header, size: True
        self._outbox = Outbox(shelves=shelves)
        self.connect, self.disconnect = self._outbox.connect, self._outbox.disconnect
        self._calls: Mailbox[None] = Mailbox()
        self._wake_lock = threading.Lock()
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._calls.fileno(), selectors.EVENT_READ)
        self._shelves = Shelves("" if listens_at in _EVERYWHERE else listens_at, port) if shelves else None
        if self._shelves is not None:
            self._selector.register(self._shelves, selectors.EVENT_READ)
        self._callers: dict[_Caller, None] = {}
        self._patient = patient
        self._gathering: dict[_Caller, float] = {}
        """Connections that are not looked at, and until when."""
        self._arrived: deque[Arrival] = deque()
        self._chunk = memoryview(bytearray(_CHUNK_BYTES))
        self._complained: set[str] = set()
        self._last: _Caller | None = None
        """Who spoke last, and is still connected."""
        self._repeats = 0

    def fileno(self) -> int:
        """A file descriptor that is readable when there is something to receive; for a poller."""
        return self._selector.fileno()

    @property
    def gathers_s(self) -> float | None:
        """Seconds after which to call `receive` although `fileno` is not readable; None: that never is."""
        return max(0.0, min(self._gathering.values()) - time.perf_counter()) if self._gathering else None

    def send(self, address: str, header: Buffer, *payload: Buffer) -> None:
        """See `DataPlane.send`."""
        self._outbox.send(address, header, payload)

    def receive(self, timeout_s: float | None, spin_s: float = 0.0) -> Arrival | None:
        """See `DataPlane.receive`."""
        if self._arrived or self._hears_again():
            return self._arrived.popleft()
        began = time.perf_counter()
        while True:
            elapsed = time.perf_counter() - began
            rest = None if timeout_s is None else max(0.0, timeout_s - elapsed)
            wait = min((seconds for seconds in (rest, self.gathers_s) if seconds is not None), default=None)
            ready = self._selector.select(0 if elapsed < spin_s else wait)
            woken = self._read(ready)
            if self._arrived:
                return self._arrived.popleft()
            if woken or rest == 0:
                return None

    def wake(self) -> None:
        """See `DataPlane.wake`."""
        with self._wake_lock:
            if not self._closed:
                self._calls.put(None)

    def close(self) -> None:
        """See `DataPlane.close`."""
        with self._wake_lock:
            self._closed = True
        self._outbox.close()
        for caller in self._callers:
            caller.socket.close()
        self._listener.close()
        if self._shelves is not None:
            self._shelves.close()
        self._selector.close()
        self._calls.close()

    def _hears_again(self) -> bool:
        """Read from whoever spoke last, without asking who speaks, for a few times; return whether there is a message now.

        A machine has few neighbours, and waits for one of them at a time.
        """
        if self._last is None or self._repeats >= _MOST_REPEATS:
            self._repeats = 0
            return False
        self._repeats += 1
        self._hear(self._last)
        return bool(self._arrived)

    def _read(self, ready: list[tuple[selectors.SelectorKey, int]]) -> bool:
        """Read what is there; return whether somebody called `wake`."""
        woken = False
        if self._gathering:
            self._look_at_gathered()
        for key, _ in ready:
            if key.data is not None:
                self._last = key.data if key.data in self._callers else None
                self._hear(key.data)
            elif key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._shelves:
                self._attend_shelves()
            else:
                self._calls.take()
                woken = True
        return woken

    def _attend_shelves(self) -> None:
        """Look after the shelves, but first hear everybody: who has ended may have laid something down before."""
        for caller in [caller for caller in self._callers if caller not in self._gathering]:
            self._hear(caller)
        if self._shelves is not None:
            self._shelves.attend()

    def _hear(self, caller: _Caller) -> None:
        """Read a chunk, or as much of a large payload as is there."""
        reader = caller.reader
        try:
            room = reader.room
            count = caller.socket.recv_into(self._chunk if room is None else room)
            if count == 0:
                self._hang_up(caller)
            elif room is None:
                self._arrived.extend(Arrival(*message, caller.host) for message in reader.feed(self._chunk[:count], self.admit))
                caller.begun_s = time.perf_counter() if self._patient else 0.0
            else:
                message = reader.filled(count)
                if message is not None:
                    self._arrived.append(Arrival(*message, caller.host))
                elif self._patient and count < len(room):
                    self._let_gather(caller, len(room) - count)
        except BlockingIOError:
            return
        except OSError:
            self._hang_up(caller)
        except RemoteProtocolError as error:
            self._complain(caller.host, f"{error}; the connection is closed")
            self._hang_up(caller)

    def _let_gather(self, caller: _Caller, missing: int) -> None:
        """Do not look at a connection for a while, if so many bytes will not be there before long."""
        now = time.perf_counter()
        if missing * (now - caller.begun_s) > 2 * _GATHER_S * caller.reader.progress:
            self._gathering[caller] = now + _GATHER_S
            self._selector.unregister(caller.socket)
            self._last = None if self._last is caller else self._last

    def _look_at_gathered(self) -> None:
        now = time.perf_counter()
        for caller in [caller for caller, due_s in self._gathering.items() if due_s <= now]:
            del self._gathering[caller]
            self._selector.register(caller.socket, selectors.EVENT_READ, caller)
            self._hear(caller)

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except OSError:
            return
        if len(self._callers) >= MAX_CONNECTIONS:
            # Those that have not even greeted go first.
            stranger = next((caller for caller in self._callers if not caller.reader.spoke), None)
            self._complain(str(address[0]), f"data plane: {MAX_CONNECTIONS} connections are open, the most there may be")
            if stranger is None:
                connection.close()
                return
            self._hang_up(stranger)
        connection.setblocking(False)
        detect_silence(connection)
        reader = Reader(None if self._shelves is None else self._shelves.payload)
        caller = _Caller(connection, str(address[0]), reader)
        self._callers[caller] = None
        self._selector.register(connection, selectors.EVENT_READ, caller)

    def _hang_up(self, caller: _Caller) -> None:
        if caller in self._callers:
            del self._callers[caller]
            self._last = None if self._last is caller else self._last
            if self._gathering.pop(caller, None) is None:
                self._selector.unregister(caller.socket)
            caller.socket.close()

    def _complain(self, host: str, text: str) -> None:
        if host not in self._complained and len(self._complained) < 1000:
            self._complained.add(host)
            _log.warning("%s: %s", host, text)


def _listen(bind: str) -> socket.socket:
    host, _, port = bind.removeprefix("tcp://").rpartition(":")
    host = "" if host == "*" else host.strip("[]")
    if not port.isdigit() or int(port) > 65535:
        raise UsageError(f"data address {bind}: expected tcp://HOST:PORT; choose another port with --data-port")
    try:
        listener = socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise UsageError(f"data address {bind}: {error.strerror}; choose another port with --data-port") from error
    listener.setblocking(False)
    return listener
