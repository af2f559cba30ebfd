"""A cluster that a program has started for itself: it is used in a `with` block, and ends with it.

with LocalCluster(agents=2) as cluster:     # or RayCluster, DaskCluster, SSHCluster
session = InferenceSession("model.onnx")
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from bbgrap.errors import ClusterUnavailableError
from bbgrap.session import which_cluster
from bbgrap.session.connection import Connection


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
                which_cluster.leave(connection)
                connection.close()
        finally:
            self.end()

    def __enter__(self) -> Self:
        which_cluster.enter(self.connection)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
