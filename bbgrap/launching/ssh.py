"""Saying something to a host by the `ssh` command, or to this machine by its shell: what is said is a script on standard input."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from bbgrap.errors import ClusterUnavailableError
from bbgrap.launching.hosts import Host
from bbgrap.report.printable import printable

_PAUSES_S = (1.0, 2.0)
"""Before each further try to reach a host."""
_TRYING_S = 3.5
"""No try begins later. Chosen: all three where a host refuses, as while its sshd starts; one where it says nothing."""
_CONNECT_S = 5
_ANSWER_S = 90.0
"""A coordinator with much to read from its disk takes long to start; whoever is silent for longer has a fault."""
_FINAL = ("Permission denied", "Host key verification failed", "Could not resolve hostname")
"""What ssh says of faults that another try does not mend."""
_SSH_FAILED = 255
_MARK = "::bbgrap "


class HostError(ClusterUnavailableError):
    """A host cannot be reached, or did not do what it was told."""


@dataclass(frozen=True, slots=True)
class HostReply:
    """What a host answers: values by name, and the last lines of a log if its process does not run."""

    values: Mapping[str, str]
    log: tuple[str, ...] = ()


def ask(host: Host, cluster: str, config: Path | None, action: str, command: Sequence[str], settings: Mapping[str, str]) -> HostReply:
    """Have a host do something, and return what it answers; where ssh fails soon, it is tried again.

    Raises:
        HostError: if it cannot be reached, or says what went wrong.
    """
    script = _script(host, cluster, action, command, settings)
    began = time.monotonic()
    done = _said(host, config, script)
    for pause in _PAUSES_S:
        is_final = done.returncode != _SSH_FAILED or any(text in done.stderr for text in _FINAL)
        if not host.ssh or is_final or time.monotonic() - began + pause > _TRYING_S:
            break
        time.sleep(pause)
        done = _said(host, config, script)
    return _reply(host, done)


def _said(host: Host, config: Path | None, script: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            _shell(host, config), input=script, capture_output=True, timeout=_ANSWER_S, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise HostError(f"'ssh' cannot be run here: {error.strerror}; install OpenSSH's client") from None
    except subprocess.TimeoutExpired:
        raise HostError(f"{host.where} did not answer within {_ANSWER_S:g} s") from None


def follow(host: Host, cluster: str, config: Path | None, lines: int) -> int:
    """Print the end of a host's log, and what is added to it until this is interrupted; return ssh's exit code.

    Raises:
        HostError: if ssh is missing.
    """
    script = _script(host, cluster, "logs", (), {"lines": str(lines)})
    try:
        process = subprocess.Popen(_shell(host, config), stdin=subprocess.PIPE, text=True)
    except OSError as error:
        raise HostError(f"'ssh' cannot be run here: {error.strerror}; install OpenSSH's client") from None
    # The pipe stays open: when it closes, because this process ends, the host stops reading its log.
    with process:
        assert process.stdin is not None, "a pipe was asked for"
        process.stdin.write(script)
        process.stdin.flush()
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()
            return 0


def _shell(host: Host, config: Path | None) -> list[str]:
    if not host.ssh:
        return ["sh", "-s"]
    given = [] if config is None else ["-F", str(config)]
    alive = ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]
    # Without BatchMode it would ask for a password; a master that it left behind would hold the pipes open.
    return [
        *("ssh", *given, "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S}", *alive, "-o", "ControlMaster=no"),
        *("--", host.ssh, "exec sh -s"),
    ]


def _script(host: Host, cluster: str, action: str, command: Sequence[str], settings: Mapping[str, str]) -> str:
    unset = dict.fromkeys(("token", "profile", "ready", "tokens", "lines"), "")
    values = {**unset, "lines": "20", **settings, "action": action, "cluster": cluster, "name": host.name, "bin": host.bin}
    head = [f"{key}={shlex.quote(value)}" for key, value in values.items()]
    body = files("bbgrap.launching").joinpath("on_host.sh").read_text()
    return "\n".join([*head, f"set -- {shlex.join(command)}", body, 'main "$@"', "exit", ""])


def _reply(host: Host, done: subprocess.CompletedProcess[str]) -> HostReply:
    """Read an answer; what the host's shell prints at its start is passed over."""
    values: dict[str, str] = {}
    lines = done.stdout.splitlines()
    log: tuple[str, ...] = ()
    for number, line in enumerate(lines):
        if line == f"{_MARK}log":
            log = tuple(map(printable, lines[number + 1 :]))
            break
        if line.startswith(_MARK):
            key, _, value = line.removeprefix(_MARK).partition("=")
            values[key] = value
    if "error" in values:
        raise HostError(printable(values["error"]))
    if done.returncode:
        said = [printable(line) for line in done.stderr.splitlines() if line.strip()]
        by = "ssh" if host.ssh and done.returncode == _SSH_FAILED else "its shell"
        raise HostError(f"{by} says: {said[-1] if said else f'exit status {done.returncode}'}")
    return HostReply(values, log)
