"""What a client does so that every call ends: it asks after silent calls, says lost ones again, and gives up on a silent coordinator.

How long a coordinator may be silent, each call says: one with a deadline outlasts a coordinator that is started anew. What a connection
carries arrives in order, so nothing is heard of a large request, nor of what was said after it, while it is on its way. Laws: a call is
completed exactly once; requests are pure, so saying one twice is harmless; none is said again that may still be on its way.
"""

from __future__ import annotations

from dataclasses import dataclass

from bbgrap.control.to_coordinator import LONG_ONES_LOST, Reconnect, ToCoordinator
from bbgrap.protocol.client_messages import (
    Ask,
    Call,
    Cancel,
    ClientAnswer,
    Failed,
    FinalAnswer,
    ModelChunk,
    Progress,
    RunModel,
    StillWorking,
)
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.limits import MAX_ASKED

REOPEN_S = 3.0
"""A connection that is silent for so long is opened anew."""
SLOWEST_LINK = 1 << 20
"""Bytes per second at which inputs and pieces of models may still be on their way. Chosen: 10 Mbit/s, less what frames and keys take."""
LEAST_RATE = 16 << 10
"""And at least, where they were said again and again before they arrived."""
LOST_OFTEN = 3
"""How often a call or its answer is lost until the connection is doubted, not the moment."""
LOST_S = 30.0
"""How long a call may be lost again and again, though the coordinator is heard. Chosen: links that lose much for some seconds get it
through."""


@dataclass(frozen=True, slots=True)
class Complete:
    """A call has its final answer."""

    call: int
    answer: FinalAnswer


@dataclass(frozen=True, slots=True)
class Report:
    """News of a call that goes on."""

    progress: Progress


ClientInstruction = ToCoordinator[Call | Cancel | Ask] | Complete | Report | Reconnect


@dataclass(slots=True)
class _Open:
    message: Call
    began: float
    patience_s: float
    there_by: float = 0.0
    """When it has arrived at the latest, unless it was lost."""
    takes_s: float = 0.0
    """How much of that may be its own way; 0 once it is known to have arrived."""
    lost: int = 0
    """How often it was lost, or its answer, since the coordinator had it last."""
    lost_since: float = 0.0


