"""Calls to a coordinator from any thread, answered or failed, never silent.

There is no thread behind it. Whoever waits for an answer looks after the socket; if several threads wait, one of them leads and
wakes the others when their answers come. So a single caller pays for no hand-over between threads.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Self, TypeVar

import zmq

from bbgrap.control import client as machine
from bbgrap.control.to_coordinator import Reconnect, ToCoordinator
from bbgrap.errors import AccessError, BbgrapError, ClusterUnavailableError, RemoteProtocolError, UsageError
from bbgrap.protocol import client_messages
from bbgrap.protocol.directions import TO_CLIENT, TO_COORDINATOR
from bbgrap.protocol.messages import BytesLike
from bbgrap.session.stops import Stops
from bbgrap.transport.control_client import ControlClient, is_listening, unavailable
from bbgrap.transport.control_sockets import check_address
from bbgrap.transport.credentials import Credentials
from bbgrap.transport.discovery import MDNS, discover
from bbgrap.transport.wakeup_queue import WakeupQueue

A = TypeVar("A")
OnProgress = Callable[[client_messages.Progress], None]

_GREETS_EVERY_S = 1.0
"""How often a client asks for a new channel, where the old one has ended. Chosen."""
_CLOSES_WITHIN_S = 1.0
_LOOKUP_S = 30.0
"""How long the name of a host may be looked up before a coordinator's time to answer begins: two name servers that are away
are each asked twice for 5 s."""


class CallFailedError(Exception):
    """A call ended with `Failed`; callers turn it into the error of its kind."""

    def __init__(self, answer: client_messages.Failed) -> None:
        super().__init__(answer.reason)
        self.answer = answer

    @property
    def error(self) -> BbgrapError:
        """The error to raise."""
        return self.answer.fault.error(self.answer.reason)


class Calls:
    """What is asked of one coordinator, over one connection.

    Invariants: the socket is used by the leading thread only; `_came` holds what came for calls and their callers have not taken yet, in
    order: news where somebody listens, then the answer. Listeners are called by the thread that waits for the call, while it leads nobody.
    """

    def __init__(self, address: str, timeout_s: float = 3.0, credentials: Credentials | None = None) -> None:
        """Connect and greet; without `credentials`, as the environment and this machine say.

        Raises:
            UsageError: if the address is malformed.
            AccessError: if there is no token, or it does not allow this.
            ClusterUnavailableError: if no coordinator answers in time.
            RemoteProtocolError: if it speaks another version.
        """
        self.credentials = credentials or Credentials()
        self.address = discover(self.credentials.lock) if address == MDNS else check_address(address)
        try:
            self._control = ControlClient(zmq.Context.instance(), self.address, lambda: self.credentials.lock(self.address))
        except AccessError:
            if not is_listening(self.address, timeout_s):  # a token would not help
                raise unavailable(self.address, timeout_s) from None
            raise
        self._machine = machine.ClientMachine(self.address)
        self._numbers = itertools.count(1)
        self._mutex = threading.RLock()
        self._lock = threading.Condition(self._mutex)  # its own `with` is Python: an interrupt may come in the middle of it
        self._leading = False
        self._outbox: deque[list[BytesLike]] = deque()
        self._came: dict[int, deque[client_messages.Progress | client_messages.FinalAnswer]] = {}
        self._listeners: dict[int, OnProgress] = {}
        self._wakeups: WakeupQueue[None] = WakeupQueue()
        self._poller = zmq.Poller()
        self._polled: tuple[zmq.Socket[bytes] | int, ...] = ()
        self.stops = Stops()
        self._closed = False
        self._process = os.getpid()
        self._is_near, self._greeting, self._greets_at = False, 0, 0.0
        try:
            looked_up = time.monotonic() + _LOOKUP_S
            while self._control.looks_up(self.stops.tick_s) and time.monotonic() < looked_up:
                self.stops.check()
            greeting = self._greet(timeout_s)
        except BaseException as error:
            self.close()
            if isinstance(error, TimeoutError | ClusterUnavailableError):  # whichever clock is the first
                raise unavailable(self.address, timeout_s) from None
            raise
        self.coordinator_version = greeting.version
        self._control.use_channel(greeting.channel)
        self._is_near = self._control.channel is not None

    def _greet(self, timeout_s: float) -> client_messages.Greeting:
        """Return the answer to a first call, from a coordinator that is far away later."""
        try:
            return self.ask(client_messages.Hello(self.number()), client_messages.Greeting, timeout_s=timeout_s)
        except (TimeoutError, ClusterUnavailableError):
            if not (far_s := self._control.far_s):
                raise
            return self.ask(client_messages.Hello(self.number()), client_messages.Greeting, timeout_s=far_s)

    def close(self) -> None:
        """Close the connection; what other threads wait for fails."""
        if self.is_inherited:
            return
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            self._wakeups.put(None)
            # Whoever leads has the socket; this may be called in the middle of that, by what a garbage collection ends.
            self._lock.wait_for(lambda: not self._leading, _CLOSES_WITHIN_S)
        self._control.close()
        self._wakeups.close()

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the one that has the connection: it can do nothing with its copy."""
        return self._process != os.getpid()

    def _check_open(self) -> None:
        if self._closed:
            raise ClusterUnavailableError(f"connection to {self.address}: it was closed; connect again")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def number(self) -> int:
        """Return the number for a new call."""
        return next(self._numbers)

    def ask(
        self, message: client_messages.Call, expected: type[A], on_progress: OnProgress | None = None, timeout_s: float | None = None
    ) -> A:
        """Do as `try_call` does; a failure is raised as the error of its kind."""
        try:
            return self.try_call(message, expected, on_progress, timeout_s)
        except CallFailedError as failed:
            raise failed.error from None

    def try_call(
        self, message: client_messages.Call, expected: type[A], on_progress: OnProgress | None = None, timeout_s: float | None = None
    ) -> A:
        """Make a call and return its answer; a failure is raised as `CallFailedError`.

        With `timeout_s` it outlasts a coordinator that is away for so long.

        Raises:
            TimeoutError: if there is no answer within `timeout_s` seconds.
        """
        try:
            self.begin(message, on_progress, timeout_s)
            return self.answer_to(message, expected, timeout_s)
        except CallFailedError:
            raise
        except BaseException:  # an interrupt before somebody waits, above all
            self.forget(message)
            raise

    def tell(self, message: client_messages.ForkSequence | client_messages.EndSequence) -> None:
        """Say what has no answer; a closed connection says nothing."""
        if self.is_inherited:
            return
        with self._mutex:
            if not self._closed:
                self._outbox.append(TO_COORDINATOR.encode(message))
        self._flush_soon()

    def begin(self, message: client_messages.Call, on_progress: OnProgress | None = None, timeout_s: float | None = None) -> None:
        """Begin a call that `answer_to` waits for, or `forget` gives up; it is said when somebody waits for an answer.

        Raises:
            UsageError: if the coordinator would not take it for a message: a name in it is too long, or of a form that none may have.
        """
        if self.is_inherited:
            raise ClusterUnavailableError(f"connection to {self.address}: it is that of the parent process; make another one, or a session")
        self._check_open()
        self.stops.check()
        if not isinstance(
            message, client_messages.RunModel | client_messages.ModelChunk
        ):  # their names are those of calls before; their time counts
            _check(message)
        with self._mutex:
            if on_progress is not None:
                self._listeners[message.call] = on_progress
            self._carry_out(self._machine.call(message, time.monotonic(), timeout_s))
            if self._leading:
                self._wakeups.put(None)

    def answer_to(self, message: client_messages.Call, expected: type[A], timeout_s: float | None = None) -> A:
        """Return the answer to a call that was begun; a failure is raised as `CallFailedError`.

        Raises:
            TimeoutError: if there is none within `timeout_s` seconds.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while isinstance(answer := self._wait(message.call, deadline), client_messages.Progress):
                self._listeners[message.call](answer)
                if deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError
        except BaseException:
            self.forget(message)
            raise
        finally:
            self._listeners.pop(message.call, None)
        if isinstance(answer, client_messages.Failed):
            raise CallFailedError(answer)
        if not isinstance(answer, expected):
            raise RemoteProtocolError(f"coordinator: expected {expected.__name__}, got {type(answer).__name__}")
        return answer

    def forget(self, message: client_messages.Call) -> None:
        """Tell the coordinator that an answer is not wanted any more, unless it has come."""
        with self._mutex:
            self._carry_out(self._machine.cancel(message.call))
            self._came.pop(message.call, None)
            self._listeners.pop(message.call, None)
        self._flush_soon()

    def _flush_soon(self) -> None:
        """Send what is to be sent, now or by whoever leads."""
        leads = False
        try:
            with self._mutex:
                if self._closed:
                    return
                if self._leading:
                    self._wakeups.put(None)
                    return
                leads = self._leading = True
            self._flush()
        finally:
            if leads:
                self._leading = False
                with self._mutex:
                    self._lock.notify_all()

    def _wait(self, number: int, deadline: float | None) -> client_messages.Progress | client_messages.FinalAnswer:
        """Return what comes next for a call."""
        while True:
            leads = False
            try:
                with self._mutex:
                    while number not in self._came and self._leading:
                        self.stops.check()
                        if not self._lock.wait(self.stops.tick_s) and deadline is not None and time.monotonic() > deadline:
                            raise TimeoutError
                    if number in self._came:
                        came = self._came[number].popleft()
                        if not self._came[number]:
                            del self._came[number]
                        return came
                    self._check_open()
                    leads = self._leading = True
                self._lead(number, deadline)
            finally:
                if leads:  # no call before that: an interrupt may come in it
                    self._leading = False
                    with self._mutex:
                        self._lock.notify_all()

    def _lead(self, number: int, deadline: float | None) -> None:
        """Look after the socket until something for a call is there."""
        while number not in self._came:
            self._check_open()
            self.stops.check()
            self._flush()
            ready = self._poll()
            now = time.monotonic()
            if not ready:
                self._check_access()
                with self._mutex:
                    if self._control.was_broken():
                        self._machine.broken(now)
                    if self._control.has_received() | self._control.has_delivered():
                        self._machine.moving(now)
            if not ready.isdisjoint(self._polled):
                self._receive(number, now)
            if self._wakeups.fileno() in ready:
                self._wakeups.take()
            with self._mutex:  # after what has arrived: a listener may have kept everybody from hearing it
                self._carry_out(self._machine.tick(now))
            if number not in self._came and deadline is not None and now > deadline:
                raise TimeoutError

    def _receive(self, number: int, now: float) -> None:
        """Take what has arrived, until something is for this call: what came for others is read by whoever leads next."""
        while number not in self._came and (frames := self._control.receive()) is not None:
            answer = TO_CLIENT.decode(frames)
            with self._mutex:
                self._carry_out(self._machine.received(answer, now))
            self._greet_again(now)

    def _greet_again(self, now: float) -> None:
        """Ask for a new channel where the old one has ended, as with a coordinator that was started anew, and has been heard of."""
        if not self._is_near or self._control.channel is not None or now < self._greets_at:
            return
        self._greets_at = now + _GREETS_EVERY_S
        with self._mutex:
            self._carry_out(self._machine.cancel(self._greeting))
            self._greeting = self.number()
            self._carry_out(self._machine.call(client_messages.Hello(self._greeting), now, _GREETS_EVERY_S))
        self._flush()

    def _check_access(self) -> None:
        """Connect anew if a token was replaced.

        Raises:
            AccessError: if the coordinator does not take this side's key.
        """
        why = self._control.refused
        if not why:
            return
        if not self._control.has_new_lock():
            raise AccessError(why)
        self._control.reopen()

    def _poll(self) -> set[zmq.Socket[bytes] | int]:
        """Wait until something can be read, and return what."""
        if self._polled != self._control.files:
            self._polled, self._poller = self._control.files, zmq.Poller()
            for file in (*self._polled, self._wakeups.fileno()):
                self._poller.register(file, zmq.POLLIN)
        return {file for file, _ in self._poller.poll(round(self.stops.tick_s * 1000))}

    def _flush(self) -> None:
        while self._outbox:
            self._control.send(self._outbox.popleft())

    def _carry_out(self, instructions: list[machine.ClientInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case ToCoordinator(message):
                    self._outbox.append(TO_COORDINATOR.encode(message))
                case machine.Complete(call, answer) if call == self._greeting:
                    if isinstance(answer, client_messages.Greeting):
                        self._control.use_channel(answer.channel)
                        self._is_near = bool(answer.channel)
                case machine.Complete(call, answer):
                    self._put(call, answer)
                case machine.Report(progress):
                    if progress.call in self._listeners:
                        self._put(progress.call, progress)
                case Reconnect():
                    self._control.reopen()

    def _put(self, call: int, came: client_messages.Progress | client_messages.FinalAnswer) -> None:
        self._came.setdefault(call, deque()).append(came)
        self._lock.notify_all()


def _check(message: client_messages.Call) -> None:
    try:
        TO_COORDINATOR.decode(TO_COORDINATOR.encode(message))
    except BbgrapError as error:
        raise UsageError(f"the cluster does not take this: {error}") from error
