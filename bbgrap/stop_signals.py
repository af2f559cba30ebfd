"""The signals that ask a process to end in order."""

from __future__ import annotations

import signal


def stop_signals() -> tuple[int, ...]:
    """Return them; that the terminal was closed is one, where there is this signal and the process was not started to outlast it."""
    closed = getattr(signal, "SIGHUP", None)
    return (signal.SIGTERM, signal.SIGINT, *(() if closed is None or signal.getsignal(closed) is signal.SIG_IGN else (closed,)))
