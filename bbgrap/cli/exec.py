"""`bbgrap exec`: a program made for onnxruntime, unmodified, on a cluster."""

from __future__ import annotations

import subprocess
from typing import Annotated

import typer

from bbgrap.cli.options import LocalAgents, Threads, Where, takes, where_is

SETTINGS = {"allow_interspersed_args": False}
"""What follows the program is the program's."""


@takes(where=where_is)
def exec_program(
    program: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python file, or a module's name with -m.", show_default=False)],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="The program's own arguments.", show_default=False)
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="The program is a module's name, as for 'python -m'.")] = False,
    agents: LocalAgents = None,
    threads: Threads = 1,
    *,
    where: Where,
) -> None:
    """Run a Python program in which 'import onnxruntime' gives sessions on the cluster; nothing else about it changes.

    The exit code is the program's. Options of this command stand before the program.

    Example:
        bbgrap exec --agents 2 program.py
        bbgrap exec -m program
    """
    import os
    import sys
    from pathlib import Path

    from bbgrap.errors import UsageError
    from bbgrap.session.connection import COORDINATOR

    if not module and not Path(program).exists():
        raise UsageError(f"program '{program}': there is no such file; a module's name takes -m before it")
    command = [sys.executable, "-m", "bbgrap.onnxruntime", *(["-m"] if module else []), program, *(arguments or ())]
    with where.open(agents, threads) as connection:
        process = subprocess.Popen(command, env={**os.environ, COORDINATOR: connection.address, **connection.credentials.environment()})
        code = _wait(process)
    raise typer.Exit(code if code >= 0 else 128 - code)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Return a program's status once it has ended; who ends this command ends it, too."""
    import signal

    def stop(number: int, _: object) -> None:
        process.send_signal(number)

    # Ctrl-C reaches the program by itself: they share a terminal.
    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN), signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
