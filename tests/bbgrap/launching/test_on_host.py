"""What a host is told, by the shell of this machine: `ssh` only carries it there (tests/deploy)."""

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import yaml

from bbgrap.launching.hosts import Host, read_hosts
from bbgrap.launching.launch import Launch
from bbgrap.launching.ssh import HostError, ask
from tests.agents.bare import gone
from tests.waiting import until

SLEEPER = ["sh", "-c", 'echo "I am $BBGRAP_TOKEN"; exec sleep 600']


@pytest.fixture
def tell(tmp_path, monkeypatch):
    """Tell this machine something about one process; what it leaves is stopped."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("BBGRAP_TOKEN", raising=False)

    def tell_(action, command=SLEEPER, host=None, **settings):
        return ask(host or Host("left", ""), "lab", None, action, command, settings)

    yield tell_
    tell_("stop")


def said(tell, line):
    until(lambda: line in tell("status").log)


def test_a_process_is_started_once_and_stopped(tell):
    first, again = tell("start").values, tell("start").values
    assert first["started"] == "1"
    assert again == {"pid": first["pid"]}
    assert tell("status").values == again
    assert tell("stop").values == {"stopped": "1"}
    assert gone(int(first["pid"]), 30.0)
    assert tell("status").values == tell("stop").values == {}


def test_whoever_starts_it_at_once_it_is_started_once(tell):
    """Of two, nobody knew the first any more: it ran until its machine was turned off."""
    with ThreadPoolExecutor(8) as many:
        values = [reply.values for reply in many.map(lambda _: tell("start"), range(8))]
    assert len({told["pid"] for told in values}) == 1
    assert sum("started" in told for told in values) == 1
    with ThreadPoolExecutor(2) as many:
        assert [reply.values for reply in many.map(tell, ("stop", "stop"))].count({"stopped": "1"}) == 1


def test_what_could_not_be_found_again_is_not_started(tell, tmp_path):
    """As on a full disk: it ran, and was neither shown nor stopped."""
    (tmp_path / "bbgrap/lab/left.pid").mkdir(parents=True)
    with pytest.raises(HostError, match=r"lab' takes no file; is its disk full\? Make room there"):
        tell("start", ["sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 600"])
    until(lambda: not (tmp_path / "pid").exists() or gone(int((tmp_path / "pid").read_text()), 30.0))


def test_a_process_that_ended_is_told_with_the_end_of_its_log_and_started_again(tell):
    pid = int(tell("start", token="nobody").values["pid"])  # noqa: S106 - none
    said(tell, "I am nobody")
    os.killpg(pid, signal.SIGKILL)
    assert gone(pid, 30.0)
    seen = tell("status", lines="1")
    assert (seen.values, seen.log) == ({"ended": "1"}, ("I am nobody",))
    assert tell("start").values["started"] == "1"


def test_a_process_that_took_over_the_number_is_left_alone(tell, tmp_path):
    other = os.getpid()
    (tmp_path / "bbgrap/lab").mkdir(parents=True)
    (tmp_path / "bbgrap/lab/left.pid").write_text(f"{other} 1\n")
    assert tell("stop").values == {}
    assert psutil.pid_exists(other)
    assert int(tell("start").values["pid"]) != other


def test_a_token_and_a_profile_are_in_no_arguments_and_quoted(tell, tmp_path):
    secret = 'it\'s $(secret) `x` "y" \\'  # noqa: S105 - none
    process = psutil.Process(int(tell("start", token=secret, profile="name: left").values["pid"]))
    assert process.environ()["BBGRAP_TOKEN"] == secret
    assert secret not in " ".join(process.cmdline())
    assert (tmp_path / "bbgrap/lab/left.profile.yaml").read_text() == "name: left\n"
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "bbgrap/lab").iterdir())


@pytest.mark.parametrize(
    ("command", "host", "settings"),
    [
        ([*SLEEPER, "more"], Host("left", ""), {"profile": "memory: 1"}),
        (SLEEPER, Host("left", ""), {"profile": "memory: 2"}),
        (SLEEPER, Host("left", ""), {}),
        (SLEEPER, Host("left", "", "/usr/bin"), {"profile": "memory: 1"}),
    ],
)
def test_what_runs_otherwise_than_asked_is_told_and_left_alone(tell, command, host, settings):
    as_before = {"profile": "memory: 1"}
    pid = tell("start", **as_before).values["pid"]
    for action in ("start", "status"):
        assert tell(action, command, host, **settings).values == {"pid": pid, "changed": "1"}
        assert tell(action, **as_before, token="another").values == {"pid": pid}  # noqa: S106 - none
    tell("stop")
    assert tell("start", command, host, **settings).values["started"] == "1"
    assert "changed" not in tell("status", command, host, **settings).values


@pytest.mark.deploy  # it takes ten seconds
def test_who_does_not_end_is_killed(tell):
    stubborn = ["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 600; done"]
    pid = int(tell("start", stubborn).values["pid"])
    said(tell, "deaf")
    began = time.monotonic()
    assert tell("stop").values == {"stopped": "1"}
    assert time.monotonic() - began > 5  # it was asked first
    assert gone(pid, 30.0)


def test_what_is_missing_is_told(tell):
    with pytest.raises(HostError, match="there is no 'bbgrap-nothing' in /nowhere; install bbgrap there"):
        tell("start", ["bbgrap-nothing"], Host("left", "", "/nowhere"))
    with pytest.raises(HostError, match="there is no 'sh' in /nowhere; install bbgrap there"):  # there is one on the PATH
        tell("start", host=Host("left", "", "/nowhere"))
    with pytest.raises(HostError, match="there is no log yet"):
        tell("logs")


def test_a_check_finds_the_same_bbgrap_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = tmp_path / "hosts.yaml"
    host = {"name": "left", "ssh": "none", "bin": str(Path(sys.executable).parent)}
    file.write_text(
        yaml.safe_dump({"coordinator": {"address": "tcp://127.0.0.1:7070", "ssh": "none", "bin": host["bin"]}, "hosts": [host]})
    )
    assert [(state.process, state.fault) for state in Launch(read_hosts(file)).check()] == [("tried", "")] * 2


def test_what_would_move_a_terminals_cursor_is_not_printed(tell):
    pid = int(tell("start", ["printf", r"\033[2Jred\n"]).values.get("pid", 0))
    if pid:
        assert gone(pid, 30.0)
    assert tell("status").log == ("\ufffd[2Jred",)


def test_a_host_that_ssh_does_not_find_is_told(tmp_path):
    (tmp_path / "config").write_text("Host *\n  ConnectTimeout 2\n")
    with pytest.raises(HostError, match=r"ssh says: .*no-such-host.invalid|'ssh' cannot be run"):
        ask(Host("left", "no-such-host.invalid"), "lab", tmp_path / "config", "status", [], {})
