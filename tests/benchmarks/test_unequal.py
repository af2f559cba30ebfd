"""A node is held to a part of a core with all of its processes; the measurement itself is long."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.unequal import CGROUP, limited


@pytest.mark.skipif(not os.access(CGROUP, os.W_OK), reason="no cgroups of version 1, or not root")
def test_what_an_agent_has_started_before_is_held_back_with_it():
    """Only its nanny was, since the worker that computes is a process of its own: half a core was a whole one."""
    code = "import subprocess; subprocess.run(['sh', '-c', 'echo $$; read x'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as nanny:
        worker = int(nanny.stdout.readline())
        with limited(nanny.pid, 0.5):
            groups = [Path(f"/proc/{pid}/cgroup").read_text() for pid in (nanny.pid, worker)]
        nanny.stdin.close()
    assert all("bbgrap-unequal" in text for text in groups)
