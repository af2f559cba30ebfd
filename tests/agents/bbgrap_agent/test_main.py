"""How the command begins and ends."""

import os
import signal
import socket
import subprocess
import sys

import pytest
from bbgrap_agent.enrolment import KeyFile
from bbgrap_agent.main import parse_cores, pin
from bbgrap_agent.own_name import checked_name

from bbgrap.errors import UsageError
from bbgrap.transport.locks import ClientLock, KeyPair

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("BBGRAP_")}


@pytest.fixture
def command(tmp_path):
    """What starts an agent that nobody answers, with further options."""
    common = ["--join", "tcp://127.0.0.1:9", "--insecure", "--advertise", "127.0.0.1", "--keys-dir", str(tmp_path / "keys")]
    return lambda *options: [sys.executable, "-m", "bbgrap_agent.main", *common, *options]


def ended(command):
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False)


def test_what_may_pass_ends_it_so_that_units_start_it_again(command, tmp_path):
    (tmp_path / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        in_use = ended(command("--name", "a", "--cache-dir", str(tmp_path / "cache"), "--data-port", port))
    no_folder = ended(command("--name", "a", "--cache-dir", str(tmp_path / "file" / "cache")))
    assert [(done.returncode, done.stderr.rpartition("; ")[2].strip()) for done in (in_use, no_folder)] == [
        (1, "choose another port with --data-port"),
        (1, "choose another with --cache-dir or BBGRAP_CACHE_DIR"),
    ]


def test_what_stays_wrong_ends_it_so_that_units_do_not_start_it_again(command):
    done = ended(command("--name", "a", "--advertise", "tcp://10.0.0.7:70"))
    assert (done.returncode, "--advertise 'tcp://10.0.0.7:70': expected a host name" in done.stderr) == (2, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.faults)])
def test_an_agent_that_waits_for_its_coordinator_says_so_and_can_be_stopped(command, tmp_path, number):
    """The first process of a container ignores what it has no handler for."""
    options = command("--name", "a", "--cache-dir", str(tmp_path / "cache"))
    with subprocess.Popen(options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT) as agent:
        try:
            line = next(line for line in agent.stdout if "insecure" not in line)
            assert "the coordinator at tcp://127.0.0.1:9 does not answer; trying until it does" in line
            agent.send_signal(number)
            assert agent.wait(60.0) == 0
        finally:
            agent.kill()


@pytest.mark.broad
def test_an_agent_says_that_its_coordinator_takes_connections_and_is_silent(command, tmp_path):
    """As one that is stopped, or is behind a tunnel that loses its answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        options = command("--join", address, "--name", "a", "--cache-dir", str(tmp_path / "cache"))  # the last `--join` counts
        with subprocess.Popen(options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT) as agent:
            try:
                line = next(line for line in agent.stdout if "does not answer" in line)
                assert f"the coordinator at {address} does not answer; trying until it does: it takes connections" in line
            finally:
                agent.kill()


@pytest.mark.parametrize("name", ["ü" * 101, "\udce4"])
def test_a_name_that_no_coordinator_would_answer_is_refused(name):
    assert checked_name("ü" * 100) == "ü" * 100
    with pytest.raises(UsageError, match="choose another with --name"):
        checked_name(name)


def test_cores_that_are_none_are_refused():
    """Of `3-1` no core was left, and the agent used all."""
    assert parse_cores("0,2-3") == {0, 2, 3}
    for text in ("3-1", "²", "1-²", "", "a"):
        with pytest.raises(UsageError, match="expected a list like"):
            parse_cores(text)
    with pytest.raises(UsageError, match="cannot be bound"):
        pin({1 << 70})


def test_nodes_whose_names_differ_only_in_signs_have_keys_of_their_own(tmp_path):
    files = [KeyFile(tmp_path, "tcp://127.0.0.1:9", name) for name in ("a:b", "a_b", "a/b")]
    locks = [ClientLock(KeyPair.make().public, KeyPair.make(), "") for _ in files]
    for file, lock in zip(files, locks, strict=True):
        file.write(lock)
    assert [file.read().own for file in files] == [lock.own for lock in locks]
