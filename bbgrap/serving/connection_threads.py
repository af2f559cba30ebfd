"""Connections that ask for inference: one thread reads a request, runs it and answers, so that nothing is handed from thread to thread.

    event loop   a request begins; is it an inference, and a thread free? ──► the connection is the thread's
    thread       head ── plain, and of a model that runs at once ──► body ─► run ─► answer ─► next head ...
                  └──── anything else: what was read goes back to the event loop, with the connection

Laws: what a thread does not answer, the event loop does, with every byte of it; a connection belongs to one of the two at a time; a
thread's memory for bodies is used again only after a request that was answered; an answer that nobody takes keeps no request out.
"""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus

import numpy as np

from bbgrap.serving.datatypes import BodyBytes
from bbgrap.serving.gateway import Gateway, Inference
from bbgrap.serving.host_check import HostCheck
from bbgrap.serving.http import BODY_S, JSON_LENGTH, encoded, refused
from bbgrap.serving.http_bodies import accepted_encoding, json_length_of, parse_infer
from bbgrap.serving.model import ServedModel
from bbgrap.serving.refusals import Refusal, RefusedError, refusal_of
from bbgrap.serving.request_head import END, MOST_BYTES, RequestHead, may_be_inference, plain_head, without_offer
from bbgrap.serving.request_places import RequestPlace
from bbgrap.transport.framing import rest_of

IDLE_S = 75.0
"""How long a connection may wait for its next request, or for its client to take an answer. Chosen."""

_KEPT_BYTES = 4 << 20
"""Of a thread's memory for bodies: more is taken anew each time, which costs some 0.4 ms a MiB. Chosen: some pictures of 224 x 224."""
_MOST_PARTS = 512
"""Of an answer in one call: half of what systems take."""
_GONE = select.POLLERR | select.POLLHUP | getattr(select, "POLLRDHUP", 0)

Common = Callable[[], Sequence[tuple[bytes, bytes]]]


class _EndedError(Exception):
    """The connection has ended, or is to be ended."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a client gets, and whether the connection ends behind it."""

    status: HTTPStatus
    parts: Sequence[BodyBytes]
    headers: Mapping[str, str]
    is_last: bool = False


class ConnectionThreads:
    """All connection threads of a server.

    Invariants: at most as many as requests may be in flight; `_open` counts them, and belongs to the event loop.
    """

    def __init__(self, gateway: Gateway, server: HostCheck) -> None:
        """Answer for a gateway, whatever `server` lets in."""
        self.gateway = gateway
        self.server = server
        self._open = 0

    def begin(
        self, transport: asyncio.Transport, begun: bytes, common: Common, leave: Callable[[bytes | None], None]
    ) -> ConnectionThread | None:
        """Give a connection to a thread; None if what it begins with is nothing for one, or all are taken.

        `common` returns headers of every answer. `leave` is called on the event loop, with what was read and is not answered, or with None
        when the connection has ended.
        """
        connection = transport.get_extra_info("socket")
        if self._open >= self.gateway.limits.in_flight or connection is None or not may_be_inference(begun):
            return None
        loop = asyncio.get_running_loop()

        def left(unanswered: bytes | None) -> None:
            self._open -= 1
            leave(unanswered)

        try:
            thread = ConnectionThread(self, connection.dup(), common, lambda unanswered: loop.call_soon_threadsafe(left, unanswered))
            threading.Thread(target=thread.run, args=(begun,), name="bbgrap-serve-connection", daemon=True).start()
        except (OSError, RuntimeError):  # no descriptors or threads are left
            return None
        self._open += 1
        return thread


