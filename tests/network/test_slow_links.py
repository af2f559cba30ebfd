"""A client behind a link over which an answer takes longer than silence is borne (root, Linux; `make test-network`)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.network.namespaces import two_hosts
from tests.onnx_models import write_model
from tests.waiting import until

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]
HEAD, FAR = "bbgrap-slow-a", "bbgrap-slow-b"
ADDRESSES = {HEAD: "10.80.0.1", FAR: "10.80.0.2"}
TIMES = np.array([30_000], np.int64)
COORDINATOR = f"tcp://{ADDRESSES[HEAD]}:7070"
CLIENT = """
import sys
import numpy as np, bbgrap
x = np.arange(10, dtype=np.float32)
with bbgrap.connect(timeout=30) as cluster:
    (y,) = bbgrap.InferenceSession(sys.argv[1], cluster=cluster).run(None, {"x": x})
assert (y == np.tile(x, 30_000)).all()
print("answered")
"""


def inside(host: str, *words: str) -> list[str]:
    return ["ip", "netns", "exec", host, *words]


@pytest.fixture
def slow() -> Iterator[None]:
    """What comes to the second host does so at 1 Mbit/s."""
    with two_hosts(ADDRESSES, {HEAD: ("rate", "1mbit", "burst", "16kb", "latency", "200ms")}):
        yield


@pytest.mark.usefixtures("slow")
def test_an_answer_that_takes_long_to_come_arrives(tmp_path: Path) -> None:
    """The client cut its connection after 3 s in which no message was whole, and the answer came anew, for ever."""
    model = write_model(
        tmp_path / "model.onnx", [helper.make_node("Tile", ["x", "times"], ["y"])], {"x": [10]}, {"y": [300_000]}, {"times": TIMES}
    )
    log, keys, started = tmp_path / "log", tmp_path / "state" / "keys", []
    with log.open("wb") as output:

        def start(*words: str) -> None:
            started.append(subprocess.Popen(inside(HEAD, *words), stdout=output, stderr=output))

        try:
            start("bbgrap-coordinator", "--bind", COORDINATOR, "--state-dir", str(tmp_path / "state"))
            until(lambda: "coordinator at" in log.read_text(), why=log.read_text)
            folders = ("--keys-dir", str(tmp_path / "keys"), "--cache-dir", str(tmp_path / "cache"))
            start("bbgrap-agent", "--join", COORDINATOR, "--name", "near", "--token-file", str(keys / "join.token"), *folders)
            until(lambda: "joined as 'near'" in log.read_text(), why=log.read_text)
            began = time.monotonic()
            settings = {**os.environ, "BBGRAP_COORDINATOR": COORDINATOR, "BBGRAP_TOKEN_FILE": str(keys / "local.token")}
            asking = inside(FAR, sys.executable, "-c", CLIENT, str(model))
            done = subprocess.run(asking, capture_output=True, text=True, timeout=60, env=settings, check=False)
            assert done.stdout == "answered\n", done.stderr + log.read_text()
            assert time.monotonic() - began > 8, "the link was not slow"
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait(20)
