"""A cluster on the hosts of a file: started, looked at, stopped. What runs already is left as it is, so everything may be repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bbgrap.cluster.files import profile_text
from bbgrap.cluster.types import COORDINATOR, NodeProfile
from bbgrap.errors import AccessError, BbgrapError, UsageError
from bbgrap.launching.hosts import Host, HostsFile
from bbgrap.launching.ssh import HostError, HostReply, ask
from bbgrap.own_code import full_version
from bbgrap.session.connection import Connection, connect
from bbgrap.transport.local_tokens import find_token

_AT_ONCE = 16
"""Hosts that are spoken to at once."""
_FIRST_LOOK_S = 1.0
"""Before it is asked who joined: what was killed just before is no longer listed then."""
_AGAIN_S = 0.3
_LOOK_AT_HOSTS_S = 3.0
Process = Literal["runs", "started", "stopped", "ended", "tried", "unknown"]


@dataclass(frozen=True, slots=True)
class HostState:
    """What is known of one host and its process."""

    name: str
    where: str
    process: Process
    pid: int = 0
    cluster: str = ""
    """Its state as the coordinator lists it; empty if it does not, or was not asked."""
    fault: str = ""
    """What is wrong; empty if nothing is."""
    log: tuple[str, ...] = ()
    """The last lines of its process's log."""


HostTokens = Mapping[str, str]
"""`local` and `join` of this cluster's own coordinator, as far as they are known."""


