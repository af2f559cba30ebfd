"""`bbgrap up`: a cluster on the machines of a file, over ssh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bbgrap.cli.options import Json, TokenFile
from bbgrap.cli.output import print_json, print_table, say, step
from bbgrap.errors import UsageError

if TYPE_CHECKING:
    from bbgrap.launching.hosts import HostsFile
    from bbgrap.launching.launch import HostState, Launch


class Action(Enum):
    """What to do with the hosts."""

    START = "start"
    STATUS = "status"
    STOP = "stop"
    LOGS = "logs"


def up(
    file: Annotated[Path, typer.Argument(metavar="HOSTS.yaml", help="Which hosts, and how to reach them.", show_default=False)],
    action: Annotated[Action, typer.Argument(help="start what does not run, say its status, stop all, or print logs.")] = Action.START,
    hosts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[HOST]...", help="These only, 'coordinator' among them; default: all.", show_default=False),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Start nothing; try whether each host can be reached and has this bbgrap.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="With logs of one host: go on until interrupted.")] = False,
    lines: Annotated[int, typer.Option(min=0, help="With logs: how many lines.")] = 50,
    timeout: Annotated[float, typer.Option(min=0, help="With start: how many seconds agents have to join.")] = 60.0,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Start, look at and stop a cluster on other machines, by the ssh command.

    What is started outlives the connection and this command; what runs already is left as it is, so `up` after a failure starts what is
    missing, and says which hosts run otherwise than the file says by now. The token is for a coordinator that runs already. Exit code 0
    only if all is as it shall be.

    Example:
        bbgrap up hosts.yaml
    """
    from bbgrap.launching.hosts import read_hosts
    from bbgrap.launching.launch import Launch

    if check and action is not Action.START:
        raise UsageError(f"expected --check or {action.value}, got both")
    if follow and action is not Action.LOGS:
        raise UsageError("-f is for logs")
    found = read_hosts(file)
    launch = Launch(found, hosts or (), token_file)
    if follow:
        _follow(found, hosts or (), lines)
        return
    if action is Action.LOGS:
        _logs(launch, lines)
        return
    states = _done(launch, action, check, timeout)
    faults = [state for state in states if state.fault]
    if as_json:
        print_json([asdict(state if state.fault else replace(state, log=())) for state in states])
    else:
        columns = ("name", "host", "process", "pid", "bbgrap" if check else "in the cluster", "fault")
        print_table(columns, [(s.name, s.where, s.process, str(s.pid) if s.pid else None, s.cluster, s.fault) for s in states])
        for state in faults:
            if state.log:
                say("\n".join([f"the end of the log of '{state.name}' at {state.where}:", *(f"    {line}" for line in state.log)]))
        if action is Action.START and not check and not faults:
            say(f"use it: export BBGRAP_COORDINATOR={found.coordinator.address}; tokens for clients: bbgrap token create NAME, beside it")
    if faults:
        raise typer.Exit(1)


def down(
    file: Annotated[Path, typer.Argument(metavar="HOSTS.yaml", help="The file that 'bbgrap up' had.", show_default=False)],
    hosts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[HOST]...", help="These only, 'coordinator' among them; default: all.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Stop what 'bbgrap up' has started on other machines: the agents, then the coordinator.

    Exit code 0 only if nothing of it runs any more.

    Example:
        bbgrap down hosts.yaml
    """
    up(file, Action.STOP, hosts, as_json=as_json)


def _done(launch: Launch, action: Action, check: bool, timeout: float) -> list[HostState]:
    if check:
        with step("trying the hosts"):
            return launch.check()
    match action:
        case Action.STATUS:
            return launch.status()
        case Action.STOP:
            with step("stopping"):
                return launch.stop()
        case Action.START | Action.LOGS:
            with step("starting") as progress:
                return launch.start(timeout, progress.update)


def _logs(launch: Launch, lines: int) -> None:
    """Print the ends of all logs; whose cannot be had is told at the end."""
    from bbgrap.cli.output import print_result

    states = launch.logs(lines)
    for state in states:
        if len(states) > 1 and not state.fault:
            print_result(f"==> {state.name} at {state.where} <==")
        for line in state.log:
            print_result(line)
    faults = [state for state in states if state.fault]
    for state in faults:
        say(f"'{state.name}' at {state.where}: {state.fault}")
    if faults:
        raise typer.Exit(1)


def _follow(file: HostsFile, names: Sequence[str], lines: int) -> None:
    from bbgrap.launching.ssh import follow

    own = file.coordinator.host
    chosen = [host for host in (*([own] if own else []), *file.hosts) if not names or host.name in names]
    if len(chosen) != 1:
        raise UsageError("logs -f: expected one host, as in 'bbgrap up hosts.yaml logs left -f'")
    if follow(chosen[0], file.cluster, file.ssh_config, lines) != 0:
        raise typer.Exit(1)
