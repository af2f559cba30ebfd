"""What agents and clients ask their processes to do with the connection to the coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

M = TypeVar("M")

LONG_ONES_LOST = (
    "packets over the limit of a VPN or a tunnel may be lost on the way; "
    "'ip link set dev NAME mtu 1280' on one of the two machines tells whether it is that"
)
"""Why short messages arrive and long ones do not: a connection is as good as dead then, and looks alive."""


@dataclass(frozen=True, slots=True)
class ToCoordinator(Generic[M]):
    """Send a message to the coordinator."""

    message: M


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Open the control connection anew: the old one is silent."""
