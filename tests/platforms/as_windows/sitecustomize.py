"""Python as on Windows, as far as a client of bbgrap is concerned: loaded by every process that has this folder in PYTHONPATH.

`sys.platform` and `os.name` stay: the standard library would look for what is not there.
"""

import _socket
import contextlib
import os
import select
import sys

import psutil  # it is another one on Windows, and this one needs what goes now  # noqa: F401

del _socket.socketpair, _socket.AF_UNIX, _socket.SO_PEERCRED, _socket.TCP_INFO, sys.modules["socket"]
import socket  # the standard library's own way for Windows  # noqa: E402

NOT_THERE = (
    *("memfd_create", "sched_getaffinity", "sched_setaffinity", "set_blocking", "register_at_fork", "fork"),
    *("geteuid", "getuid", "getegid", "getgid", "sysconf", "nice", "fchmod"),
    *("O_NOFOLLOW", "O_CLOEXEC", "O_DIRECTORY", "O_NONBLOCK", "O_PATH"),
)
for name in NOT_THERE:
    delattr(os, name)
for name in ("poll", "epoll"):
    delattr(select, name)
for name in ("send_fds", "recv_fds"):
    delattr(socket, name)
for name in ("fcntl", "resource", "grp", "pwd"):
    sys.modules[name] = None


def _missing(*_: object) -> None:
    raise AttributeError("no such method on Windows")


for name in ("sendmsg", "recvmsg", "recvmsg_into"):
    with contextlib.suppress(AttributeError):
        setattr(socket.socket, name, _missing)
