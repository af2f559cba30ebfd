"""The commands as they are installed: Ctrl-C ends them without a traceback from the first moment on.

Importing what a command is made of takes some tenths of a second, and nothing of it is there yet that could report an interrupt.
"""

from __future__ import annotations

import signal
import sys
from importlib import import_module


def bbgrap() -> None:
    """Start the command line."""
    _run("bbgrap.cli.main")


def bbgrap_agent() -> None:
    """Start an agent."""
    _run("bbgrap_agent.main")


def bbgrap_coordinator() -> None:
    """Start a coordinator."""
    _run("bbgrap_coordinator.main")


def _run(module: str) -> None:
    # Where a shell has started this in the background it ignores interrupts, and goes on doing so.
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # an exception in the midst of an import may become any other
    run = import_module(module).run
    try:
        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:  # before the command itself has begun, or after its end
        sys.exit(128 + signal.SIGINT)
