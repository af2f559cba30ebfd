"""How the command begins."""

import os
import shlex
import subprocess
import sys

import pytest

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("BBGRAP_")}


@pytest.mark.parametrize("wrong", [("--bind", "127.0.0.1:x"), ("--bind", ""), ("--advertise", "tcp://10.0.0.7:70")])
def test_what_stays_wrong_ends_it_so_that_units_do_not_start_it_again(tmp_path, wrong):
    command = [
        sys.executable,
        "-m",
        "bbgrap_coordinator.main",
        "--state-dir",
        str(tmp_path),
        "--bind",
        "127.0.0.1:0",
        *wrong,
        "--until-eof",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False, input="")
    assert (done.returncode, "expected" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("granted", [24, 26, 29])
def test_a_system_that_grants_too_little_is_named_in_a_line(tmp_path, granted):
    """Whatever was to be opened at that moment: sockets of zmq, the data plane's, a folder, a pipe."""
    command = [sys.executable, "-m", "bbgrap_coordinator.main", "--state-dir", str(tmp_path), "--bind", "127.0.0.1:0"]
    few = ["bash", "-c", f"ulimit -n {granted}; exec {shlex.join(command)}"]
    done = subprocess.run(few, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False, input="")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "the system refuses what it needs: [Errno 24] Too many open files" in done.stderr.splitlines()[-1]


NO_PIPE = """
import os, resource
from bbgrap.transport.wakeup_queue import WakeupQueue

free = os.open("/dev/null", os.O_RDONLY)
os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))
try:
    WakeupQueue()
except OSError as error:
    print(error)
"""


def test_a_queue_that_gets_no_pipe_says_only_that():
    """It was closed although it had never been opened, and said so in a traceback beside the line."""
    done = subprocess.run([sys.executable, "-c", NO_PIPE], capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("[Errno 24] Too many open files\n", "")


@pytest.mark.parametrize("granted", [48, 64, 80])
def test_a_coordinator_that_could_let_nobody_in_does_not_start(tmp_path, granted):
    """It started, shut its door at once, and nobody could join."""
    command = [sys.executable, "-m", "bbgrap_coordinator.main", "--state-dir", str(tmp_path), "--bind", "127.0.0.1:0", "--until-eof"]
    few = ["bash", "-c", f"ulimit -n {granted}; exec {shlex.join(command)}"]
    done = subprocess.run(few, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False, input="")
    assert done.returncode == 1, done.stderr
    assert f"the system grants {granted} descriptors" in done.stderr
    assert "ulimit -Hn" in done.stderr.splitlines()[-1]


FEW_THREADS = """
import sys, threading
from bbgrap_coordinator.main import run

left, start = int(sys.argv.pop(1)), threading.Thread.start

def start_one_of_few(self):
    global left
    if not left:
        raise RuntimeError("can't start new thread")
    left -= 1
    start(self)

threading.Thread.start = start_one_of_few
run()
"""


@pytest.mark.faults
def test_whichever_thread_cannot_be_started_that_is_said_in_a_line(tmp_path):
    """Where memory is limited. The first hung, and others were told in tracebacks."""
    for left in range(20):
        command = [sys.executable, "-c", FEW_THREADS, str(left), "--state-dir", str(tmp_path), "--bind", "127.0.0.1:0", "--until-eof"]
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False, input="")
        if not done.returncode:
            break
        assert (done.returncode, "Traceback" in done.stderr) == (1, False), (left, done.stderr)
        assert "the system refuses what it needs: can't start new thread; memory or processes may be limited" in done.stderr
    assert left > 4


def test_it_serves_without_standard_streams(tmp_path):
    """As it is started by what makes daemons."""
    where = ["--state-dir", str(tmp_path), "--bind", "127.0.0.1:0", "--advertise", "head"]
    command = [sys.executable, "-m", "bbgrap_coordinator.main", *where]
    with subprocess.Popen(
        ["bash", "-c", f"exec {shlex.join(command)} >&- <&-"], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        try:
            assert any("on other machines" in line for line in process.stderr)
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()
