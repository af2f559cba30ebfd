"""The form of addresses: `tcp://HOST:PORT`; with `#FINGERPRINT` they are places, where one node is and no other."""

from __future__ import annotations

ALL_ADDRESSES = frozenset({"*", "0.0.0.0", "[::]"})  # noqa: S104 - compared, not bound
"""Hosts that stand for every address of this machine, where something listens."""


def split_address(address: str) -> tuple[str, str]:
    """Return host and port; the scheme may be left out. Without a colon the host is empty."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host, port


def host_of(address: str) -> str:
    """Return the host."""
    return split_address(address)[0]


def apart_text(peer: str, address: str, own_address: str) -> str:
    """Return what a node does that got no answer from a peer, and what may be wrong: the answer may be lost as well as the question."""
    why = "are both data ports open, and both addresses those that others reach them by (--advertise)?"
    return f"does not reach '{peer}' at {address}, or is not reached by it at {own_address}: {why}"


def place_of(address: str, fingerprint: str) -> str:
    """Return one text for an address and who is there; that of a plain data plane is the address itself."""
    return f"{address}#{fingerprint}" if fingerprint else address


def split_place(place: str) -> tuple[str, str]:
    """Undo `place_of`."""
    address, _, fingerprint = place.partition("#")
    return address, fingerprint
