"""Memory that two processes of one machine share, and how one passes it to the other: a client and its coordinator, or two devices.

One makes the memory and offers it over a local socket. The name is of the abstract kind, so nothing of it is in a file system, and
nothing is left behind however a process ends. Laws: both are processes of one user; the memory is sealed, so nobody can make it smaller
under the other's feet.

Only Linux has all of it; elsewhere there is none of it, and connections work without.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import secrets
import socket
import struct
import sys

TOKEN_BYTES = 16
"""Of the word that comes with a memory: whoever offers it was invited with that, over another connection."""
_INVITATION = re.compile(rf"bbgrap-[0-9a-f]{{32}} [0-9a-f]{{{2 * TOKEN_BYTES}}}")


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


def is_invitation(text: str) -> bool:
    """Whether a text is a name that somebody listens at, with a word that only who is invited knows."""
    return _INVITATION.fullmatch(text) is not None


def offer_memory(invitation: str, label: str, nbytes: int, patience_s: float) -> tuple[socket.socket, int]:
    """Make memory and offer it at an invitation; return the connection, and the memory's descriptor.

    Calls of the socket wait so long, 0: not at all.

    Raises:
        OSError: if nobody listens there, or a process of another user, or this system cannot share memory.
    """
    if sys.platform != "linux" or not is_possible():
        raise OSError("shared memory: this system has none")
    name, _, word = invitation.partition(" ")
    with contextlib.ExitStack() as undo:
        connection = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        connection.settimeout(patience_s)
        connection.connect(f"\0{name}".encode())
        if not is_same_user(connection):
            raise PermissionError("the process there belongs to another user")
        memory = make_sealed(label, nbytes)
        undo.callback(os.close, memory)
        socket.send_fds(connection, [bytes.fromhex(word)], [memory])
        undo.pop_all()
    return connection, memory


def receive_memory(connection: socket.socket, word_bytes: int = TOKEN_BYTES) -> tuple[bytes, int] | None:
    """Take a word of so many bytes and the memory that comes with it, by its descriptor; None if something else has come.

    Raises:
        BlockingIOError: if nothing is there.
        OSError: if the connection has ended.
    """
    if sys.platform == "win32":
        raise OSError("shared memory: Windows has none")
    word, descriptors, _, _ = socket.recv_fds(connection, word_bytes + 1, 2)
    if len(word) == word_bytes and len(descriptors) == 1:
        return word, descriptors[0]
    for descriptor in descriptors:
        os.close(descriptor)
    if not word:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    return None


def is_same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end of a local connection belongs to the user of this one."""
    if sys.platform != "linux":
        return False
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.geteuid())
