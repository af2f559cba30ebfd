"""Standard streams that a process was started without."""

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
