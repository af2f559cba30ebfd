"""A cluster that a program has started for itself: it is used in a `with` block, and ends with it.

with LocalCluster(agents=2) as cluster:     # or RayCluster, DaskCluster, SSHCluster
session = InferenceSession("model.onnx")

A session works on the cluster it is given, that of the enclosing `with` block, or BBGRAP_COORDINATOR's.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Self

from bbgrap.errors import ClusterUnavailableError, UsageError
from bbgrap.session.connection import COORDINATOR, Connection, connect

_enclosing: list[Connection] = []
"""Those of the `with` blocks that go on: sessions of all threads use the last one, unless they are given another."""


class OwnCluster(ABC):
    """What all such clusters have in common.

    Invariants: `address` is the coordinator's; `_connection` is there from when it answers until `close`.
    """

    kind: str
    """What errors call it."""
    address: str
    _connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        """A connection to the coordinator, closed with the cluster."""
        if self._connection is None:
            raise ClusterUnavailableError(f"{self.kind} cluster: it is closed")
        return self._connection

    @abstractmethod
    def kill(self, name: str) -> None:
        """End an agent's process at once, as a power cut would."""

    @abstractmethod
    def log(self, name: str, lines: int = 20) -> str:
        """Return the last lines of the log of an agent, or of `coordinator`."""

    @abstractmethod
    def end(self) -> None:
        """End what was started; called once or more often, also after a start that failed."""

    def close(self) -> None:
        """End the cluster; a fork child, which has a copy of this, ends nothing."""
        connection = self._connection
        if connection is not None and connection.is_inherited:
            return
        self._connection = None
        try:
            if connection is not None:
                if connection in _enclosing:
                    _enclosing.remove(connection)
                connection.close()
        finally:
            self.end()

    def __enter__(self) -> Self:
        _enclosing.append(self.connection)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connection_to(cluster: Connection | OwnCluster | str | None) -> tuple[Connection, bool]:
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
