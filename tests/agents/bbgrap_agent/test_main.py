"""How the command begins and ends."""

import os
import socket
import subprocess
import sys

import pytest

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
        (1, "choose another with --cache-dir"),
    ]
