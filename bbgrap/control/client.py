"""What a client does so that every call ends: it asks after silent calls, says lost ones again, and gives up on a silent coordinator.

Laws: a call is completed exactly once; requests are pure, so saying one twice is harmless.
"""

from __future__ import annotations

from dataclasses import dataclass

from bbgrap.control.states import Role, Tracker
from bbgrap.protocol.client_messages import (
    Ask,
    Call,
    Cancel,
    ClientAnswer,
    ClientMessage,
    Failed,
    Fault,
    FinalAnswer,
    Progress,
    StillWorking,
)


@dataclass(frozen=True, slots=True)
class Say:
    """Send a message to the coordinator."""

    message: ClientMessage


@dataclass(frozen=True, slots=True)
class Complete:
    """A call has its final answer."""

    call: int
    answer: FinalAnswer


@dataclass(frozen=True, slots=True)
class Report:
    """News of a call that goes on."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Open the connection anew: the old one is silent."""


Instruction = Say | Complete | Report | Reconnect


@dataclass(slots=True)
class _Open:
    message: Call
    tracker: Tracker
    said: float


class ClientMachine:
    """The calls of one connection.

    Invariants: `calls` holds the calls that have no final answer.
    """

    def __init__(self, address: str, *, ask_s: float = 1.0, silence_s: float = 10.0) -> None:
        """Start without calls; `address` is for messages. After `silence_s` without any word all calls fail."""
        self.calls: dict[int, _Open] = {}
        self._address = address
        self._ask_s = ask_s
        self._silence_s = silence_s
        self._heard = 0.0
        self._asked = 0.0

    def call(self, message: Call, now: float) -> list[Instruction]:
        """Begin a call; its number must be new."""
        if not self.calls:
            self._heard = self._asked = now
        self.calls[message.call] = _Open(message, Tracker(Role.CALL, f"call {message.call} ({type(message).__name__})"), now)
        return [Say(message)]

    def cancel(self, call: int) -> list[Instruction]:
        """Forget a call."""
        entry = self.calls.pop(call, None)
        if entry is None:
            return []
        entry.tracker.move("cancel")
        return [Say(Cancel(call))]

    def received(self, answer: ClientAnswer, now: float) -> list[Instruction]:
        """Take a message of the coordinator; answers to finished calls are late or repeated, and ignored."""
        self._heard = now
        match answer:
            case Progress():
                return [Report(answer)] if answer.call in self.calls else []
            case StillWorking():
                return self._say_again([c for c in answer.asked if c not in answer.known], now)
            case _:
                entry = self.calls.pop(answer.call, None)
                if entry is None:
                    return []
                entry.tracker.move("answer")
                return [Complete(answer.call, answer)]

    def _say_again(self, lost: list[int], now: float) -> list[Instruction]:
        done: list[Instruction] = []
        for number in lost:
            entry = self.calls.get(number)
            # One asked about right after it was said may simply not have arrived there yet.
            if entry is not None and now - entry.said >= self._ask_s:
                entry.tracker.move("send again")
                entry.said = now
                done.append(Say(entry.message))
        return done

    def tick(self, now: float) -> list[Instruction]:
        """Ask after open calls; give up on a coordinator that does not answer at all."""
        if not self.calls or now - self._asked < self._ask_s:
            return []
        silent = now - self._heard
        if silent > self._silence_s:
            return self._give_up(silent)
        self._asked = now
        ask: list[Instruction] = [Say(Ask(tuple(self.calls)))]
        return [Reconnect(), *ask] if silent > self._silence_s / 2 else ask

    def _give_up(self, silent: float) -> list[Instruction]:
        reason = f"the coordinator at {self._address} has not answered for {silent:.0f} s; is it running, and is the address right?"
        done: list[Instruction] = []
        for number, entry in self.calls.items():
            entry.tracker.move("silence")
            done.append(Complete(number, Failed(number, Fault.UNAVAILABLE, reason)))
        self.calls = {}
        return done
