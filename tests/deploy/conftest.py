"""What the tests of `make test-deploy` share: a folder that a path of sockets fits in, a client in a process of its own, waiting."""

import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.waiting import until

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
USER = getpass.getuser()
# A shell that starts tests in the background lets them ignore Ctrl-C, and what they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
CODE = os.pathsep.join(str(ROOT / folder) for folder in ("", "agents", "coordinator"))


def needs(**packages):
    """Skip where a program is missing, with the Debian package that has it."""
    search = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
    found = {program: shutil.which(program, path=search) for program in packages}
    if missing := [f"{program} (Debian's package {packages[program]})" for program, path in found.items() if path is None]:
        pytest.skip(f"there is no {', '.join(missing)}")
    return found


def free_port(host="127.0.0.1"):
    with socket.create_server((host, 0)) as probe:
        return probe.getsockname()[1]


@pytest.fixture
def short():
    """A folder with a short name."""
    with tempfile.TemporaryDirectory(prefix="bbd-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def processes():
    """A list of processes, all of which end with the test."""
    started = []
    yield started
    for process in reversed(started):
        process.terminate()
    for process in reversed(started):
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Client:
    """`tests.deploy.client`, wherever it runs: what it writes into its folder."""

    def __init__(self, folder):
        self.folder = folder

    @property
    def answers(self):
        file = self.folder / "answers"
        return int(file.read_text() or 0) if file.exists() else 0

    def wait_for_answers(self, further=5, within_s=120.0, why=lambda: ""):
        enough = self.answers + further
        until(lambda: self.answers >= enough, within_s, why)

    def stop(self):
        (self.folder / "stop").touch()

    def verdict(self):
        """What it says in the end, once it has ended."""
        return json.loads((self.folder / "verdict.json").read_text())
