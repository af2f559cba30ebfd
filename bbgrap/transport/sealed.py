"""Memory that two processes of one user share, sealed so that nobody can make it smaller under the other's feet.

It is passed over a local socket with a name of the abstract kind, so nothing of it is in a file system, and nothing is left behind however
a process ends. Such names belong to a network namespace, as addresses do.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import struct

from bbgrap.errors import RemoteProtocolError

TOKEN_BYTES = 16
"""What comes with a memory, and names it."""
WELCOME = b"welcome"
"""What whoever took a memory answers."""


def is_possible() -> bool:
    """Whether this system can share memory so."""
    return hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS") and hasattr(socket, "SO_PEERCRED")


def listen_at(name: str) -> socket.socket | None:
    """Return what listens for memory at a name; None if the name is taken or the system has no such thing."""
    if not is_possible():
        return None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(f"\0{name}".encode())
        listener.listen()
    except OSError:
        listener.close()
        return None
    listener.setblocking(False)
    return listener


def offer_memory(name: str, token: bytes, size: int, purpose: str) -> tuple[socket.socket, mmap.mmap] | None:
    """Make memory and offer it to who listens at a name on this machine; None if nobody does, or not of this user.

    In a process's memory map it is `memfd:bbgrap-PURPOSE`.
    """
    if not name or not is_possible():
        return None
    with contextlib.ExitStack() as stack:
        try:
            connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            connection.setblocking(False)
            connection.connect(f"\0{name}".encode())
            if not is_same_user(connection):
                return None
            descriptor = os.memfd_create(f"bbgrap-{purpose}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            stack.callback(os.close, descriptor)
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            memory = mmap.mmap(descriptor, size)
            socket.send_fds(connection, [token], [descriptor])
        except (OSError, ValueError):  # another machine or container, no memory: everything works without
            return None
        stack.pop_all().pop_all()
        os.close(descriptor)
        return connection, memory


def accept_memory(connection: socket.socket, size: int) -> tuple[bytes, mmap.mmap]:
    """Take what is offered first over a connection; return its token and the memory.

    Raises:
        RemoteProtocolError: if it is nothing that can be used safely.
        BlockingIOError: if nothing is there.
    """
    try:
        token, descriptors, _, _ = socket.recv_fds(connection, TOKEN_BYTES + 1, 2)
    except BlockingIOError:
        raise
    except OSError as error:
        raise RemoteProtocolError(f"shared memory: {error.strerror}") from error
    try:
        if len(token) != TOKEN_BYTES or len(descriptors) != 1:
            raise RemoteProtocolError(f"shared memory: expected a token and memory, got {len(token)} bytes and {len(descriptors)} files")
        seals = fcntl.fcntl(descriptors[0], fcntl.F_GET_SEALS)
        if not seals & fcntl.F_SEAL_SHRINK or os.fstat(descriptors[0]).st_size != size:
            raise RemoteProtocolError(f"shared memory: expected {size} sealed bytes")
        memory = mmap.mmap(descriptors[0], size)
        connection.send(WELCOME)
    except (OSError, ValueError) as error:
        raise RemoteProtocolError(f"shared memory: expected {size} sealed bytes: {error}") from error
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return token, memory


def is_same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end of a local connection belongs to the user of this one."""
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.geteuid())
