"""A whole coordinator: reads what an earlier one has left, opens the sockets, handles signals, and serves until it is stopped."""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import zmq

from bbgrap.control.coordinator import CoordinatorMachine
from bbgrap.control.coordinator_events import Settings
from bbgrap.errors import UsageError
from bbgrap.protocol.addresses import host_of
from bbgrap.protocol.version import VERSION
from bbgrap.transport.control import ControlServer, check_address
from bbgrap.transport.descriptors import allow_many_descriptors
from bbgrap.transport.exit_with_parent import exit_with_parent
from bbgrap.transport.identity import Identity
from bbgrap.transport.tcp import TcpDataPlane
from bbgrap_coordinator.artifacts import ArtifactFolders
from bbgrap_coordinator.models import ModelStore
from bbgrap_coordinator.planning import Planners
from bbgrap_coordinator.server import Server
from bbgrap_coordinator.state import State
from bbgrap_coordinator.storage import Storage

_COUNTER_BITS = 32
"""Of an epoch or a job: the rest is the incarnation, so that none is ever used twice."""

_log = logging.getLogger("bbgrap.coordinator")


def serve(
    bind: str,
    *,
    planners: Planners,
    data_port: int = 0,
    advertise: str = "",
    state_dir: Path | None = None,
    ready_file: Path | None = None,
    until_eof: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT; `planners` plan models.

    Raises:
        UsageError: if an address cannot be listened on, or another coordinator uses the state directory.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = state_dir or home / "bbgrap" / "coordinator"
    allow_many_descriptors()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with ExitStack() as stack:
        stack.callback(context.term)
        control = ControlServer(context, check_address(bind))
        stack.callback(control.close)
        state = State(directory)
        folders = ArtifactFolders(directory / "plans")
        storage = Storage(state, folders)
        stack.callback(storage.close)
        models = ModelStore(directory / "models")
        stored = storage.read(models.stored())
        plane = _data_plane(host_of(check_address(bind)), data_port, state.number("data_port"), advertise)
        stack.callback(plane.close)
        state.set_number("data_port", int(plane.address.rpartition(":")[2]))
        settings = Settings(VERSION, plane.address, control.channels.name, first_epoch=state.incarnation << _COUNTER_BITS)
        machine = CoordinatorMachine(settings, stored, time.monotonic())
        server = Server(control, plane, machine, models, planners, storage)
        planners.begin(models, folders, server.report)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.stop())
        if until_eof:
            exit_with_parent(server.stop)
        _log.info("coordinator at %s, data plane at %s, incarnation %d", control.address, plane.address, state.incarnation)
        if ready_file is not None:
            draft = ready_file.with_suffix(".part")
            draft.write_text(control.address)
            draft.replace(ready_file)
        server.run()


def _data_plane(host: str, port: int, last_port: int, advertise: str, identity: Identity | None = None) -> TcpDataPlane:
    """Listen for data, on the port of the last time unless another is wanted: agents that kept their deployments send to it."""
    # Listening everywhere, no single address is right for all: agents put in the one they joined by.
    everywhere = host in {"*", "0.0.0.0", "[::]"}  # noqa: S104 - compared, not bound
    known = advertise or ("*" if everywhere else host)
    if last_port and not port:
        try:
            return TcpDataPlane(f"tcp://{host}:{last_port}", known, identity=identity)
        except UsageError as error:
            _log.info("another port than last time: %s", error)
    return TcpDataPlane(f"tcp://{host}:{port}", known, identity=identity)
