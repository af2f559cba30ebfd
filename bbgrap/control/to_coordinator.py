"""What agents and clients ask their processes to do with the connection to the coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class ToCoordinator(Generic[M]):
    """Send a message to the coordinator."""

    message: M


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Open the control connection anew: the old one is silent."""
