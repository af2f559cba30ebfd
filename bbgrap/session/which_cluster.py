"""Which cluster a session works on: the one it is given, that of the enclosing `with LocalCluster()`, or BBGRAP_COORDINATOR's."""

from __future__ import annotations

import os
from typing import Protocol

from bbgrap.errors import UsageError
from bbgrap.session.connection import COORDINATOR, Connection, connect

_enclosing: list[Connection] = []


class HasConnection(Protocol):
    """Something with a connection of its own: a `LocalCluster`."""

    @property
    def connection(self) -> Connection:
        """The connection; whoever has it closes it."""


def enter(connection: Connection) -> None:
    """Let sessions of all threads use this cluster from now on, unless they are given another."""
    _enclosing.append(connection)


def leave(connection: Connection) -> None:
    """Undo `enter`; nothing happens if that was done before."""
    if connection in _enclosing:
        _enclosing.remove(connection)


def connection_to(cluster: Connection | HasConnection | str | None) -> tuple[Connection, bool]:
    """Return a connection to a cluster, the default one for None, and whether it was made here: who asked then closes it.

    Raises:
        UsageError: if there is no default.
        ClusterUnavailableError: if no coordinator answers.
    """
    chosen = (_enclosing[-1] if _enclosing else os.environ.get(COORDINATOR, "")) if cluster is None else cluster
    if isinstance(chosen, str):
        if not chosen:
            ways = f"give cluster=, or set {COORDINATOR}=tcp://HOST:PORT, or run the program with 'bbgrap exec --agents 2'"
            raise UsageError(f"which cluster? {ways}; 'with bbgrap.LocalCluster(agents=2):' starts one on this machine")
        return connect(chosen), True
    connection = chosen if isinstance(chosen, Connection) else chosen.connection
    if connection.is_inherited:
        return Connection(connection.address, credentials=connection.credentials), True
    return connection, False
