"""Programs that fork, with real processes: a child makes sessions of its own, and what it inherits stays its parent's."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.cluster

PROGRAM = """
import os, sys
import numpy as np
import bbgrap
from bbgrap.session import own_cluster
from tests.cluster import tiny

x = np.ones((8, 4), np.float32)
own_cluster._enclosing.append(bbgrap.connect(sys.argv[1]))
session = bbgrap.InferenceSession(tiny.model_bytes())
if not (child := os.fork()):
    try:
        session.run(None, {"x": x})
    except bbgrap.ClusterUnavailableError as error:
        print(error, flush=True)
    own = bbgrap.InferenceSession(tiny.model_bytes(), deadline_s=20)
    np.testing.assert_array_equal(own.run(None, {"x": x})[0], tiny.expected(x))
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
np.testing.assert_array_equal(session.run(None, {"x": x})[0], tiny.expected(x))
"""


@pytest.mark.broad
def test_a_fork_child_has_sessions_of_its_own(pair):
    done = subprocess.run([sys.executable, "-c", PROGRAM, pair.address], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    said, status = done.stdout.splitlines()
    assert said.endswith("it is that of the parent process; make another one, or a session")
    assert status == "7"
