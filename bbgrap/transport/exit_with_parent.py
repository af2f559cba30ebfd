"""Children that do not outlive their parent: a child stops when its standard input, a pipe from the parent, ends.

The kernel closes the pipe however the parent dies. (A parent-death signal would follow the *thread* that started the child.)
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable


def exit_with_parent(stop: Callable[[], None]) -> None:
    """Call `stop`, from another thread, when standard input ends."""

    def watch() -> None:
        # The bare descriptor: `sys.stdin` holds a lock that the interpreter wants at its end.
        while os.read(0, 4096):
            pass
        stop()

    threading.Thread(target=watch, name="exit-with-parent", daemon=True).start()
