"""A listener that hears some hosts only: what others send to it the kernel drops, before it costs this process anything.

A program of classic BPF on the listening socket compares where each packet comes from (Linux: `man 7 socket`, SO_ATTACH_FILTER; the
kernel's `Documentation/networking/filter.rst`). Connections that are open have sockets of their own: of them nothing is dropped.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress

_ATTACH, _DETACH = 26, 27
"""SO_ATTACH_FILTER and SO_DETACH_FILTER, as most architectures number them; Python does not name them."""
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NETWORK_HEADER = 0xFFF00000
"""Where BPF finds the packet's IP header (SKF_NET_OFF)."""
_SOURCE = {socket.AF_INET: 12, socket.AF_INET6: 8}
"""Bytes before the sender's address in that header."""
_PASS, _DROP = 0xFFFFFFFF, 0
CANNOT_SHUT = (
    "this system does not let this process keep strangers out by the kernel (some want CAP_NET_ADMIN): who is new waits in the crowd"
)
"""What to say where `hear_only` cannot."""


def hear_only(listener: socket.socket, hosts: Collection[str]) -> bool:
    """Let only these hosts, as numeric addresses, reach a listener from now on; return whether this system can do that."""
    if sys.platform != "linux" or listener.family not in _SOURCE:
        return False
    program = b"".join(_program(socket.AddressFamily(listener.family), hosts))
    code = ctypes.create_string_buffer(program, len(program))
    try:
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH, struct.pack("HL", len(program) // 8, ctypes.addressof(code)))
    except OSError:  # not known, not allowed, or too many hosts
        return False
    return True


def hear_all(connection: socket.socket) -> None:
    """Drop nothing any more, at a listener, or at a connection that was accepted meanwhile and has inherited what drops."""
    if sys.platform == "linux":
        with suppress(OSError):  # nothing is attached
            connection.setsockopt(socket.SOL_SOCKET, _DETACH, 0)


def _program(family: socket.AddressFamily, hosts: Collection[str]) -> Iterator[bytes]:
    """Yield instructions: per host as many comparisons as its address has words, of which the first that differs leads to the next host."""
    for host in sorted(hosts):
        of = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            address = socket.inet_pton(of, host.partition("%")[0])
        except OSError:  # none
            continue
        if family is socket.AF_INET and of is not family:  # the other way round: a listener may take both
            continue
        words = struct.unpack(f">{len(address) // 4}I", address)
        for number, word in enumerate(words):
            yield _instruction(_LOAD_WORD, _NETWORK_HEADER + _SOURCE[of] + 4 * number)
            yield _instruction(_JUMP_IF_EQUAL, word, otherwise=2 * (len(words) - number) - 1)
        yield _instruction(_RETURN, _PASS)
    yield _instruction(_RETURN, _DROP)


def _instruction(code: int, operand: int, *, otherwise: int = 0) -> bytes:
    """Return a `struct sock_filter`; a comparison goes on with the next one, or skips `otherwise` ones."""
    return struct.pack("HBBI", code, 0, otherwise, operand)
