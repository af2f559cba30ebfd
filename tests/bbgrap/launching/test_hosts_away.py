"""What a host costs that is away: a program in place of `ssh` fails as that does (the real one: tests/deploy/test_ssh.py)."""

import time

import pytest
import yaml
from typer.testing import CliRunner

from bbgrap.cli.main import app
from bbgrap.launching.hosts import Host, read_hosts
from bbgrap.launching.launch import Launch
from bbgrap.launching.ssh import HostError, ask

CONNECTING_S = 3.0
"""As long as a system looks for a host in its own network that is off."""


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """An ssh to which `nowhere` does not answer, `busy` says no at once, and all others are this machine; returns who was tried."""
    tried = tmp_path / "tried"
    tried.touch()
    program = tmp_path / "bin/ssh"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nfor word; do [ "$before" = -- ] && host=$word; before=$word; done\necho "$host" >>{tried}\n'
        f'case $host in\nnowhere*) sleep {CONNECTING_S:g}; echo "No route to host" >&2; exit 255;;\n'
        'busy) echo "Connection refused" >&2; exit 255;;\nesac\nexec sh -s\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return lambda: tried.read_text().split()


def launch_of(tmp_path, *names, coordinator="nowhere"):
    file = tmp_path / "hosts.yaml"
    place = {"address": "tcp://127.0.0.1:1", "ssh": coordinator}
    file.write_text(yaml.safe_dump({"coordinator": place, "hosts": [{"name": name} for name in names]}))
    return Launch(read_hosts(file))


def test_who_says_nothing_is_tried_once_and_who_refuses_thrice(ssh):
    with pytest.raises(HostError, match="No route to host"):
        ask(Host("a", "nowhere"), "lab", None, "status", ("true",), {})
    assert ssh() == ["nowhere"]
    with pytest.raises(HostError, match="Connection refused"):
        ask(Host("b", "busy"), "lab", None, "status", ("true",), {})
    assert ssh().count("busy") == 3


def test_all_hosts_that_are_away_cost_as_much_as_one_of_them(ssh, tmp_path):
    launch = launch_of(tmp_path, "nowhere1", "nowhere2", "here")
    began = time.monotonic()
    states = {state.name: state for state in launch.status()}
    took = time.monotonic() - began
    assert took < 2 * CONNECTING_S
    assert [name for name, state in states.items() if "No route to host" in state.fault] == ["coordinator", "nowhere1", "nowhere2"]
    assert states["here"].process == "stopped"


def test_logs_of_others_are_printed_and_who_is_away_is_named_at_the_end(ssh, tmp_path):
    launch_of(tmp_path, "nowhere1", "here", "there")
    folder = tmp_path / "state/bbgrap/hosts"
    folder.mkdir(parents=True)
    for name in ("here", "there"):
        (folder / f"{name}.log").write_text(f"first of {name}\nlast of {name}\n")
    began = time.monotonic()
    done = CliRunner().invoke(app, ["up", str(tmp_path / "hosts.yaml"), "logs", "--lines", "1"])
    assert time.monotonic() - began < 2 * CONNECTING_S
    assert done.exit_code == 1
    assert done.stdout.splitlines() == ["==> here at here <==", "last of here", "==> there at there <==", "last of there"]
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["'coordinator' at nowhere", "'nowhere1' at nowhere1"]