class Launch:
    """The hosts of one file, or some of them, and how to reach their coordinator."""

    def __init__(self, file: HostsFile, names: Sequence[str] = (), token_file: Path | None = None) -> None:
        """Take these hosts, `coordinator` among them; without names all. The token is for a coordinator that runs already.

        Raises:
            UsageError: if the file has no such host.
        """
        own = file.coordinator.host
        self._file = file
        for name in names:
            self._host(name)
        self._agents = [host for host in file.hosts if not names or host.name in names]
        self._own = own if not names or COORDINATOR in names else None
        self._token_file = token_file

    def start(self, timeout_s: float, report: Callable[[str], None]) -> list[HostState]:
        """Start what does not run, and wait until the agents have joined.

        The coordinator is started even if it was not named: agents need it.

        Raises:
            HostError: if the coordinator does not start.
            AccessError: if there is no token for agents.
        """
        own = self._file.coordinator.host
        first, tokens = ([], self._foreign_tokens()) if own is None else self._start_coordinator(own)
        report("the coordinator runs")
        states = _each(self._agents, lambda host: self._start_agent(host, tokens.get("join", "")))
        report("agents are started")
        try:
            with self._connect(tokens) as connection:
                return [*first, *self._await_joined(connection, states, timeout_s, report)]
        except BbgrapError as error:
            return [*self._unasked(first, error), *states]

    def status(self) -> list[HostState]:
        """Say what runs, and who has joined."""
        own = self._file.coordinator.host
        first: list[HostState] = []
        tokens: HostTokens = {}
        with ThreadPoolExecutor(1) as pool:  # beside the agents: any of them may be away
            asked = None if own is None else pool.submit(self._ask, own, "status", tokens="1")
            states = _each(self._agents, lambda host: _seen(host, self._ask(host, "status")))
        try:
            if own is not None and asked is not None:
                reply = asked.result()
                first, tokens = [_seen(own, reply)], reply.values
            if not first or first[0].pid:
                with self._connect(tokens) as connection:
                    listed = _listed(connection)
                return [*first, *(_without_excuse(replace(state, cluster=listed.get(state.name, ""))) for state in states)]
        except BbgrapError as error:
            first = self._unasked(first, error)
        return [*first, *(replace(state, fault=state.fault or "its coordinator cannot be asked") for state in states)]

    def stop(self) -> list[HostState]:
        """Stop the agents, then the coordinator, of which they take their leave."""
        return [
            *_each(self._agents, lambda host: _ended(host, self._ask(host, "stop"))),
            *_each([self._own] if self._own else [], lambda host: _ended(host, self._ask(host, "stop"))),
        ]

    def kill(self, name: str) -> None:
        """End a host's process at once, as a power cut would.

        Raises:
            UsageError: if the file has no such host.
            HostError: if it does not run, or its host cannot be reached.
        """
        self._ask(self._host(name), "kill")

    def logs(self, lines: int) -> list[HostState]:
        """Return the last lines of all logs; where there is none, that is the fault."""
        return _each(
            [*([self._own] if self._own else []), *self._agents],
            lambda host: _logged(host, self._ask(host, "status", lines=str(lines)), lines),
        )

    def log(self, name: str, lines: int) -> str:
        """Return the last lines of a host's log; nothing if there is none yet.

        Raises:
            UsageError: if the file has no such host.
            HostError: if it cannot be reached.
        """
        return "\n".join(self._ask(self._host(name), "status", lines=str(lines)).log)

    def connect(self) -> Connection:
        """Connect to the coordinator, which runs.

        Raises:
            HostError: if it cannot be asked for its token.
            ClusterUnavailableError: if it does not answer.
        """
        own = self._file.coordinator.host
        return self._connect({} if own is None else self._ask(own, "status", tokens="1").values)

    def check(self) -> list[HostState]:
        """Try whether the hosts can be reached and have the bbgrap of this machine; nothing is started."""
        return _each([*([self._own] if self._own else []), *self._agents], lambda host: _checked(host, self._ask(host, "check")))

    def _host(self, name: str) -> Host:
        own = self._file.coordinator.host
        known = {host.name: host for host in (*([own] if own else []), *self._file.hosts)}
        if name not in known:
            raise UsageError(f"'{self._file.path}' starts nothing that is called '{name}', only {', '.join(known)}")
        return known[name]

    def _ask(self, host: Host, action: str, **settings: str) -> HostReply:
        profile = profile_text(NodeProfile(host.name, memory_bytes=host.memory_bytes)) if host.memory_bytes else ""
        return ask(host, self._file.cluster, self._file.ssh_config, action, self._command(host), {"profile": profile, **settings})

    def _command(self, host: Host) -> list[str]:
        """Return what is run on a host; file names are those of its folder there."""
        place = self._file.coordinator
        if host.name == COORDINATOR:
            ours = ["--bind", place.bind, "--state-dir", "coordinator.state", "--ready-file", "coordinator.ready"]
            return ["bbgrap-coordinator", *ours, *host.options]
        profile = ["--profile", f"{host.name}.profile.yaml"] if host.memory_bytes else []
        return ["bbgrap-agent", "--join", place.address, "--name", host.name, *profile, *host.options]

    def _unasked(self, first: list[HostState], error: BbgrapError) -> list[HostState]:
        """Return what is known of a coordinator that does not answer here."""
        place = self._file.coordinator
        known = first[0] if first else HostState(COORDINATOR, place.host.where if place.host else place.address, "unknown")
        return [replace(known, fault=str(error))]

    def _start_coordinator(self, own: Host) -> tuple[list[HostState], HostTokens]:
        reply = self._ask(own, "start", ready="1", tokens="1")
        state = _seen(own, reply)
        if not state.pid:
            raise HostError("\n".join([f"the coordinator at {own.where} ended; the end of its log:", *state.log]))
        if not reply.values.get("local") or not reply.values.get("join"):
            raise HostError("\n".join([f"the coordinator at {own.where} is not ready; the end of its log:", *state.log]))
        return [state], reply.values

    def _start_agent(self, host: Host, token: str) -> HostState:
        return _seen(host, self._ask(host, "start", token=token))

    def _foreign_tokens(self) -> HostTokens:
        place = self._file.coordinator
        local = find_token(place.address)
        file = place.join_token or (local.with_name("join.token") if local else None)
        if file is None:
            raise AccessError(
                f"agents need a token for the coordinator at {place.address}: 'bbgrap token create hosts --role agent' on its machine"
                f" makes one; name the file with it in '{self._file.path}', as 'join_token' of 'coordinator'"
            )
        try:
            return {"join": file.read_text().strip()}
        except (OSError, UnicodeDecodeError) as error:
            raise AccessError(f"token file '{file}': it cannot be read: {getattr(error, 'strerror', None) or error}") from None

    def _connect(self, tokens: HostTokens) -> Connection:
        if local := tokens.get("local"):
            return connect(self._file.coordinator.address, token=local)
        return connect(self._file.coordinator.address, token_file=self._token_file)

    def _await_joined(
        self, connection: Connection, states: list[HostState], timeout_s: float, report: Callable[[str], None]
    ) -> list[HostState]:
        deadline, look = time.monotonic() + timeout_s, time.monotonic() + _LOOK_AT_HOSTS_S
        if any(state.process == "started" for state in states):
            time.sleep(_FIRST_LOOK_S)
        while True:
            listed = _listed(connection)
            states = [replace(state, cluster=listed.get(state.name, "")) for state in states]
            waiting = {state.name for state in states if state.pid and not state.cluster}
            report(f"{sum(bool(state.cluster) for state in states)} of {len(states)} agents have joined")
            if not waiting or time.monotonic() > deadline:
                return [_without_excuse(state) for state in states]
            if time.monotonic() > look:
                late = [host for host in self._agents if host.name in waiting]
                seen = {state.name: state for state in _each(late, lambda host: _seen(host, self._ask(host, "status")))}
                states = [_later(state, seen[state.name]) if state.name in seen else state for state in states]
                look = time.monotonic() + _LOOK_AT_HOSTS_S
            time.sleep(_AGAIN_S)