class ConnectionThread:
    """One connection, for as long as plain requests come over it.

    Invariants: what changes something is its thread's, but for `end`.
    """

    def __init__(
        self, threads: ConnectionThreads, connection: socket.socket, common: Common, leave: Callable[[bytes | None], object]
    ) -> None:
        self._gateway = threads.gateway
        self._server = threads.server
        self._socket = connection
        self._common = common
        self._leave = leave
        self._looking = select.poll()
        self._looking.register(connection, _GONE)
        self._is_waiting = False
        self.is_ending = False
        self.answered = 0
        """Requests."""
        self._memory = memoryview(b"")
        self._latest: tuple[bytes, RequestHead] | None = None

    def end(self) -> None:
        """End the connection, once the request that runs is answered; on the event loop."""
        self.is_ending = True
        if self._is_waiting:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RD)

    def run(self, begun: bytes) -> None:
        """Answer requests until there is one that is not for this thread, or the connection has ended."""
        unanswered: bytes | None = None
        try:
            self._socket.settimeout(IDLE_S)
            unanswered = self._answer_all(begun)
        except (OSError, _EndedError):  # its client has gone, or is silent
            pass
        finally:
            self._socket.close()
            with suppress(RuntimeError):  # the event loop has ended
                self._leave(unanswered)

    def _answer_all(self, read: bytes) -> bytes:
        """Return what was read and is not for this thread."""
        while True:
            while END not in read:
                if len(read) > MOST_BYTES or not may_be_inference(read):
                    return read
                read += self._more_of_head()
            read = without_offer(read)
            text = read[: read.find(END) + len(END)]
            head = self._head(text)
            model = None if head is None else self._model(head)
            if head is None or model is None:
                return read
            try:
                with self._gateway.admitted(head.length) as admitted:
                    answer = self._answer(head, model, read[len(text) :], admitted)
                    is_sent = self._gateway.begin_sending(sum(map(len, answer.parts)))
            except RefusedError:  # it was not let in, and nothing more was read
                return read
            try:
                self._send(answer)
            finally:
                is_sent()
            if answer.is_last or self.is_ending:
                raise _EndedError
            self.answered += 1
            read = read[len(text) + head.length :] or self._more_of_head()

    def _more_of_head(self) -> bytes:
        """Wait for the next bytes of a head, of which nothing or a part is here: a server that ends does not wait for them."""
        self._is_waiting = True
        try:
            if self.is_ending:
                raise _EndedError
            more = self._socket.recv(MOST_BYTES)
        finally:
            self._is_waiting = False
        if not more:
            raise _EndedError
        return more

    def _head(self, text: bytes) -> RequestHead | None:
        """Return a plain head that the server lets in; clients repeat theirs."""
        if self._latest is None or self._latest[0] != text:
            head = plain_head(text)
            if head is None or self._server.why_not(head.headers):
                return None
            self._latest = text, head
        return self._latest[1]

    def _model(self, head: RequestHead) -> ServedModel | None:
        if head.length > self._gateway.limits.body_bytes:
            return None
        try:
            model = self._gateway.repository.get(head.model, head.version)
        except RefusedError:
            return None
        return model if self._gateway.runs_at_once(model) else None

    def _answer(self, head: RequestHead, model: ServedModel, read: bytes, place: RequestPlace) -> _Answer:
        """Return what a request gets, of whose body the first bytes may have been read."""
        try:
            body = self._body(head.length, read, place)
        except TimeoutError:
            return _slow(RefusedError(Refusal.SLOW_BODY, f"body: nothing of it came for {BODY_S:g} s"))
        except RefusedError as error:
            return _slow(error)
        try:
            parts, headers = self._infer(head, model, body)
        except Exception as error:  # whatever it is, its sender gets an answer
            self._memory = memoryview(b"")  # what was given up may still be on its way
            if self._has_gone():
                raise _EndedError from None
            return _refusal(refusal_of(error))
        if len(self._memory) > _KEPT_BYTES:
            self._memory = memoryview(b"")
        return _Answer(HTTPStatus.OK, parts, headers)

    def _body(self, length: int, read: bytes, place: RequestPlace) -> memoryview:
        """Receive a body, of which the first bytes may have been read.

        Raises:
            RefusedError: if its place went to another request, as nothing came.
        """
        if length > len(self._memory):
            # Not a bytearray, which is written to at once: memory is taken as the body comes.
            self._memory = np.empty(length, np.uint8).data
        body = self._memory[:length]
        have = min(len(read), length)
        if have:  # without a body there may be no memory yet, and what is none is read-only
            body[:have] = read[:have]
        if have < length:
            self._socket.settimeout(BODY_S)
            place.await_body(self._read_no_more)
            while have < length:
                count = self._socket.recv_into(body[have:])
                if not count:
                    place.check()
                    raise _EndedError
                have += count
                place.has_part()
            place.has_body()
            self._socket.settimeout(IDLE_S)
        return body.toreadonly()

    def _read_no_more(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def _infer(self, head: RequestHead, model: ServedModel, body: memoryview) -> tuple[list[BodyBytes], dict[str, str]]:
        headers = head.by_name
        asked = parse_infer(body, json_length_of(headers.get(JSON_LENGTH, "").strip(), len(body)))
        answer = partial(encoded, model, asked, accepted_encoding(headers.get("accept-encoding", "")))
        return self._gateway.infer_here(model, Inference(asked, answer, headers.get("traceparent", "")), self._has_gone)

    def _has_gone(self) -> bool:
        return bool(self._looking.poll(0))

    def _send(self, answer: _Answer) -> None:
        lines = [b"HTTP/1.1 %d %s" % (answer.status, answer.status.phrase.encode())]
        lines += [b"%s: %s" % pair for pair in self._common()]
        lines += [f"{name}: {value}".encode("latin-1") for name, value in answer.headers.items()]
        lines += [b"content-length: %d" % sum(map(len, answer.parts)), b"", b""]
        rest = rest_of([memoryview(part) for part in (b"\r\n".join(lines), *answer.parts)], 0)
        while rest:
            rest = rest_of(rest, self._socket.sendmsg(rest[:_MOST_PARTS]))


def _slow(error: RefusedError) -> _Answer:
    """Return the last answer of a connection: the rest of a body would be taken for another request."""
    slow = _refusal(error)
    return replace(slow, headers={**slow.headers, "connection": "close"}, is_last=True)


def _refusal(error: RefusedError) -> _Answer:
    body, status, headers = refused(error)
    return _Answer(HTTPStatus(status), [body], headers)
