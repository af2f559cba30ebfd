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

    Invariants: `_open` holds what the worker was asked, or will be asked when there is one, by kind and number.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], Measure | MeasureLinks | TryLinks] = {}
        self._pings: AnswerPings | None = None

    @property
    def is_measuring(self) -> bool:
        """Whether the worker measures how fast this machine works, which takes memory."""
        return any(isinstance(asked, Measure) for asked in self._open.values())

    def take(self, message: Measuring, *, ready: bool) -> list[AgentInstruction]:
        """Note what is asked; it is done now if the worker is ready. A worker answers what it is told to end, too: it takes a moment."""
        if isinstance(message, AnswerPings):
            self._pings = message
        elif isinstance(message, EndMeasuring):
            if not ready:
                for kind in ("speed", "links"):
                    self._open.pop((kind, message.measurement), None)
        elif _key(message) in self._open:
            return []
        else:
            self._open[_key(message)] = message
            if len(self._open) > MAX_ASKED:
                del self._open[next(iter(self._open))]
        return [message] if ready else []

    def answered(self, message: Measured | LinksMeasured | LinksTried) -> bool:
        """Note an answer; whether it was still expected."""
        return self._open.pop(_key(message), None) is not None

    def worker_ready(self) -> list[AgentInstruction]:
        """Return what a new worker has to know and do."""
        return [message for message in (self._pings, *self._open.values()) if message is not None]

    def worker_lost(self, reason: str) -> list[AgentInstruction]:
        """Answer for a worker that measured."""
        done: list[AgentInstruction] = []
        for asked in self._open.values():
            match asked:
                case Measure(measurement):
                    done.append(ToCoordinator(Measured(measurement, None, reason)))
                case MeasureLinks(measurement):
                    done.append(ToCoordinator(LinksMeasured(measurement, (), reason)))
                case TryLinks():
                    pass
        self._open = {key: asked for key, asked in self._open.items() if isinstance(asked, TryLinks)}
        return done

    def forget(self) -> None:
        """Begin a new membership: nobody waits for answers any more."""
        self._open = {}


def _key(message: Measure | Measured | MeasureLinks | LinksMeasured | TryLinks | LinksTried) -> tuple[str, int]:
    """Return what a question and its answer have in common."""
    match message:
        case Measure(number) | Measured(number):
            return "speed", number
        case MeasureLinks(number) | LinksMeasured(number):
            return "links", number
        case TryLinks(number) | LinksTried(number):
            return "trial", number
