"""Standard streams: those that a process was started without, and what is left in them at its end."""

from __future__ import annotations

import os
import sys


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
