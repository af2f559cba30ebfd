"""The form of addresses: `tcp://HOST:PORT`; with `#FINGERPRINT` they are places, where one node is and no other."""

from __future__ import annotations

from collections.abc import Sequence

ALL_ADDRESSES = frozenset({"*", "0.0.0.0", "[::]"})  # noqa: S104 - compared, not bound
"""Hosts that stand for every address of this machine, where something listens."""

_NAMED = 3
"""So many peers a text names. Chosen."""


def split_address(address: str) -> tuple[str, str]:
    """Return host and port; the scheme may be left out. Without a colon the host is empty."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host, port


def host_of(address: str) -> str:
    """Return the host."""
    return split_address(address)[0]


def apart_text(peers: Sequence[tuple[str, str]], own_address: str) -> str:
    """Return what a node does that got no answer from peers (names and addresses), and what may be wrong.

    The answer may be lost as well as the question.
    """
    named = ", ".join(f"'{name}' at {address}" for name, address in peers[:_NAMED])
    others = f" and {len(peers) - _NAMED} more" if len(peers) > _NAMED else ""
    why = "are both data ports open, and both addresses those that others reach them by (--advertise)?"
    return f"does not reach {named}{others}, or is not reached by {'it' if len(peers) == 1 else 'them'} at {own_address}: {why}"


def place_of(address: str, fingerprint: str) -> str:
    """Return one text for an address and who is there; that of a plain data plane is the address itself."""
    return f"{address}#{fingerprint}" if fingerprint else address


def split_place(place: str) -> tuple[str, str]:
    """Undo `place_of`."""
    address, _, fingerprint = place.partition("#")
    return address, fingerprint
