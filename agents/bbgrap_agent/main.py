"""The command `bbgrap-agent`: one agent on this machine, until it is stopped."""

from __future__ import annotations

import logging
import math
import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bbgrap.errors import BbgrapError, UsageError
from bbgrap.observing.logs import LogFormat, name_node, write_logs
from bbgrap.own_process import open_closed_streams, stop_signals
from bbgrap.protocol.addresses import host_of
from bbgrap.settings.options import SettingsCommand, Version
from bbgrap.user_folders import cache_folder
from bbgrap_agent.worker_settings import DEFAULT_CACHE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bbgrap.cluster.types import NodeProfile
    from bbgrap_agent.own_address import AddressWatch

_log = logging.getLogger("bbgrap.agent")


def main(
    join: Annotated[
        str, typer.Option(help="The coordinator: tcp://HOST:PORT, or mdns: the one that announces itself.", envvar="BBGRAP_COORDINATOR")
    ],
    name: Annotated[
        str, typer.Option(help="A name of its own in the cluster; default: the host's, with -2, -3 ... for further agents.")
    ] = "",
    threads: Annotated[int, typer.Option(min=0, help="Threads that compute; 0: one per core it may use.")] = 0,
    profile: Annotated[Path | None, typer.Option(help="A measured or hand-written profile of this machine.")] = None,
    core: Annotated[int | None, typer.Option(min=0, help="Use this core only.")] = None,
    cores: Annotated[str, typer.Option(help="Use these cores only, for example 0,2-3.")] = "",
    cache_dir: Annotated[Path | None, typer.Option(help="Where weights are kept; default ~/.cache/bbgrap/agent.")] = None,
    cache_size: Annotated[
        int, typer.Option(min=1, metavar="MIB", help="What weights may take on disk, in MiB; the least lately used make room.")
    ] = DEFAULT_CACHE_BYTES >> 20,
    advertise: Annotated[str, typer.Option(help="The host name or address other machines reach this one by.")] = "",
    data_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the data plane; 0: a free one.")] = 0,
    state_memory: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="MIB",
            help="What the state of sequences may take, in MiB; the least lately used makes room. 0: a quarter of all.",
        ),
    ] = 0,
    compiling: Annotated[
        bool, typer.Option("--compile/--no-compile", envvar="BBGRAP_COMPILE", help="Adapt what is deployed to this machine's CPU.")
    ] = True,
    token_file: Annotated[
        Path | None, typer.Option(envvar="BBGRAP_TOKEN_FILE", help="A token of role agent, for the first contact; or set BBGRAP_TOKEN.")
    ] = None,
    keys_dir: Annotated[Path | None, typer.Option(help="Where this node's own key is kept; default ~/.config/bbgrap/keys.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Join a coordinator that runs with --insecure: nothing is encrypted.")
    ] = False,
    until_eof: Annotated[bool, typer.Option(help="Stop when standard input ends.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="More about what happens.")] = False,
    log_format: Annotated[
        LogFormat, typer.Option(envvar="BBGRAP_LOG_FORMAT", help="Lines of the log as text, or as JSON, an object a line.")
    ] = LogFormat.TEXT,
    debug: Annotated[bool, typer.Option(help="Tracebacks of errors.")] = False,
    version: Version = False,
) -> None:
    """Join a coordinator and compute for it."""
    os.umask(0o077)
    write_logs(log_format, verbose=verbose)
    if chosen := parse_cores(cores) if cores else {core} if core is not None else set():
        pin(chosen)
    # Here and not above: `--help` must be quick.
    import zmq

    from bbgrap.doctor.local_facts import warn_of_packages
    from bbgrap.transport.control_client import ControlClient
    from bbgrap.transport.control_sockets import check_address, check_host
    from bbgrap.transport.credentials import Credentials
    from bbgrap.transport.discovery import MDNS, discover
    from bbgrap.transport.process import exit_with_parent
    from bbgrap.transport.tcp import listen_at
    from bbgrap_agent.agent import Agent
    from bbgrap_agent.enrolment import KeyFile, enrol, keys_folder
    from bbgrap_agent.own_address import own_host
    from bbgrap_agent.own_name import OwnName, checked_name
    from bbgrap_agent.worker_settings import WorkerSettings

    agents: list[Agent] = []
    stops: list[str] = []

    def stop(reason: str) -> None:
        stops.append(reason)
        if not agents:
            os._exit(0)
        agents[0].stop(reason)

    # From the start: this may wait for a coordinator for long, and the first process of a container ignores what it has no handler for.
    for number in stop_signals():
        signal.signal(number, lambda received, _: stop(signal.Signals(received).name))
    if until_eof:
        exit_with_parent(lambda: stop("its parent ended"))
    credentials = Credentials("", token_file, insecure)
    cache = _made(cache_dir or cache_folder() / "agent")
    own = None if name else OwnName(cache / "names")
    called, keys = checked_name(name) if own is None else own.name, keys_dir or keys_folder()
    address = discover(lambda at: KeyFile(keys, at, called).read() or credentials.lock(at)) if join == MDNS else check_address(join)
    check_host(advertise, "--advertise")
    name_node(called)
    warn_of_packages(_log)
    if credentials.is_insecure():
        _log.warning("insecure: this node believes whoever answers at %s, and what it computes travels unencrypted", address)
    given = None if profile is None else _profile(profile)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def serve(host: str, watch: AddressWatch | None) -> str:
        settings = WorkerSettings(
            name=called,
            threads=threads,
            host=host,
            coordinator_host=host_of(address),
            cache_dir=str(cache),
            cache_bytes=cache_size << 20,
            compiling=compiling,
            verbose=verbose,
            state_bytes=state_memory << 20,
        )
        # Held here, so that the data plane keeps its address when a worker ends.
        with listen_at(f"tcp://{own_host(host)}:{data_port}") as listener:
            enrolment = enrol(address, credentials, called, KeyFile(keys, address, called))
            control = ControlClient(context, address, enrolment.find_lock, closed_before_sure=math.inf)
            agent = Agent(control, listener, settings, given, enrolment.identity, watch)
            agents.append(agent)
            _log.info("agent '%s' joins %s, data plane at port %d", called, address, listener.getsockname()[1])
            try:
                return agent.run()
            finally:
                agents.clear()

    try:
        if fault := serve(advertise, None) if advertise else _serve_where_it_is(address, serve, stops):
            raise BbgrapError(fault)
    finally:
        if own is not None:
            own.close()
        context.term()


def _serve_where_it_is(address: str, serve: Callable[[str, AddressWatch], str], stops: Sequence[str]) -> str:
    """Serve at this machine's address, and anew at each that it gets instead, until there is a fault or a reason to stop."""
    from bbgrap_agent.own_address import AddressWatch, own_address

    host = own_address(address)
    while True:
        watch = AddressWatch(address, host)
        fault = serve(host, watch)
        if fault or stops or not watch.found:
            return fault
        _log.info("this machine had the address %s and has %s: the agent begins anew", host, watch.found)
        host = watch.found


def _profile(file: Path) -> NodeProfile:
    from bbgrap.cluster.files import read_profile  # it brings a reader of YAML

    return read_profile(file)


def _made(folder: Path) -> Path:
    """Return a folder that is there, and can be written to.

    Raises:
        BbgrapError: if it cannot be made or written to now; that may pass.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BbgrapError(f"cache folder {folder}: {error.strerror}; choose another with --cache-dir or BBGRAP_CACHE_DIR") from error
    return folder


def parse_cores(text: str) -> set[int]:
    """Return the cores of a list like `0,2-3`.

    Raises:
        UsageError: if it is none.
    """
    chosen: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
            raise UsageError(f"cores: expected a list like 0,2-3, got '{text}'")
        chosen.update(range(int(first), int(last or first) + 1))
    return chosen


def pin(cores: set[int]) -> None:
    """Bind this process, with all threads to come, to some cores.

    Raises:
        UsageError: if this process may not use them, or the system has no such thing.
    """
    try:
        if not hasattr(os, "sched_setaffinity"):
            raise ValueError("only Linux can")
        os.sched_setaffinity(0, cores)
    except (OSError, ValueError, OverflowError) as error:
        raise UsageError(f"cores: this process cannot be bound to {sorted(cores)}: {error}") from error


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]})
app.command(cls=SettingsCommand)(main)


def run() -> None:
    """Start the command line."""
    open_closed_streams()
    app(prog_name="bbgrap-agent")


if __name__ == "__main__":
    run()
