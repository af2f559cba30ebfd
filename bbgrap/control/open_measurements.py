"""What a coordinator asked of an agent's worker besides deployments: measurements, trials of links, and whose pings to answer.

Laws: each measurement and trial is answered once. What a dead worker was asked is answered for it, but for trials of links, which the
next worker does: they end no worker, and nobody asks for them again.
"""

from __future__ import annotations

from bbgrap.control.agent_events import AgentInstruction, Measuring
from bbgrap.control.to_coordinator import ToCoordinator
from bbgrap.protocol.messages import AnswerPings, EndMeasuring, LinksMeasured, LinksTried, Measure, Measured, MeasureLinks, TryLinks

MAX_ASKED = 64
"""Measurements and trials at once; the oldest makes room. A coordinator asks for one or two."""


class OpenMeasurements:
    """What is not answered yet.

    Invariants: `_open` holds what the worker was asked, or will be asked when there is one.
    """

    def __init__(self) -> None:
        """Nothing is asked."""
        self._open: list[Measure | MeasureLinks | TryLinks] = []
        self._pings: AnswerPings | None = None

    @property
    def is_measuring(self) -> bool:
        """Whether the worker measures how fast this machine works, which takes memory."""
        return any(isinstance(asked, Measure) for asked in self._open)

    def take(self, message: Measuring, *, ready: bool) -> list[AgentInstruction]:
        """Note what is asked; it is done now if the worker is ready. A worker answers what it is told to end, too: it takes a moment."""
        if isinstance(message, AnswerPings):
            self._pings = message
        elif isinstance(message, EndMeasuring):
            if not ready:
                self._open = [asked for asked in self._open if isinstance(asked, TryLinks) or asked.measurement != message.measurement]
        elif message in self._open:
            return []
        else:
            self._open = [*self._open, message][-MAX_ASKED:]
        return [message] if ready else []

    def answered(self, message: Measured | LinksMeasured | LinksTried) -> bool:
        """Note an answer; whether it was still expected."""
        before = len(self._open)
        self._open = [asked for asked in self._open if not _answers(message, asked)]
        return len(self._open) < before

    def worker_ready(self) -> list[AgentInstruction]:
        """Return what a new worker has to know and do."""
        return [message for message in (self._pings, *self._open) if message is not None]

    def worker_died(self, reason: str) -> list[AgentInstruction]:
        """Answer for a worker that measured."""
        done: list[AgentInstruction] = []
        for asked in self._open:
            match asked:
                case Measure(measurement):
                    done.append(ToCoordinator(Measured(measurement, None, reason)))
                case MeasureLinks(measurement):
                    done.append(ToCoordinator(LinksMeasured(measurement, (), reason)))
                case TryLinks():
                    pass
        self._open = [asked for asked in self._open if isinstance(asked, TryLinks)]
        return done

    def forget(self) -> None:
        """Begin a new membership: nobody waits for answers any more."""
        self._open = []


def _answers(message: Measured | LinksMeasured | LinksTried, asked: Measure | MeasureLinks | TryLinks) -> bool:
    match message:
        case Measured(measurement):
            return isinstance(asked, Measure) and asked.measurement == measurement
        case LinksMeasured(measurement):
            return isinstance(asked, MeasureLinks) and asked.measurement == measurement
        case LinksTried(trial):
            return isinstance(asked, TryLinks) and asked.trial == trial
