"""A whole coordinator: opens the sockets, handles signals, and serves until it is stopped."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

import zmq

from bbgrap.control.coordinator import CoordinatorMachine
from bbgrap.control.coordinator_events import Settings
from bbgrap.protocol.addresses import host_of
from bbgrap.protocol.version import VERSION
from bbgrap.transport.control import ControlServer, check_address
from bbgrap.transport.exit_with_parent import exit_with_parent
from bbgrap.transport.tcp import TcpDataPlane
from bbgrap_coordinator.models import ModelStore
from bbgrap_coordinator.server import Prepare, Server

_log = logging.getLogger("bbgrap.coordinator")


def serve(
    bind: str,
    *,
    prepare: Prepare,
    data_port: int = 0,
    advertise: str = "",
    state_dir: Path | None = None,
    ready_file: Path | None = None,
    until_eof: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT; `prepare` plans models.

    Raises:
        UsageError: if an address cannot be listened on.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        control = ControlServer(context, check_address(bind))
        host = host_of(check_address(bind))
        # Listening everywhere, no single address is right for all: agents put in the one they joined by.
        everywhere = host in {"*", "0.0.0.0", "[::]"}  # noqa: S104 - compared, not bound
        try:
            plane = TcpDataPlane(f"tcp://{host}:{data_port}", advertise or ("*" if everywhere else host))
        except BaseException:
            control.close()
            raise
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        state = state_dir or home / "bbgrap" / "coordinator"
        models = ModelStore(state / "models")
        # Epochs of an earlier coordinator may still be in the network: start above them.
        settings = Settings(VERSION, plane.address, control.channels.name, first_epoch=time.time_ns() // 1_000_000)
        machine = CoordinatorMachine(settings, models.stored())
        server = Server(control, plane, machine, models, prepare)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.stop())
        if until_eof:
            exit_with_parent(server.stop)
        _log.info("coordinator at %s, data plane at %s", control.address, plane.address)
        if ready_file is not None:
            draft = ready_file.with_suffix(".part")
            draft.write_text(control.address)
            draft.replace(ready_file)
        server.run()
    finally:
        context.term()