class ClientMachine:
    """The calls of one connection.

    Invariants: `calls` holds the calls that have no final answer; by `_there_by` all that was said has arrived, or was lost.
    """

    def __init__(self, address: str, *, ask_s: float = 0.5, silence_s: float = 10.0) -> None:
        """Start without calls; `address` is for messages. After `silence_s` without any word calls fail that do not say otherwise."""
        self.calls: dict[int, _Open] = {}
        self._address = address
        self._ask_s = ask_s
        self._silence_s = silence_s
        self._heard = 0.0
        self._asked = 0.0
        self._opened = 0.0
        self._there_by = 0.0
        self._rate = SLOWEST_LINK
        """Bytes per second: half as many each time that inputs have to be said again, for they may only have been on a slow way."""

    def call(self, message: Call, now: float, patience_s: float | None = None) -> list[ClientInstruction]:
        """Begin a call; its number must be new. It fails after `patience_s` without any word of the coordinator."""
        if not self.calls:
            self._heard = self._asked = now
        entry = self.calls[message.call] = _Open(message, now, self._silence_s if patience_s is None else patience_s)
        return [self._say(entry, now)]

    def cancel(self, call: int) -> list[ClientInstruction]:
        """Forget a call."""
        return [] if self.calls.pop(call, None) is None else [ToCoordinator(Cancel(call))]

    def broken(self, now: float) -> None:
        """Note that the connection broke: what was on its way does not arrive any more."""
        self._there_by = min(self._there_by, now)
        for entry in self.calls.values():
            entry.there_by, entry.takes_s = min(entry.there_by, now), 0.0

    def moving(self, now: float) -> None:
        """Note that bytes have come or arrived there: what is on a slow or far way, or a handshake, is no silence."""
        self._heard = now

    def received(self, answer: ClientAnswer, now: float) -> list[ClientInstruction]:
        """Take a message of the coordinator; answers to finished calls are late or repeated, and ignored."""
        self._heard = now
        match answer:
            case Progress():
                return [Report(answer)] if answer.call in self.calls else []
            case StillWorking():
                for number in answer.known:
                    if (known := self.calls.get(number)) is not None:
                        self._arrived(known, now)
                        known.lost = 0
                return self._say_again(sorted({*answer.asked} - {*answer.known}), now)
            case _:
                entry = self.calls.pop(answer.call, None)
                if entry is None:
                    return []
                self._arrived(entry, now)
                return [Complete(answer.call, answer)]

    def _say_again(self, lost: list[int], now: float) -> list[ClientInstruction]:
        done: list[ClientInstruction] = []
        for number in lost:
            entry = self.calls.get(number)
            # One asked about right after it was said may simply not have arrived there yet.
            if entry is not None and now - entry.there_by >= self._ask_s:
                entry.lost, entry.lost_since = entry.lost + 1, entry.lost_since if entry.lost else now
                if isinstance(entry.message, ModelChunk | RunModel):
                    self._rate = max(self._rate // 2, LEAST_RATE)
                done.append(self._say(entry, now))
        return done

    def _say(self, entry: _Open, now: float) -> ToCoordinator[Call | Cancel | Ask]:
        """Say a call: it arrives after all that was said before."""
        message = entry.message
        entry.takes_s = sum(map(len, message.payload)) / self._rate if isinstance(message, ModelChunk | RunModel) else 0.0
        entry.there_by = self._there_by = max(self._there_by, now) + entry.takes_s
        return ToCoordinator(message)

    def _arrived(self, entry: _Open, now: float) -> None:
        """Note that a call has arrived: what was said after it arrives the sooner."""
        saved_s = min(entry.takes_s, max(0.0, entry.there_by - now))
        if saved_s > entry.takes_s / 2:
            self._rate = min(2 * self._rate, SLOWEST_LINK)
        entry.takes_s = 0.0
        if saved_s:
            self._there_by -= saved_s
            for later in self.calls.values():
                if later.there_by >= entry.there_by and later is not entry:
                    later.there_by -= saved_s
            entry.there_by -= saved_s

    def tick(self, now: float) -> list[ClientInstruction]:
        """Ask after open calls; give up on a coordinator that does not answer at all."""
        if not self.calls or now - self._asked < self._ask_s:
            return []
        heard = max(self._heard, self._there_by)
        # A call waits for as long as it said, however long others have been waiting.
        done = [
            instruction
            for number, entry in list(self.calls.items())
            for instruction in self._give_up(number, entry, now, now - max(heard, entry.began))
        ]
        self._asked = now
        numbers = tuple(self.calls)
        ask: list[ClientInstruction] = [
            ToCoordinator(Ask(numbers[place : place + MAX_ASKED])) for place in range(0, len(numbers), MAX_ASKED)
        ]
        if now - heard > REOPEN_S and now - self._opened > REOPEN_S:
            self._opened = now
            self.broken(now)
            return [*done, Reconnect(), *ask]
        return [*done, *ask]

    def _give_up(self, number: int, entry: _Open, now: float, silent: float) -> list[ClientInstruction]:
        lost_s = now - entry.lost_since if entry.lost >= LOST_OFTEN else 0.0
        if silent > max(entry.patience_s, 2 * self._ask_s):  # it is asked every `_ask_s`, and says nothing between
            reason = f"the coordinator at {self._address} has not answered for {silent:.0f} s; is it running, and is the address right?"
        elif lost_s > min(entry.patience_s, LOST_S) + entry.takes_s:
            reason = f"the coordinator at {self._address} answers, but not this, for {lost_s:.0f} s: {LONG_ONES_LOST}"
        else:
            return []
        del self.calls[number]
        return [Complete(number, Failed(number, Fault.UNAVAILABLE, reason))]
