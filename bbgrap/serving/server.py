"""The server's life: it listens, loads its models, serves, and when it is told to stop answers what it has and refuses the rest."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.routing import BaseRoute
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bbgrap.errors import UsageError
from bbgrap.own_process import stop_signals
from bbgrap.protocol.addresses import split_address
from bbgrap.serving.connection_threads import IDLE_S, ConnectionThread, ConnectionThreads
from bbgrap.serving.gateway import Gateway, ended
from bbgrap.serving.host_check import HostCheck
from bbgrap.serving.http import make_app
from bbgrap.serving.listening import HttpListener
from bbgrap.serving.request_head import MOST_BYTES, without_offer
from bbgrap.session.stops import StoppedError

_GRACE_S = 30.0
"""How long a server that is told to stop goes on with what runs."""

_UNREAD_BYTES = 1 << 20
"""So much of a body may wait for its request: more than one read of asyncio's, of 256 KiB."""

_log = logging.getLogger("bbgrap.serving")


class _Server(uvicorn.Server):
    """uvicorn's, without its hands on signals: when it ends is decided here."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


_Spoken = OrderedDict["_Protocol", None]
"""The connections that are not about to end, the one that said something last behind the others."""


class _Protocol(HttpToolsProtocol):
    """uvicorn's, but for inference: that is for connection threads, as long as there are some.

    It would copy every part of a body twice more, and stop and begin to read again at each.

    Invariants: while a thread has the connection, nothing is read or written here.
    """

    def __init__(self, threads: ConnectionThreads, spoken: _Spoken, **given: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(**given)
        self._threads = threads
        self._spoken = spoken
        self._thread: ConnectionThread | None = None
        self._is_between = True
        """Whether all requests that began have come to their ends."""
        self._unfinished = 0
        """Bytes that have come since the last request or part of a body: the parser keeps them, however many they are."""
        self._is_for_threads = True
        """Whether a thread has answered something, or was never asked."""
        self._taking: asyncio.TimerHandle | None = None
        """Looks whether an answer is taken that its client does not take at once."""
        self._is_sent: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Begin."""
        super().connection_made(transport)
        self._spoken[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._spoken.pop(self, None)
        self._stop_looking()
        super().connection_lost(exc)

    @property
    def is_silent(self) -> bool:
        """Whether there is no request that it waits for; threads look after theirs."""
        return self._thread is None and self._taking is None and getattr(self.cycle, "response_complete", True)

    def pause_writing(self) -> None:
        """An answer is longer than what its client takes at once; one that takes nothing of it is not waited for, closed or not."""
        super().pause_writing()
        left = self.transport.get_write_buffer_size()
        self._is_sent = self._threads.gateway.begin_sending(left)
        self._look_again(left)

    def resume_writing(self) -> None:
        """Almost all of it is taken."""
        self._stop_looking()
        super().resume_writing()

    def _look_again(self, left: int) -> None:
        self._taking = self.loop.call_later(IDLE_S, self._end_unless_taken, left)

    def _end_unless_taken(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < before:
            self._look_again(left)
        else:
            self.transport.abort()

    def _stop_looking(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None
        if self._is_sent is not None:
            self._is_sent()
            self._is_sent = None

    def on_message_begin(self) -> None:
        """A request begins."""
        self._is_between = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A head is here."""
        self._unfinished = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request is here."""
        self._is_between = True
        self._unfinished = 0
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        """Give the connection to a thread, or take what it has left."""
        if self in self._spoken:
            self._spoken.move_to_end(self)
        is_answered = getattr(self.cycle, "response_complete", True)  # there is none before the first request
        if self._is_for_threads and self._is_between and is_answered:
            self._thread = self._threads.begin(self.transport, data, lambda: self.server_state.default_headers, self._take_back)
            if self._thread is not None:
                self._unset_keepalive_if_required()
                self.flow.pause_reading()
                return
        self._parse(without_offer(data) if self._is_between else data)

    def _parse(self, data: bytes) -> None:
        """Take what has come, unless it has too much of a head, or of what follows a body."""
        self._unfinished += len(data)
        super().data_received(data)
        if self._unfinished > MOST_BYTES and not self.transport.is_closing():
            self.send_400_response(f"head: expected at most {MOST_BYTES} bytes")

    def _take_back(self, unanswered: bytes | None) -> None:
        thread, self._thread = self._thread, None
        if unanswered is None or thread is None:
            self.transport.close()
        elif not self.transport.is_closing():
            self._is_for_threads = thread.answered > 0
            self.flow.resume_reading()
            self._parse(without_offer(unanswered))
            if thread.is_ending:
                super().shutdown()

    def shutdown(self) -> None:
        """End the connection when what runs is answered."""
        if self._thread is not None:
            self._thread.end()
        else:
            super().shutdown()

    def on_body(self, body: bytes) -> None:
        """Keep a part until its request takes it."""
        self._unfinished = 0
        if self.cycle.response_complete:
            return
        # Whoever takes it makes bytes of it, which of bytes is no copy.
        self.cycle.body = self.cycle.body + body if self.cycle.body else body  # type: ignore[assignment]
        if len(self.cycle.body) > _UNREAD_BYTES:
            self.flow.pause_reading()
        self.cycle.message_event.set()


def _end_silent(spoken: _Spoken) -> bool:
    """End the connection that is silent for longest; return whether there is one."""
    for connection in spoken:
        if connection.is_silent:
            del spoken[connection]
            connection.shutdown()
            return True
    return False


def host_and_port(option: str, address: str) -> tuple[str, int]:
    """Return the parts of `HOST:PORT`, the host of an IPv6 address without brackets.

    Raises:
        UsageError: if it is no such address.
    """
    host, port = split_address(address)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise UsageError(f"{option}: expected HOST:PORT, like 127.0.0.1:8000, got '{address}'")
    return host, int(port)


def listen(option: str, address: str) -> HttpListener:
    """Return a socket that listens at `HOST:PORT`; port 0 is a free one.

    Raises:
        UsageError: if it is no address, or cannot be had.
    """
    host, port = host_and_port(option, address)
    # asyncio sends small packets at once (TCP_NODELAY) only where a socket says that it is TCP, which `socket.create_server` leaves out;
    # without, every answer of two parts takes 40 ms longer.
    listening = HttpListener(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if sys.platform != "win32":  # there it would let two servers have one port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
        return listening
    except OSError as error:
        listening.close()
        other_port = f"another port is chosen with {option} {address.rpartition(':')[0]}:PORT"
        advice = other_port if error.errno in (errno.EADDRINUSE, errno.EACCES) else "give an address or a name of this machine"
        raise UsageError(f"{option} {address}: {error.strerror or error}; {advice}") from None


def url_of(listening: socket.socket) -> str:
    """Return what clients call."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    gateway: Gateway,
    listening: HttpListener,
    grpc_address: str,
    on_ready: Callable[[str, str], None],
    more: Sequence[BaseRoute] = (),
    names: Collection[str] = (),
    own_names: Collection[str] = (),
) -> None:
    """Serve until a signal asks it to stop; a second one ends at once.

    Args:
        gateway: What is served.
        listening: Where HTTP is spoken.
        grpc_address: Where gRPC is spoken; empty: nowhere.
        on_ready: Called once, when the models have been loaded, with the URL and gRPC's `HOST:PORT`.
        more: Further routes of the HTTP server.
        names: What the HTTP server may be called besides its addresses, and whose pages may use it.
        own_names: What else it may be called.

    Raises:
        UsageError: if gRPC's address cannot be had, or its package is missing.
        ModelError: if a model that was named at the start cannot be loaded.
        AccessError: if the coordinator does not let this client bring it.
    """
    named = HostCheck(make_app(gateway, more), names, own_names)
    spoken: _Spoken = OrderedDict()
    listening.end_silent, listening.count = partial(_end_silent, spoken), spoken.__len__
    config = uvicorn.Config(
        named,
        log_config=None,
        log_level="error",  # it warns of each request that is none, and strangers would fill the disk
        access_log=False,
        lifespan="off",
        timeout_keep_alive=round(IDLE_S),
        timeout_graceful_shutdown=int(_GRACE_S),  # for who does not read an answer
        http=cast("type[asyncio.Protocol]", partial(_Protocol, ConnectionThreads(gateway, named), spoken)),
        ws="none",
    )
    http = _Server(config)
    rpc, rpc_address = await _start_grpc(gateway, grpc_address) if grpc_address else (None, "")
    stop = asyncio.Event()
    with _stopping(stop, asyncio.get_running_loop()):
        watching = asyncio.ensure_future(gateway.watch())
        tidying = asyncio.ensure_future(gateway.tidy())
        serving = asyncio.ensure_future(http.serve([listening]))
        loading = asyncio.ensure_future(_load(gateway, lambda: on_ready(url_of(listening), rpc_address)))
        for task in (watching, tidying, serving, loading):
            task.add_done_callback(lambda task: stop.set() if task.cancelled() or task.exception() else None)
        try:
            await stop.wait()
            gateway.is_draining = True
            await _drain(gateway)
        finally:
            if rpc is not None:
                await rpc.stop(1.0)
            http.should_exit = True
            await asyncio.wait([serving])
            await ended(watching)
            await ended(tidying)
            await ended(loading)
            gateway.close()
        await serving


async def _start_grpc(gateway: Gateway, address: str) -> tuple[Any, str]:
    try:
        from bbgrap.serving.grpc import start_grpc
    except ImportError as error:
        raise UsageError(f"--grpc: {error.name} is not installed: pip install 'bbgrap[grpc]'") from None
    host, _ = split_address(address)
    server, port = await start_grpc(gateway, address)
    return server, f"{host}:{port}"


async def _load(gateway: Gateway, then: Callable[[], None]) -> None:
    try:
        reasons = await gateway.loading(gateway.repository.load_all)
    except StoppedError:
        return
    if gateway.is_draining:  # it may listen no more
        return
    for name, reason in reasons.items():
        _log.error("model '%s' is not served: %s", name, reason)
    gateway.is_loaded = True
    then()


async def _drain(gateway: Gateway) -> None:
    """Wait until what runs has ended; what takes too long is given up."""
    try:
        async with asyncio.timeout(_GRACE_S):
            while gateway.in_flight or gateway.unsent:
                await asyncio.sleep(0.01)
    except TimeoutError:
        _log.warning("stopping: %d requests have not ended after %g s and are given up", gateway.in_flight + gateway.unsent, _GRACE_S)
        gateway.give_up()
        await asyncio.sleep(0.1)


@contextmanager
def _stopping(stop: asyncio.Event, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Set the event at the first signal; the second one has its usual effect."""
    numbers = stop_signals()

    def handle(*_: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        loop.call_soon_threadsafe(stop.set)

    before = [(number, signal.signal(number, handle)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
