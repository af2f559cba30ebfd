"""Clients as on Windows, and clusters as on macOS."""

import pytest

from tests.known_agents import known_cluster
from tests.platforms.elsewhere import run_as

CLIENT = """
import importlib.util, os, select, socket, sys, threading
GONE = (os, "memfd_create geteuid set_blocking O_NOFOLLOW"), (select, "poll epoll"), (socket, "AF_UNIX SO_PEERCRED send_fds")
for module, names in GONE:
    assert not [name for name in names.split() if hasattr(module, name)]
assert all(sys.modules[name] is None for name in ("fcntl", "resource"))

import numpy as np
import onnxruntime
from pathlib import Path
import bbgrap
from bbgrap.cli.main import run
from bbgrap.zoo import materialize

path = materialize("tiny", Path(sys.argv[2]))
with bbgrap.connect(os.environ["BBGRAP_COORDINATOR"], token_file=sys.argv[1]) as cluster:
    session = bbgrap.InferenceSession(path, cluster=cluster)
    feed = {"input": np.random.default_rng(0).random((1, 3, 32, 32), np.float32)}
    expected = onnxruntime.InferenceSession(path).run(None, feed)[0]
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(session.run(None, feed)[0])) for _ in range(4)]
    for thread in threads: thread.start()  # who waits is woken by who reads
    for thread in threads: thread.join()
    assert len(answers) == 4 and all(np.allclose(answer, expected, rtol=1e-4, atol=1e-5) for answer in answers)
sys.argv = ["bbgrap", "submit", "zoo:tiny", "--verify", "--token-file", sys.argv[1]]
run()
"""

CLUSTER = """
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
    feed = {"input": np.random.default_rng(0).random((1, 3, 32, 32), np.float32)}
    session.prepare({"input": (1, 3, 32, 32)}, feed)
    answer, = session.run(None, feed)
    expected, = onnxruntime.InferenceSession(path).run(None, feed)
    print(len(session.plan.report["nodes_used"]), np.allclose(answer, expected, rtol=1e-4, atol=1e-5))
"""


@pytest.mark.broad
@pytest.mark.cluster
def test_a_client_needs_nothing_that_windows_lacks(tmp_path):
    """One agent: how many there are is nothing to a client."""
    with known_cluster(1, tmp_path / "weights", pin=False) as cluster:
        token = cluster.logs / "state" / "keys" / "local.token"
        said = run_as("windows", CLIENT, str(token), str(tmp_path), BBGRAP_COORDINATOR=cluster.address, XDG_CACHE_HOME=str(tmp_path))
    assert "verified against plain onnxruntime" in said


@pytest.mark.platforms
def test_two_agents_need_nothing_that_macos_lacks(tmp_path):
    assert run_as("macos", CLUSTER, str(tmp_path)) == "2 True\n"
