"""Clients as on Windows, and clusters as on macOS: here, with what these systems lack taken away.

What only these systems themselves show, as their paths or locks on open files, is not shown here.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.known_agents import known_cluster

pytestmark = pytest.mark.cluster

HERE = Path(__file__).parent
COMMAND = "from bbgrap.cli.main import run; run()"


def run_as(system: str, program: str, *args: str, **variables: str) -> str:
    """Run a program in a Python that lacks what that of a system does, and return what it prints."""
    path = os.pathsep.join([str(HERE / system), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", program, *args],
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with known_cluster(2, tmp_path_factory.mktemp("weights"), pin=False) as found:
        yield found


def test_what_windows_lacks_is_gone():
    said = run_as(
        "windows", "import os, select, socket, importlib.util as u; print(dir(os), dir(select), dir(socket), u.find_spec('socket'))"
    )
    assert not [name for name in ("memfd_create", "'poll'", "AF_UNIX", "SO_PEERCRED", "geteuid") if name in said]
    with pytest.raises(AssertionError, match=r"No module named 'fcntl'|import of fcntl halted"):
        run_as("windows", "import fcntl")


def test_a_client_without_what_windows_lacks_is_answered(cluster, tmp_path):
    token = cluster.logs / "state" / "keys" / "local.token"
    found = json.loads(
        run_as(
            "windows",
            COMMAND,
            *("submit", "zoo:tiny", "--planner", "bbgrap", "--verify", "--json", "--token-file", str(token)),
            BBGRAP_COORDINATOR=cluster.address,
            XDG_CACHE_HOME=str(tmp_path),
        )
    )
    assert found["verified"]
    assert len(found["nodes_used"]) == 2


THREADS = """
import sys, threading
import numpy as np
import bbgrap
from pathlib import Path
from bbgrap.zoo import materialize

with bbgrap.connect(sys.argv[1], token_file=sys.argv[2]) as cluster:
    session = bbgrap.InferenceSession(materialize("tiny", Path(sys.argv[3])), cluster=cluster)
    name, shape = session.get_inputs()[0].name, session.get_inputs()[0].shape
    feed = {name: np.ones([size if isinstance(size, int) else 1 for size in shape], np.float32)}
    first = session.run(None, feed)[0]
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(session.run(None, feed)[0])) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(len(answers), all(np.allclose(first, answer, atol=1e-4) for answer in answers))
"""


def test_threads_of_such_a_client_wake_each_other(cluster, tmp_path):
    token = cluster.logs / "state" / "keys" / "local.token"
    assert run_as("windows", THREADS, cluster.address, str(token), str(tmp_path)) == "4 True\n"


MACOS = """
import os, sys
assert not hasattr(os, "memfd_create") and not hasattr(os, "sched_setaffinity")
from tests.known_agents import known_cluster
from pathlib import Path
import numpy as np, onnxruntime
import bbgrap
from bbgrap.zoo import materialize

path = materialize("tiny", Path(sys.argv[1]))
with known_cluster(2, Path(sys.argv[1]) / "weights") as cluster:
    session = bbgrap.InferenceSession(path, cluster=cluster, options=bbgrap.PlanOptions("bbgrap"))
    name, shape = session.get_inputs()[0].name, session.get_inputs()[0].shape
    feed = {name: np.random.default_rng(0).random([size if isinstance(size, int) else 1 for size in shape], np.float32)}
    session.prepare({name: feed[name].shape}, feed)
    answer, = session.run(None, feed)
    expected, = onnxruntime.InferenceSession(path).run(None, feed)
    print(len(session.plan.report["nodes_used"]), np.allclose(answer, expected, rtol=1e-4, atol=1e-5))
"""


def test_two_agents_without_what_macos_lacks_answer_as_onnxruntime(tmp_path):
    assert run_as("macos", MACOS, str(tmp_path)) == "2 True\n"
