"""What processes of a cluster ask of their system: many descriptors, and to end with their parent."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress


def allow_many_descriptors() -> None:
    """Have the system's limit be the one that it would grant: strangers who knock take a descriptor each, for a moment."""
    with suppress(ImportError, OSError, ValueError):
        import resource  # not on every system

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def granted_descriptors() -> int:
    """Return how many descriptors the system lets this process have; where it does not say, as many as anybody wants."""
    if sys.platform != "win32":
        with suppress(ImportError):
            import resource  # not on every system

            return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20


def exit_with_parent(stop: Callable[[], None]) -> None:
    """Call `stop`, from another thread, when standard input, a pipe from the parent, ends.

    The kernel closes the pipe however the parent dies. (A parent-death signal would follow the *thread* that started the child.)
    """

    def watch() -> None:
        # The bare descriptor: `sys.stdin` holds a lock that the interpreter wants at its end.
        while os.read(0, 4096):
            pass
        stop()

    threading.Thread(target=watch, name="exit-with-parent", daemon=True).start()
