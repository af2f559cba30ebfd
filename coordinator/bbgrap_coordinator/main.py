"""The command `bbgrap-coordinator`: registers agents, plans, deploys and dispatches, until it is stopped."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from bbgrap.errors import BbgrapError, UsageError
from bbgrap.observing.logs import LogFormat, write_logs
from bbgrap.own_process import keep_freed, open_closed_streams
from bbgrap.settings.options import SettingsCommand, Version


class DataPlaneMode(Enum):
    """How tensors travel."""

    TLS = "tls"
    PLAIN = "plain"


def main(
    bind: Annotated[str, typer.Option(help="Where to listen: tcp://HOST:PORT; port 0 takes a free one.")] = "tcp://127.0.0.1:7070",
    data_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the data plane; 0: that of the last time if it is free, else another.")
    ] = 0,
    advertise: Annotated[str, typer.Option(help="The host name or address agents reach this machine by.")] = "",
    announces: Annotated[
        bool, typer.Option("--announce", help="Be found on the local network by --join mdns and --coordinator mdns (extra mdns).")
    ] = False,
    state_dir: Annotated[Path | None, typer.Option(help="Where models and plans are kept; default ~/.cache/bbgrap/coordinator.")] = None,
    state_size: Annotated[
        int,
        typer.Option(min=2, metavar="MIB", help="What models and plans may take on disk, in MiB, half each; the oldest make room."),
    ] = 65536,
    ready_file: Annotated[Path | None, typer.Option(help="Write the address to this file once it can be used.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Without keys: anybody who reaches the address may use and join the cluster.")
    ] = False,
    data_plane: Annotated[
        DataPlaneMode,
        typer.Option(help="How tensors travel: tls, or plain where the network is private by other means; keys stay needed in both."),
    ] = DataPlaneMode.TLS,
    verify_fraction: Annotated[
        float, typer.Option(min=0, max=1, help="The part of the requests that runs again on other nodes, to find wrong answers.")
    ] = 0.0,
    until_eof: Annotated[bool, typer.Option(help="Stop when standard input ends.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="More about what happens.")] = False,
    log_format: Annotated[
        LogFormat, typer.Option(envvar="BBGRAP_LOG_FORMAT", help="Lines of the log as text, or as JSON, an object a line.")
    ] = LogFormat.TEXT,
    debug: Annotated[bool, typer.Option(help="Tracebacks of errors.")] = False,
    version: Version = False,
) -> None:
    """Coordinate agents."""
    os.umask(0o077)  # what is kept, by this process and its children, is its user's alone
    write_logs(log_format, verbose=verbose)
    from bbgrap.transport.control_sockets import check_address, check_host
    from bbgrap_coordinator.planning import PlanningQueues
    from bbgrap_coordinator.service import serve

    try:
        check_address(bind)
        check_host(advertise, "--advertise")
    except UsageError as error:  # unlike what may be in use by others, it stays wrong however often this is started
        raise typer.BadParameter(str(error)) from None
    try:
        with PlanningQueues() as planners:
            serve(
                bind,
                planners=planners,
                data_port=data_port,
                advertise=advertise,
                announces=announces,
                state_dir=state_dir,
                state_bytes=state_size << 20,
                ready_file=ready_file,
                until_eof=until_eof,
                insecure=insecure,
                plain=data_plane is DataPlaneMode.PLAIN,
                verify_fraction=verify_fraction,
            )
    except BbgrapError as error:  # what others use now may be free when this is started again: it is no usage error
        raise BbgrapError(str(error)) from error


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]})
app.command(cls=SettingsCommand)(main)


def run() -> None:
    """Start the command line."""
    open_closed_streams()
    keep_freed()
    app(prog_name="bbgrap-coordinator")


if __name__ == "__main__":
    run()
