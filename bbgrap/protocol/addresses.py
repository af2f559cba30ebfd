"""The form of addresses: `tcp://HOST:PORT`."""

from __future__ import annotations


def split_address(address: str) -> tuple[str, str]:
    """Return host and port; the scheme may be left out. Without a colon the host is empty."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host, port


def host_of(address: str) -> str:
    """Return the host."""
    return split_address(address)[0]
