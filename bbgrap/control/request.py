"""A request of a client, from when it came until it is answered."""

from __future__ import annotations

from dataclasses import dataclass, field

from bbgrap.control.lifecycles import Tracker
from bbgrap.control.plans import Caller, Death, ServedPlan
from bbgrap.control.sequence import Sequence
from bbgrap.control.tracing import OpenTrace
from bbgrap.protocol.client_messages import RunModel


@dataclass(eq=False, slots=True)
class Request:
    """A request of a client; `epoch` is that of the variant it runs on, 0 if it waits; `lost` are the agents that its runs have lost.

    `blamed` is the agent whose worker a run of it has ended; `former` are the numbers of its latest runs that were taken back. It is `held`
    until a time, in seconds, or until something is heard of an agent; `overtook` is how many had ended on each agent when it was started
    there.
    """

    number: int
    caller: Caller
    message: RunModel
    plan: ServedPlan
    deadline: float
    tracker: Tracker
    asked: float
    """When its client said it or asked after it last, in seconds."""
    epoch: int = 0
    lost: list[str] = field(default_factory=list)
    broken: int = 0
    """How often a link between two agents has broken under it."""
    stalls: int = 0
    """How often nothing went on with it; that has ended nobody."""
    blamed: str = ""
    deaths: list[Death] = field(default_factory=list)
    """Of workers that its runs have ended."""
    former: tuple[int, ...] = ()
    held: tuple[str, float] | None = None
    overtook: dict[str, int] = field(default_factory=dict)
    sequence: Sequence | None = None
    trace: OpenTrace | None = None
    """Of the run that goes on, if it is traced."""
    came: int = 0
    """Its first number: one that runs again keeps its place among those that wait."""
    is_drawn: bool = False
    """Whether it is verified when it has been answered."""

    @property
    def interruptions(self) -> int:
        """How many of its runs have lost an agent, or stalled."""
        return len(self.lost) + self.stalls

    @property
    def bytes(self) -> int:
        """What its inputs take until it is answered."""
        return sum(len(part) for part in self.message.payload)