def _each(hosts: Sequence[Host], act: Callable[[Host], HostState]) -> list[HostState]:
    """Do something with all hosts at once; what is wrong with one does not keep the others from it."""

    def tried(host: Host) -> HostState:
        try:
            return act(host)
        except HostError as error:
            return HostState(host.name, host.where, "unknown", fault=str(error))

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(tried, hosts))


def _listed(connection: Connection) -> Mapping[str, str]:
    return {node.name: node.state for node in connection.nodes()}


def _seen(host: Host, reply: HostReply) -> HostState:
    pid = reply.values.get("pid", "")
    if pid.isdigit():
        process: Process = "started" if "started" in reply.values else "runs"
        if "changed" in reply.values:
            return HostState(host.name, host.where, process, int(pid), fault="it runs as the file was; stop and start it for the changes")
        return HostState(host.name, host.where, process, int(pid), log=reply.log)
    if "ended" in reply.values:
        return HostState(host.name, host.where, "ended", fault="its process ended", log=reply.log)
    return HostState(host.name, host.where, "stopped", fault="it does not run")


def _logged(host: Host, reply: HostReply, lines: int) -> HostState:
    return HostState(host.name, host.where, "tried", fault="" if reply.log or not lines else "there is no log yet", log=reply.log)


def _later(before: HostState, now: HostState) -> HostState:
    """Return what is known after a second look; what runs stays what it was, started just now or before."""
    return replace(now, process=before.process) if now.pid else now


def _ended(host: Host, reply: HostReply) -> HostState:
    return HostState(host.name, host.where, "ended" if "stopped" in reply.values else "stopped")


def _checked(host: Host, reply: HostReply) -> HostState:
    # What follows the number are the versions of onnxruntime and Python.
    ours, there = full_version(), reply.values.get("version", "").removeprefix("bbgrap ").partition(" ")[0]
    fault = "" if there == ours else f"it has bbgrap '{there}', this machine {ours}; install the same version everywhere"
    pid = reply.values.get("pid", "")
    return HostState(host.name, host.where, "runs" if pid else "tried", int(pid or 0), f"bbgrap {there}", fault)


def _without_excuse(state: HostState) -> HostState:
    """Return the state of an agent that had time to join, with what is wrong if it has not, or if it is not this file's."""
    if state.process == "stopped" and state.cluster == "alive":
        how = "was it started otherwise, or is the file called otherwise since? 'cluster: NAME' in it keeps the old name"
        return replace(state, fault=f"an agent of this name has joined that this file has not started: {how}")
    return replace(state, fault="it runs, but has not joined") if state.pid and not state.cluster else state
