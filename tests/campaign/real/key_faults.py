"""Faults of keys: they are taken back and replaced while they are used, and strangers knock with wrong ones.

What is asked of the coordinator may fail while its disk is full; then nothing was done, and the history says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import zmq
from bbgrap_agent.enrolment import KeyFile

from bbgrap.errors import AccessError, BbgrapError, UsageError
from bbgrap.protocol.client_messages import Hello
from bbgrap.protocol.directions import TO_COORDINATOR
from bbgrap.protocol.tokens import Role, Token
from bbgrap.transport.control_client import ControlClient
from bbgrap.transport.locks import ClientLock, KeyPair
from benchmarks.machines import COORDINATOR
from tests.campaign.real.world import CLIENTS, GUESTS, World, wait

_ENDS_S = 30.0
"""How long a node that was taken back may take to end; it has a worker to end first."""
_KNOCK_S = 3.0
_AGAIN_S = 0.2
_PATIENCE_S = 60.0
"""How long is tried to give guests another token: a disk that is full is so for seconds."""
_SAYINGS = (b"", b"\xff" + bytes(8) + b"\x7f\x03", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x00garbage\xff" * 64)
"""Of strangers: nothing, half a greeting of ZeroMQ, the begin of a handshake of TLS, and neither."""


T = TypeVar("T")


def write_token(home: Path, name: str, text: str) -> Path:
    """Put a token into its file, as a whole, and return the file."""
    file = home / f"{name}.token"
    draft = file.with_suffix(".part")
    draft.touch(0o600)
    draft.write_text(text)
    return draft.replace(file)


def node_revoked(world: World, targets: tuple[str, ...], seconds: float) -> None:
    """Take back a node; it ends, and is started again with the join token."""
    agent = targets[0]
    _wait_for(world, agent)
    key = _key(world, agent)
    if _revoke(world, agent):
        _see_it_end(world, agent, key)
    time.sleep(seconds)
    _start_again(world, agent)


def revoked_and_restarted(world: World, targets: tuple[str, ...], seconds: float) -> None:
    """Take back a node, and kill the coordinator before it has told anybody."""
    agent = targets[0]
    _wait_for(world, agent)
    key = _key(world, agent)
    revoked = _revoke(world, agent)
    world.machines.kill(COORDINATOR)
    time.sleep(seconds)
    world.restart(COORDINATOR)
    if revoked:
        _see_it_end(world, agent, key)
    _start_again(world, agent)


def clients_rotated(world: World, targets: tuple[str, ...], seconds: float) -> None:
    """Replace the token of clients that send; the old one goes on for so many seconds, and they have the new one somewhat before."""
    del targets
    old = _token(world.machines.home / f"{CLIENTS}.token")
    if (text := _rotate(world, CLIENTS, seconds)) is None:
        return
    time.sleep(world.rng.uniform(0.0, 0.7) * seconds)
    write_token(world.machines.home, CLIENTS, text)
    time.sleep(seconds + 1.0)
    _knock(world, old, f"the old token of {CLIENTS}")


def guests_revoked(world: World, targets: tuple[str, ...], seconds: float) -> None:
    """Take back the token of clients that send, and give them another one after a while."""
    del targets
    old = _token(world.machines.home / f"{GUESTS}.token")
    if not _revoke(world, GUESTS):
        return
    world.history.note("revoked", pid=world.guests.pid)
    time.sleep(seconds)
    _knock(world, old, f"the token of {GUESTS}")
    world.history.note("replaced", pid=world.guests.pid)
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            write_token(world.machines.home, GUESTS, world.connection.create_token(GUESTS, "client"))
        except (AccessError, UsageError) as error:
            if time.monotonic() > until:
                raise
            # Made, but its text was lost on its way: then it is made again.
            if "is taken" in str(error):
                _revoke(world, GUESTS)
            time.sleep(_AGAIN_S)
        else:
            return


def join_rotated(world: World, targets: tuple[str, ...], seconds: float) -> None:
    """Replace the join token; an agent that has lost its key comes with the new one."""
    agent, file = targets[0], world.machines.token("join")
    old = _token(file)
    rotated = _rotate(world, "join", seconds)
    world.machines.kill(agent)
    for key in world.machines.keys(agent).glob("*"):
        key.unlink(missing_ok=True)
    world.restart(agent)
    time.sleep(seconds + 1.0)
    if rotated is not None:
        _knock(world, old, "the old join token")


def wrong_tokens(world: World, targets: tuple[str, ...], seconds: float) -> None:
    """Let an agent come again and again with a token that nobody made, or one that has expired."""
    number = targets[0].removeprefix("#")
    lock = _token(world.machines.token("local"))
    text = Token(Role.AGENT, lock.server, KeyPair.make().secret).text
    if int(number) % 2:
        with suppress(BbgrapError):
            text = world.connection.create_token(f"short {number}", "agent", 0.1)
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        file = write_token(Path(folder), "token", text)
        time.sleep(0.5)
        name = f"intruder{number}"
        command = ["--join", world.machines.address, "--name", name, "--token-file", str(file), "--keys-dir", folder, "--cache-dir", folder]
        surroundings = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "bbgrap_agent.main", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=surroundings
        )
        while time.monotonic() < until:
            _knock(world, _token(file), "a wrong token")
        # While the coordinator is away it waits.
        code = None
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(_ENDS_S)
        joined = name in {node.name for node in world.nodes()}
        process.kill()
        process.wait()
        world.history.note("knocked", key="an agent's wrong token", came=joined, why=f"status {code}")


def strangers_everywhere(world: World, targets: tuple[str, ...], seconds: float) -> None:
    """Connect 200 times to every port there is, and say what does not fit."""
    del targets
    made = [
        stranger
        for host, port in world.ports()
        for said in _SAYINGS
        for stranger in world.strangers(host, port, 200 // len(_SAYINGS), said)
    ]
    world.history.note("strangers", count=len(made))
    time.sleep(seconds)
    for stranger in made:
        stranger.close()


# --- what several of them do ----------------------------------------------------------------------------------------------------------


def _key(world: World, agent: str) -> ClientLock | None:
    return KeyFile(world.machines.keys(agent), world.machines.address, agent).read()


def _token(file: Path) -> ClientLock:
    return ClientLock.of(Token.parse(file.read_text(), str(file)), str(file))


def _revoke(world: World, name: str) -> bool:
    """Take back a key; returns whether that was done."""
    return _done(world, lambda: world.connection.revoke_token(name), f"revoke {name}") is not None


def _rotate(world: World, name: str, grace_s: float) -> str | None:
    return _done(world, lambda: world.connection.rotate_token(name, grace_s), f"rotate {name}")


def _done(world: World, ask: Callable[[], T], what: str) -> T | None:
    try:
        return ask()
    except BbgrapError as error:
        world.history.note("not done", asked=what, text=str(error))
        return None


def _wait_for(world: World, agent: str) -> None:
    """Wait until an agent has joined: one that starts may be about to enrol anew, while its predecessor seems to be there."""

    def has_joined() -> bool:
        started = [process.create_time() for process in world.machines.tree(agent)[:1]]
        return any(node.name == agent and node.since > start for node in world.nodes() for start in started)

    wait(has_joined, _ENDS_S)


def _see_it_end(world: World, agent: str, key: ClientLock | None) -> None:
    """Note how long a node that was taken back is there, and whether its key opens anything."""
    began = seen = time.monotonic()
    # When it was last seen: while the coordinator is away, nobody says anything of anybody.
    while agent in {node.name for node in world.nodes()} and seen - began < _ENDS_S:
        seen = time.monotonic()
        time.sleep(0.02)
    if key is not None:
        _knock(world, key, f"the old key of {agent}")
    ended = wait(lambda: not world.machines.runs(agent), _ENDS_S)
    world.history.note("shut out", agent=agent, left_s=seen - began, ended_s=ended)


def _start_again(world: World, agent: str) -> None:
    world.machines.kill(agent)
    world.restart(agent)


def _knock(world: World, lock: ClientLock, whose: str) -> None:
    """Note whether the coordinator answers to a key that it must not know; while it is away, it answers nobody."""
    with ControlClient(zmq.Context.instance(), world.machines.address, lambda: lock) as control:
        control.send(TO_COORDINATOR.encode(Hello(1)))
        until, came, why = time.monotonic() + _KNOCK_S, False, ""
        while not came and not why and time.monotonic() < until:
            control.socket.poll(50)
            came, why = control.receive() is not None, control.refused
    world.history.note("knocked", key=whose, came=came, why=why)
