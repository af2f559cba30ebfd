"""What every peer is: a name, the packages it needs, and how it is opened on the two nodes.

A peer is opened in a process of its own on the first node, as a program of its users would be. Whatever else it needs it starts by
itself, with `process_at`, on either node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from bbgrap.errors import ExecutionError
from bbgrap.graph import Array
from bbgrap.local import end_of
from benchmarks.peers.halves import Halves
from benchmarks.testbed import Place, Reached

Feeds = Mapping[str, Array]
Answers = Sequence[Array]
Waiter = Callable[[], Answers]
"""Waits for the answer to one request."""

START_S = 90.0
"""What processes of a peer may take to start: chosen, Ray takes up to 20 s on a busy machine."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a peer is opened, and with what."""

    model: str
    path: Path
    feeds: Feeds
    halves: Halves
    places: tuple[Place, Place]
    hosts: tuple[str, str]
    coordinator: Reached
    home: Path
    """A folder of the peer's own, for logs."""


@dataclass(frozen=True, slots=True)
class Running:
    """An open peer."""

    run: Callable[[Feeds], Answers]
    """Answers one request, and nothing else is on its way."""
    begin: Callable[[Feeds], Waiter]
    """Takes one of several requests that are on their way at once."""
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Peer:
    """One of those compared."""

    name: str
    title: str
    open: Callable[[Setting], AbstractContextManager[Running]]
    packages: Mapping[str, str] = field(default_factory=dict)
    """Modules that it imports, and what pip calls them."""
    nodes: int = 2
    """How many of the two nodes it uses."""
    informative: bool = False
    """No alternative on two nodes: shown, but never said to be ahead."""
    refuses: Callable[[Path], str] = lambda _: ""
    """Says why it cannot run a model; empty if it can."""

    @property
    def missing(self) -> str:
        """The command that installs what is missing; empty if nothing is."""
        names = [name for module, name in self.packages.items() if find_spec(module) is None]
        return f"pip install {' '.join(names)}" if names else ""

    @property
    def versions(self) -> dict[str, str]:
        """The versions of its packages."""
        return {name: version(name) for name in self.packages.values()}


def did_not_start(who: str, *logs: Path) -> ExecutionError:
    """Return the error of a peer whose processes are not ready after `START_S`."""
    ends = "\n".join(f"{log.name}: {end_of(log, 12)}" for log in logs)
    return ExecutionError(f"{who}: not ready after {START_S:g} s; the ends of its logs:\n{ends}")
