"""Files of a user's folder are no modules of what commands start, which signals ask a process to end in order, and memory that is kept."""

import platform
import signal
import subprocess
import sys

import pytest

from bbgrap.own_process import stop_signals

GONE = "import os, sys; from bbgrap.own_process import python_command; os.rmdir(os.getcwd()); print(python_command()[1:])"
START = """
import subprocess
from bbgrap.own_process import python_command
print(subprocess.call([*python_command(), "-m", "json.tool", "-h"]))
"""
FAULTS = """
import resource, sys
import numpy as np
from bbgrap.own_process import keep_freed
if len(sys.argv) > 1:
    keep_freed()
one, other = np.ones(3_000_000, np.uint8), np.ones(3_000_000, np.uint8)
del one, other
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    one, other = np.ones(3_000_000, np.uint8), np.ones(3_000_000, np.uint8)
    del one, other
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc has it")
def test_what_was_freed_is_used_again_without_asking_the_system():
    asked = [int(subprocess.run([sys.executable, "-c", FAULTS, *kept], capture_output=True, check=True).stdout) for kept in ((), ("kept",))]
    assert asked[1] < 100 < asked[0]


@pytest.mark.parametrize(("options", "status"), [(["-P"], "0"), ([], "1")])
def test_what_is_started_looks_where_its_starter_does(tmp_path, options, status):
    (tmp_path / "json.py").write_text("raise SystemExit(1)\n")
    done = subprocess.run([sys.executable, *options, "-c", START], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == status


def test_a_folder_that_is_gone_keeps_nobody_from_starting(tmp_path):
    """An agent starts workers as long as it lives."""
    done = subprocess.run([sys.executable, "-P", "-c", GONE], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "['-P']\n"


def test_a_closed_terminal_ends_what_was_not_started_to_outlast_it():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert set(stop_signals()) == {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
        assert set(stop_signals()) == {signal.SIGTERM, signal.SIGINT}
    finally:
        signal.signal(signal.SIGHUP, before)
