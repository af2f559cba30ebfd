"""The data plane: one-way messages from device to device.

Laws (checked for every implementation by `tests/bbgrap/transport/check_transport.py`): messages of one sender to one receiver arrive in
order, once, unchanged and without a gap, or the sender's `on_broken` has been told of the gap before anything arrives that was sent after
it; `send` never waits, and what does not fit into the network goes out by itself, whatever the sender does; `receive` returns at once when
a message or a wake-up is there; only `wake` may be called from another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from bbgrap.protocol.messages import BytesLike


class Arrival(NamedTuple):
    """A message that came: its header and payload, the network address of the sender for log lines, and who it is.

    `peer` is the fingerprint of the certificate that the sender has shown, "" on a plane without any.
    """

    header: BytesLike
    payload: BytesLike
    sender: str = "a peer"
    peer: str = ""


Admit = Callable[[BytesLike, int, str], bool]
"""Whether a message with this header may have a payload of so many bytes from this peer."""

OnBroken = Callable[[str, str], None]
"""Told the address and the reason when messages to an address may have been lost, or none can be sent; what waited for it is forgotten.

It is called from a thread of the data plane, and must neither wait nor raise.
"""


def nobody_listens(address: str, reason: str) -> None:
    """Do nothing about a broken connection."""


def rest_of(pieces: Sequence[BytesLike], sent: int) -> list[BytesLike]:
    """Return what is left of a message, given in pieces, of which so many bytes have been sent."""
    rest: list[BytesLike] = []
    for piece in pieces:
        if sent >= len(piece):
            sent -= len(piece)
        else:
            rest.append(memoryview(piece)[sent:])
            sent = 0
    return rest


class DataPlane(Protocol):
    """What executors need of a transport."""

    address: str
    """Where others reach this one."""

    admit: Admit
    """Asked before memory is taken for a large payload; the payload of a message that is refused is read and forgotten."""

    on_broken: OnBroken
    """Set before the first `connect`. It is told when a connection broke that had carried messages, when none can be made for a second
    (and again every 5 s), and when an address takes nothing while ever more waits for it."""

    def connect(self, address: str, fingerprint: str = "") -> None:
        """Make `send` to an address possible, if that peer is there; calls are counted.

        Who called last says which peer it is; what was sent to another one is lost, which `on_broken` is told.
        """

    def disconnect(self, address: str) -> None:
        """Undo one `connect`; what is queued after the last one may be lost."""

    def allow(self, fingerprints: Iterable[str]) -> None:
        """Let these peers connect to this plane, and cut off all others at once; planes without certificates let everybody."""

    def send(self, address: str, header: BytesLike, *payload: BytesLike) -> None:
        """Send a message whose payload is given in pieces; they are kept until they are sent, and must not change any more.

        To an address that nobody has connected to it is lost.
        """

    def round_trip_s(self, address: str) -> float:
        """Return how many seconds packets take to an address and back, from any thread; 0: it has not taken a connection, or is here."""

    def receive(self, timeout_s: float | None, spin_s: float = 0.0) -> Arrival | None:
        """Return the next message; None after the timeout (None: never; 0: at once) or a wake-up.

        For the first `spin_s` seconds it waits busily: a core that has gone to sleep takes longer to wake than a message travels.
        """

    def wake(self) -> None:
        """Make `receive` return; from any thread."""

    def close(self) -> None:
        """Close everything; what is queued has a fraction of a second to go out."""
