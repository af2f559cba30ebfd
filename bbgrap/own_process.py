"""What every program of this package sees to in its own process: streams, signals, how it starts Python again, what it lacks, keeps."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
from contextlib import suppress

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 32 << 20
"""Chosen: inputs and outputs of a detector."""


def open_closed_streams() -> None:
    """Let nothing come from, and go to, streams that are closed.

    Python has None for them, and the next file or socket would get their descriptor: children and libraries would write into that.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the least descriptor that is free
            os.set_inheritable(opened, True)  # noqa: FBT003,RUF100 - it has no keyword
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if name == "stdin" else "w"))  # noqa: PTH123,SIM115 - a descriptor, for good


def write_out() -> str:
    """Write what standard output still holds; return why that cannot be, empty if it was. What cannot be written is dropped.

    Python itself would try it at the very end, and answer with a remark of its own and the exit code 120.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
        return "" if isinstance(error, BrokenPipeError) else error.strerror or str(error)
    return ""


def not_granted(error: Exception) -> str:
    """Return in words what the system does not grant this process; empty if the error is of another kind."""
    match error:
        case MemoryError():
            return f"no memory is left{f' ({error})' if str(error) else ''}; it may be limited (ulimit -v, a container)"
        case RuntimeError() if "start new thread" in str(error):  # Python has no class for it
            return f"{error}; memory or processes may be limited (ulimit -v, ulimit -u, a container)"
        case Exception() if getattr(error, "errno", None) == errno.EMFILE:  # zmq's is no OSError
            return f"{error}; descriptors are limited (ulimit -Hn, LimitNOFILE= of systemd)"
        case OSError():  # processes, a folder for temporary files
            return str(error)
        case _:
            return ""


def give_back_freed() -> None:
    """Give the system what was freed: glibc keeps it, after loading as much again as the weights (measured: 490 MB of AlexNet's 1,070)."""
    with suppress(AttributeError, OSError, TypeError):  # other systems have no such function, or none that is found so
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed() -> None:
    """Have glibc keep some of what is freed: two copies of a message of 0.6 MB take 0.47 ms in pages that are new each time, else 0.02."""
    with suppress(AttributeError, OSError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES // 2)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def stop_signals() -> tuple[int, ...]:
    """Return the signals that ask a process to end in order.

    That the terminal was closed is one, where there is this signal and the process was not started to outlast it.
    """
    closed = getattr(signal, "SIGHUP", None)
    return (signal.SIGTERM, signal.SIGINT, *(() if closed is None or signal.getsignal(closed) is signal.SIG_IGN else (closed,)))


def python_command() -> list[str]:
    """Return how to start this interpreter, to be followed by `-m` and the name of a module.

    Where this process does not import from the folder it was started in, neither does the other one: a user's `random.py` lies there.
    """
    return [sys.executable, *(() if _imports_from_its_folder() else ("-P",))]


def _imports_from_its_folder() -> bool:
    if "" in sys.path:
        return True
    try:
        return os.getcwd() in sys.path  # noqa: PTH109 - as a text
    except FileNotFoundError:  # it was removed since
        return False
