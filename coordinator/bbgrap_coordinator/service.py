"""A whole coordinator: reads what an earlier one has left, opens the sockets, handles signals, and serves until it is stopped."""

from __future__ import annotations

import logging
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import zmq

from bbgrap.control.coordinator import CoordinatorMachine
from bbgrap.control.coordinator_instructions import Audit
from bbgrap.control.coordinator_settings import Settings
from bbgrap.doctor.checks import is_loopback
from bbgrap.doctor.local_facts import look_up, warn_of_packages
from bbgrap.errors import BbgrapError, UsageError
from bbgrap.own_code import full_version
from bbgrap.own_process import stop_signals
from bbgrap.protocol.addresses import ALL_ADDRESSES, host_of, split_address
from bbgrap.transport.control_server import ControlServer
from bbgrap.transport.control_sockets import check_address
from bbgrap.transport.discovery import announce
from bbgrap.transport.local_tokens import note_token
from bbgrap.transport.memory_broker import start_broker
from bbgrap.transport.process import allow_many_descriptors, exit_with_parent
from bbgrap.transport.tcp import TcpDataPlane
from bbgrap.transport.tls import TlsIdentity
from bbgrap.user_folders import cache_folder
from bbgrap_coordinator.artifacts import ArtifactFolders
from bbgrap_coordinator.audit import AuditLog
from bbgrap_coordinator.input_files import InputFiles
from bbgrap_coordinator.keyring import JOIN, LOCAL, KeyRing
from bbgrap_coordinator.models import ModelStore
from bbgrap_coordinator.no_keys import NoKeys
from bbgrap_coordinator.planning import PlanningQueues
from bbgrap_coordinator.reserve import Reserve
from bbgrap_coordinator.server import Server
from bbgrap_coordinator.state_database import StateDatabase
from bbgrap_coordinator.storage import Storage

_COUNTER_BITS = 32
"""Of an epoch or a job: the rest is the incarnation, so that none is ever used twice."""
NOTED_EVERY_S = 3600.0
"""Where the token is: systems clear folders of temporary files of what is some days old."""

_log = logging.getLogger("bbgrap.coordinator")


