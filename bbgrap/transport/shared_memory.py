"""Memory that two processes of one machine share, and how one passes it to the other: a client and its coordinator, or two devices.

One makes the memory and offers it over a local socket. The name is of the abstract kind, so nothing of it is in a file system, and
nothing is left behind however a process ends. Laws: both are processes of one user; the memory is sealed, so nobody can make it smaller
under the other's feet.

Only Linux has all of it; elsewhere there is none of it, and connections work without.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import socket
import struct
import sys
from collections.abc import Callable

from bbgrap.errors import RemoteProtocolError

HALF_BYTES = 128 << 20
"""What one side may have on its way. Chosen: a reader of text answers 58 MB for six lines, while its user may still have the last answer.

Memory is taken only as it is used.
"""
TOKEN_BYTES = 16
"""What comes with a memory: the word that its client was invited with, over its own connection."""
WELCOME = b"welcome"
"""What the coordinator answers when it has the memory."""


def is_possible() -> bool:
    """Whether this system can share memory so."""
    if sys.platform == "linux":
        with contextlib.suppress(ImportError):
            import fcntl

            return hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS") and hasattr(socket, "SO_PEERCRED")
    return False


def listen() -> tuple[str, socket.socket] | None:
    """Return a new name on this machine and the socket that listens there; None if the system has no such thing."""
    if sys.platform != "linux" or not is_possible():
        return None
    name = f"bbgrap-{secrets.token_hex(16)}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(f"\0{name}".encode())
        listener.listen()
    except OSError:
        listener.close()
        return None
    listener.setblocking(False)
    return name, listener


def make_memory(label: str) -> int | None:
    """Return the descriptor of new memory, an empty file that no name leads to; None where the system has no such thing, or forbids it.

    Sandboxes do (seccomp), and systems on which nothing in memory may be run (vm.memfd_noexec=2).
    """
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError, AttributeError):
        return os.memfd_create(label)
    return None


def make_sealed(label: str, nbytes: int) -> int:
    """Return the descriptor of new memory whose size nobody can change; the label is for those who look at a process.

    Raises:
        OSError: if there is none.
    """
    if sys.platform != "linux":
        raise OSError("shared memory: only Linux has it")
    import fcntl

    descriptor = os.memfd_create(label, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, nbytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def map_sealed(descriptor: int, nbytes: int) -> mmap.mmap:
    """Map memory that somebody else has made.

    Raises:
        ValueError: if it is not of this size, or its size may change.
        OSError: if it is no memory at all, or cannot be mapped.
    """
    if sys.platform != "linux":
        raise OSError("shared memory: only Linux has it")
    import fcntl

    seals, size = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS), os.fstat(descriptor).st_size
    if not seals & fcntl.F_SEAL_SHRINK or size != nbytes:
        raise ValueError(f"got {size} bytes with seals {seals}")
    return mmap.mmap(descriptor, nbytes)


def connect_local(name: str, patience_s: float) -> socket.socket:
    """Connect to who listens at a name on this machine; later calls of the socket wait so long, 0: not at all.

    Raises:
        OSError: if nobody does, or a process of another user.
    """
    if sys.platform != "linux":
        raise OSError("shared memory: only Linux has it")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(patience_s)
        connection.connect(f"\0{name}".encode())
        if not is_same_user(connection):
            raise PermissionError("the process there belongs to another user")
    except OSError:
        connection.close()
        raise
    return connection


def offer_memory(name: str, token: bytes) -> tuple[socket.socket, mmap.mmap] | None:
    """Make memory and offer it to who listens at a name on this machine; None if nobody does, or not of this user."""
    if sys.platform != "linux" or not name or not is_possible():
        return None
    with contextlib.ExitStack() as stack:
        try:
            connection = stack.enter_context(connect_local(name, 0.0))
            descriptor = make_sealed("bbgrap-channel", 2 * HALF_BYTES)
            stack.callback(os.close, descriptor)
            memory = mmap.mmap(descriptor, 2 * HALF_BYTES)
            socket.send_fds(connection, [token], [descriptor])
        except (OSError, ValueError):  # another machine or container, no memory: everything works without
            return None
        stack.pop_all().pop_all()
        os.close(descriptor)
        return connection, memory


def accept_memory(connection: socket.socket, is_known: Callable[[bytes], bool]) -> tuple[bytes, mmap.mmap]:
    """Take what is offered first over a connection; return its token, which must be known, and the memory.

    Raises:
        RemoteProtocolError: if it is nothing that can be used safely.
        BlockingIOError: if nothing is there.
    """
    if sys.platform != "linux":
        raise RemoteProtocolError("shared memory: only Linux has it")
    try:
        token, descriptors, _, _ = socket.recv_fds(connection, TOKEN_BYTES + 1, 2)
    except BlockingIOError:
        raise
    except OSError as error:
        raise RemoteProtocolError(f"shared memory: {error.strerror}") from error
    expected = f"shared memory: expected a token of {TOKEN_BYTES} bytes and one file of {2 * HALF_BYTES} sealed bytes"
    try:
        if len(token) != TOKEN_BYTES or len(descriptors) != 1:
            raise RemoteProtocolError(f"{expected}, got {len(token)} bytes and {len(descriptors)} files")
        if not is_known(token):
            raise RemoteProtocolError("shared memory: it was offered by somebody who was not invited")
        memory = map_sealed(descriptors[0], 2 * HALF_BYTES)
        connection.send(WELCOME)
    except (OSError, ValueError) as error:
        raise RemoteProtocolError(f"{expected}, {error}") from error
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return token, memory


def is_same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end of a local connection belongs to the user of this one."""
    if sys.platform != "linux":
        return False
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.geteuid())
