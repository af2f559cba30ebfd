"""`bbgrap top`: requests per second, percentiles and nodes, live in the terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated

import typer

from bbgrap.cli.options import Where, takes, where_is
from bbgrap.cli.output import columns, print_result
from bbgrap.errors import ClusterUnavailableError, UsageError
from bbgrap.own_process import stop_signals

if TYPE_CHECKING:
    from bbgrap.protocol.status_messages import Status
    from bbgrap.session import Connection

_ANSWERS_WITHIN_S = 2.0
"""After this long a coordinator counts as away."""


@takes(where=where_is)
def top(
    where: Where,
    every: Annotated[float, typer.Option(min=0.1, max=86_400, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print what happens within that time, and end.")] = False,
) -> None:
    """Watch a cluster: requests per second, percentiles, queues, what serves, nodes, events. Ctrl-C ends it.

    Example:
        bbgrap top --coordinator tcp://head:7070 --once
    """
    import signal
    import time

    from bbgrap.observing.rates import rates_between
    from bbgrap.observing.text import top_text

    if not once and not sys.stdout.isatty():
        raise UsageError("top: this is no terminal; give --once, or use 'bbgrap status --json'")
    with where.open() as cluster:
        if once:
            before = cluster.status()
            time.sleep(every)
            now = cluster.status()
            print_result(top_text(now, rates_between(before, now), columns()))
            return
        # Not an event of `threading`: a signal that comes while that is waited for would wait for its lock, for ever.
        ended = SimpleQueue[None]()

        def end(number: int, frame: object) -> None:
            ended.put(None)
            signal.signal(number, signal.default_int_handler)  # who asks again is not made to wait

        # Not by an exception: where it came up, it could be lost. The terminal is left as it was.
        for number in stop_signals():
            signal.signal(number, end)
        _watch(cluster, every, ended)


def _watch(cluster: Connection, every: float, ended: SimpleQueue[None]) -> None:
    """Show what happens until something is in `ended`, whether the coordinator is there or not: the connection outlasts it."""
    import time

    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from bbgrap.observing.rates import rates_between
    from bbgrap.observing.text import age_text, top_text

    console = Console(file=sys.stdout)
    before: Status | None = None
    shown, seen = "", time.monotonic()
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while ended.empty():
                now = _look(cluster)
                if now is not None:
                    shown, seen = top_text(now, rates_between(before, now), console.width, console.height), time.monotonic()
                    before = now
                away = f"the coordinator has not answered for {age_text(time.monotonic() - seen)}; trying until it does\n"
                live.update(Text(shown if now is not None else away + shown), refresh=True)
                with suppress(Empty):
                    return ended.get(timeout=every)
    except KeyboardInterrupt:
        pass


def _look(cluster: Connection) -> Status | None:
    """Return how a cluster is; None: its coordinator is away."""
    try:
        return cluster.status(timeout_s=_ANSWERS_WITHIN_S)
    except (TimeoutError, ClusterUnavailableError):
        return None
