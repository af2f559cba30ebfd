"""What may follow what: the legal moves of every lifecycle, as tables, and the one engine that looks them up.

Two rules for this file: everything that decides whether an event is legal lives here, and nothing here knows what a move *does*.
`docs/reference/protocol.md` is drawn from these tables by `tools/protocol_page.py`.

Events named in CamelCase are messages; those in lower case happen inside. Delivery is at least once, so every message that may come late
or twice has a move that stays where it is. An illegal message is the sender's fault (`RemoteProtocolError`), an illegal inner event is a
bug of this side (`LocalProtocolError`); both errors tell the story of the last moves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import get_args

from bbgrap.errors import LocalProtocolError, RemoteProtocolError
from bbgrap.protocol.messages import AgentCommand, Refused, Rejoin, Welcome

Table = Mapping[str, Mapping[str, str]]


class Lifecycle(Enum):
    """What has states: each has a table of moves, and begins in the first state of it."""

    AGENT = "agent"
    """An agent's view of its membership."""
    AGENT_DEPLOYMENT = "deployment on an agent"
    VARIANT = "variant as the coordinator sees it"


def _stays(state: str, *events: str) -> Mapping[str, str]:
    """Return moves that stay where they are."""
    return dict.fromkeys(events, state)


_COMMANDS = tuple(kind.__name__ for kind in get_args(AgentCommand) if kind not in {Welcome, Refused, Rejoin})
_LOADING = ("WeightsMissing", "Deployed", "DeploymentFailed")

TABLES: Mapping[Lifecycle, Table] = {
    Lifecycle.AGENT: {
        "joining": {"Welcome": "joined", **_stays("joining", "Refused", "Rejoin", *_COMMANDS), "give up": "left", "stop": "left"},
        "joined": {
            **_stays("joined", "Welcome", "Refused", *_COMMANDS),
            "Rejoin": "joining",
            "silence": "joining",
            "give up": "left",
            "stop": "left",
        },
        "left": {},
    },
    Lifecycle.AGENT_DEPLOYMENT: {
        "offered": {
            **_stays("offered", "Deploy", "worker lost"),
            "load failed": "released",
            "weights missing": "fetching",
            "weights complete": "loading",
            "Release": "released",
            "reset": "released",
        },
        "fetching": {
            **_stays("fetching", "Deploy", "weights missing"),
            "weights complete": "loading",
            "worker lost": "offered",
            "broken weight": "released",
            "Release": "released",
            "reset": "released",
        },
        "loading": {
            "Deploy": "loading",
            "loaded": "ready",
            "weights missing": "fetching",
            "load failed": "released",
            "worker lost": "offered",
            "ended the worker": "released",
            "Release": "released",
            "reset": "released",
        },
        "ready": {
            **_stays("ready", "Deploy", "Abandon"),
            "worker lost": "offered",
            "Release": "released",
            "reset": "released",
        },
        "released": {},
    },
    Lifecycle.VARIANT: {
        "waiting": {**_stays("waiting", *_LOADING), "load": "loading", "agent away": "waiting", "released": "ended"},
        "loading": {
            **_stays("loading", *_LOADING, "load again"),
            "all loaded": "ready",
            "agent away": "parted",
            "released": "ended",
        },
        "ready": {**_stays("ready", *_LOADING), "load again": "loading", "agent away": "parted", "released": "ended"},
        "parted": {**_stays("parted", *_LOADING, "agent away", "load again"), "agents back": "loading", "released": "ended"},
        "ended": {},
    },
}


class Tracker:
    """Where one thing stands, and how it got there.

    Invariants: `state` is a state of the lifecycle's table; it changes by `move` only.
    """

    __slots__ = ("_story", "_table", "label", "lifecycle", "state")

    def __init__(self, lifecycle: Lifecycle, label: str) -> None:
        """Stand at the first state of the lifecycle's table; `label` names the thing in errors."""
        self.lifecycle = lifecycle
        self.label = label
        self._table = TABLES[lifecycle]
        self.state = next(iter(self._table))
        self._story: deque[str] = deque(maxlen=8)

    @property
    def over(self) -> bool:
        """Whether no move is left."""
        return not self._table[self.state]

    def move(self, event: str) -> str:
        """Go where the table says and return that state.

        Raises:
            RemoteProtocolError: if the event is a message that must not come now.
            LocalProtocolError: if the event is one of this side.
        """
        target = self._table[self.state].get(event)
        if target is None:
            kind = RemoteProtocolError if event[:1].isupper() else LocalProtocolError
            expected = ", ".join(sorted(self._table[self.state])) or "nothing any more"
            story = ", ".join(self._story) or "nothing"
            raise kind(f"{self.lifecycle.value}, {self.label}: got '{event}' while {self.state}; expected {expected}; before: {story}")
        if target != self.state:
            self._story.append(f"{event} -> {target}")
        self.state = target
        return target
