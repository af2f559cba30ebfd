"""Plain onnxruntime in one process: on one node, and on a machine that has both nodes' cores."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from bbgrap.bench import SETTLE_S, bound_to
from bbgrap.engine.reference import Reference
from benchmarks.peers.peer import Answers, Feeds, Peer, Running, Setting
from benchmarks.testbed import CORES


@contextmanager
def _one_node(setting: Setting) -> Iterator[Running]:
    session = Reference(setting.path, threads=1)
    yield Running(session.run, lambda feeds: lambda: session.run(feeds))


@contextmanager
def _both_cores(setting: Setting) -> Iterator[Running]:
    cores = frozenset(CORES)
    with bound_to(cores):
        session = Reference(setting.path, threads=len(cores))

    def run(feeds: Feeds) -> Answers:
        with bound_to(cores):
            return session.run(feeds)

    yield Running(run, lambda feeds: lambda: run(feeds))
    time.sleep(SETTLE_S)


_PACKAGES = {"onnxruntime": "onnxruntime"}
ONE_NODE = Peer("onnxruntime", "onnxruntime, one node", _one_node, _PACKAGES, nodes=1)
BOTH_CORES = Peer("onnxruntime-two-cores", "onnxruntime, one machine of two cores", _both_cores, _PACKAGES, nodes=1, informative=True)