def serve(
    bind: str,
    *,
    planners: PlanningQueues,
    data_port: int = 0,
    advertise: str = "",
    announces: bool = False,
    state_dir: Path | None = None,
    state_bytes: int,
    ready_file: Path | None = None,
    until_eof: bool = False,
    insecure: bool = False,
    plain: bool = False,
    verify_fraction: float = 0.0,
) -> None:
    """Serve until a signal asks it to stop; `planners` plan models, and a part of the requests, 0 to 1, is verified on other nodes.

    Models and plans take at most `state_bytes` on disk, each half of it.
    `insecure`: without keys, for everybody. `plain`: with keys, but tensors travel unencrypted, and frames are believed.

    Raises:
        UsageError: if an address cannot be listened on, or another coordinator uses the state directory.
        BbgrapError: if the system grants too few descriptors.
    """
    directory = state_dir or cache_folder() / "coordinator"
    allow_many_descriptors()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with ExitStack() as stack:
        stack.callback(context.term)
        onnxruntime = _onnxruntime()
        state = StateDatabase(_private(directory), reserve := Reserve(directory), f"{full_version()} {onnxruntime}")
        keys = NoKeys() if insecure else KeyRing(_private(directory / "keys") / "keys.json", locks_data=not plain)
        control = ControlServer(context, check_address(bind), keys.lock)
        stack.callback(control.close)
        folders = ArtifactFolders(directory / "plans")
        storage = Storage(state, folders, max_bytes=state_bytes // 2)
        stack.callback(storage.close)
        stack.callback(reserve.hold)  # whatever ends this start, for the next one
        models = ModelStore(directory / "models", max_bytes=state_bytes // 2)
        stored = storage.read(models.stored())
        last_port = state.number("data_port")
        plane = _data_plane(host_of(check_address(bind)), data_port, last_port, advertise, keys.data_identity)
        stack.callback(plane.close)
        if (port := int(plane.address.rpartition(":")[2])) != last_port:
            state.set_number("data_port", port)
        settings = Settings(
            full_version(),
            plane.address,
            first_epoch=state.incarnation << _COUNTER_BITS,
            verify_fraction=verify_fraction,
            verify_key=secrets.token_bytes(32),
            incarnation=state.incarnation,
            started=time.time(),
            fingerprint="" if keys.data_identity is None else keys.data_identity.fingerprint,
            onnxruntime=onnxruntime,
        )
        machine = CoordinatorMachine(settings, stored, time.monotonic())
        audit = AuditLog(directory / "audit.jsonl")
        stack.callback(audit.close)
        server = Server(control, plane, machine, models, planners, storage, audit, InputFiles(directory), keys)
        planners.begin(models, folders, server.report)
        control.listener.check_room()  # once all is open that this process needs itself
        for number in stop_signals():
            signal.signal(number, lambda *_: server.stop())
        if until_eof:
            exit_with_parent(server.stop)
        _log.info("coordinator at %s, data plane at %s, incarnation %d", control.address, plane.address, state.incarnation)
        warn_of_packages(_log)
        _warn_of_loopback(host_of(check_address(bind)))
        if isinstance(keys, KeyRing):
            stack.callback(_note(control.address, keys.token_file(LOCAL)))
            _say_how_to_join(control.address, advertise, keys)
            if plain:
                _log.warning("data plane plain: whoever reaches its ports can read tensors and weights, and forge answers")
        else:
            _log.warning("insecure: anybody who reaches %s may use this cluster, join it, and read what it computes", control.address)
        if announces:
            stack.enter_context(announce(control.address, advertise))
        if ready_file is not None:
            draft = ready_file.with_suffix(".part")
            draft.write_text(control.address)
            draft.replace(ready_file)
        if not reserve.hold():
            _log.warning(
                "state directory '%s': its disk is full, or nearly: new models, tokens and agents wait for room; the rest serves",
                directory,
            )
        audit.write(Audit("started", {}, {"version": full_version(), "address": control.address, "incarnation": state.incarnation}))
        server.run()
        for last in machine.statistics.runs.report(float("inf")):
            audit.write(last)
        audit.write(Audit("stopped", {}))


def _data_plane(host: str, port: int, last_port: int, advertise: str, identity: TlsIdentity | None = None) -> TcpDataPlane:
    """Listen for data, on the port of the last time unless another is wanted: agents that kept their deployments send to it."""
    # Listening everywhere, no single address is right for all: agents put in the one they joined by.
    known = advertise or ("*" if host in ALL_ADDRESSES else host)
    memories = None if identity is None else start_broker()
    if last_port and not port:
        try:
            return TcpDataPlane(f"tcp://{host}:{last_port}", known, identity=identity, memories=memories)
        except BbgrapError as error:
            _log.info("another port than last time: %s", error)
    return TcpDataPlane(f"tcp://{host}:{port}", known, identity=identity, memories=memories)


def _onnxruntime() -> str:
    """Return the version that plans are made with, in processes of their own: this one does without it."""
    try:
        return version("onnxruntime")
    except PackageNotFoundError:  # built under another name
        return ""


def _private(folder: Path) -> Path:
    """Return a folder that is there, and only its user's.

    Raises:
        UsageError: if it cannot be.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
    except OSError as error:
        raise UsageError(f"state directory '{folder}': {error.strerror}; choose another with --state-dir") from error
    return folder


def _warn_of_loopback(host: str) -> None:
    """Say so if a name is this machine's own, where others have another address for it: they would not get here."""
    if host == "localhost" or host.startswith("[") or not any(map(str.isalpha, host)):
        return
    found = look_up(host)
    if found.addresses and all(map(is_loopback, found.addresses)):
        where = ", ".join(found.addresses)
        _log.warning(
            "'%s' is %s here: other machines do not reach this coordinator; give --bind an address, or mend /etc/hosts", host, where
        )


def _note(address: str, token_file: Path) -> Callable[[], None]:
    """Let commands of this user find the token, as long as it is not undone; return what undoes that."""
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(NOTED_EVERY_S):
            with suppress(OSError):
                note_token(address, token_file)

    def undo() -> None:
        ended.set()
        keeper.join()
        note.unlink(missing_ok=True)

    try:
        note = note_token(address, token_file)
    except OSError as error:
        _log.warning("commands on this machine do not find the token by themselves (%s); give them --token-file %s", error, token_file)
        return lambda: None
    keeper = threading.Thread(target=keep, name="note", daemon=True)
    keeper.start()
    return undo


def _say_how_to_join(address: str, advertise: str, keys: KeyRing) -> None:
    """Print what other machines need; a token only at the first start, and only to somebody who looks."""
    host, port = split_address(address)
    if not advertise and (is_loopback(host) or host == "localhost"):
        _log.info("no other machine reaches %s; for agents elsewhere, give --bind tcp://HOST:%s, an address of this one", address, port)
        return
    # What stands for all addresses of this machine is another machine's own.
    named, where = advertise or host, "on other machines"
    if named in ALL_ADDRESSES:
        named, where = "HOST", "on other machines, HOST being an address of this one"
    reached = f"tcp://{named}:{port}"
    file = keys.token_file(JOIN)
    if keys.is_new and sys.stdout.isatty():
        print(f"{where}:  BBGRAP_TOKEN={file.read_text()} bbgrap-agent --join {reached}", flush=True)  # noqa: T201 - what a user pastes
    elif file.exists():
        _log.info("%s: bbgrap-agent --join %s --token-file FILE, a copy of %s", where, reached, file)
