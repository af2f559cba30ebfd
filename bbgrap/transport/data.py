"""What comes over the data plane (`bbgrap.transport.tcp`), and what it asks and tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

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
