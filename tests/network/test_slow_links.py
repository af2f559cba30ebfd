"""Clients and agents behind links over which an answer takes longer than silence is borne (root, Linux; `make test-network`)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
SLOW = ("rate", "1mbit", "burst", "16kb", "latency", "200ms")


def inside(host: str, *words: str) -> list[str]:
    return ["ip", "netns", "exec", host, *words]


@contextmanager
def cluster(folder: Path, agent: str) -> Iterator[tuple[Path, Callable[[str], subprocess.CompletedProcess[str]]]]:
    """A coordinator on the first host and an agent on either; their log, and what asks a model from a host and returns what came of it."""
    model = write_model(
        folder / "model.onnx", [helper.make_node("Tile", ["x", "times"], ["y"])], {"x": [10]}, {"y": [300_000]}, {"times": TIMES}
    )
    log, keys, started = folder / "log", folder / "state" / "keys", list[subprocess.Popen[bytes]]()

    def ask(host: str) -> subprocess.CompletedProcess[str]:
        settings = {**os.environ, "BBGRAP_COORDINATOR": COORDINATOR, "BBGRAP_TOKEN_FILE": str(keys / "local.token")}
        asking = inside(host, sys.executable, "-c", CLIENT, str(model))
        return subprocess.run(asking, capture_output=True, text=True, timeout=60, env=settings, check=False)

    with log.open("wb") as output:

        def start(host: str, *words: str) -> None:
            started.append(subprocess.Popen(inside(host, *words), stdout=output, stderr=output))

        try:
            start(HEAD, "bbgrap-coordinator", "--bind", COORDINATOR, "--state-dir", str(folder / "state"))
            until(lambda: "coordinator at" in log.read_text(), why=log.read_text)
            folders = ("--keys-dir", str(folder / "keys"), "--cache-dir", str(folder / "cache"))
            start(agent, "bbgrap-agent", "--join", COORDINATOR, "--name", "one", "--token-file", str(keys / "join.token"), *folders)
            until(lambda: "joined as 'one'" in log.read_text(), why=log.read_text)
            yield log, ask
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait(20)


@pytest.mark.parametrize(("agent", "asks"), [(HEAD, FAR), (FAR, HEAD)])
def test_an_answer_that_takes_long_to_come_arrives(tmp_path: Path, agent: str, asks: str) -> None:
    """A client cut its connection after 3 s in which no message was whole, and the answer came anew, for ever.

    What an agent sent was run again and again, and what came late behind it was taken for a wall: 54 s for what takes 8.
    """
    with two_hosts(ADDRESSES, {agent: SLOW}), cluster(tmp_path, agent) as (log, ask):
        began = time.monotonic()
        done = ask(asks)
        assert done.stdout == "answered\n", done.stderr + log.read_text()
        assert time.monotonic() - began > 8, "the link was not slow"
        assert "stalled" not in log.read_text()
