"""Network namespaces as hosts (root, Linux)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def two_hosts(addresses: Mapping[str, str], limits: Mapping[str, tuple[str, ...]]) -> Iterator[None]:
    """Two namespaces with an address each, by name, and a link between them; `limits` is what `tc tbf` takes of what a host sends."""
    if os.geteuid() != 0:
        pytest.fail("network namespaces need root")
    first, second = addresses
    try:
        for host in addresses:
            ip("netns", "add", host)
        ip("link", "add", "eth0", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", second)
        for host, address in addresses.items():
            ip("-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", host, "link", "set", "lo", "up")
            ip("-n", host, "link", "set", "eth0", "up")
        for host, limit in limits.items():
            subprocess.run(["tc", "-n", host, "qdisc", "add", "dev", "eth0", "root", "tbf", *limit], check=True, capture_output=True)
        yield
    finally:
        for host in addresses:
            subprocess.run(["ip", "netns", "del", host], check=False, capture_output=True)
