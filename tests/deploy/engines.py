"""What the tests of Ray and Dask share: requests that go on while nodes come and go, and looks for processes that are left."""

import threading
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import psutil

import bbgrap
from bbgrap.engine.spread import ReferenceAnswers
from bbgrap.launching.engine_cluster import EngineCluster
from bbgrap.zoo import materialize
from tests.waiting import until

START_S = 240.0
"""How long a cluster may take to start: several suites may run on the machine."""

wait_for = partial(until, within_s=400.0, every_s=0.2)
"""Nodes come and go slowly, and a look at all processes takes time."""


def agents_of(address: str) -> list[psutil.Process]:
    """The processes of agents that have joined a coordinator, or want to."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "bbgrap_agent.main" in command and address in command:
            found.append(process)
    return found


def names(cluster: EngineCluster) -> list[str]:
    """The agents that have joined."""
    return sorted(node.name for node in cluster.connection.nodes())


class Requests:
    """ResNet50, asked for without a pause until the block ends; then the answers are compared with onnxruntime's."""

    def __init__(self, cluster: EngineCluster, folder: Path) -> None:
        self.path = materialize("resnet50", folder)
        # This planner divides among all, so whoever is lost had a part.
        self.cluster = cluster
        self.session = bbgrap.InferenceSession(self.path, cluster=cluster, planner="bbgrap")
        self.feed = self._feed(1)
        self.answers: list[list[np.ndarray]] = []
        self.failures: list[Exception] = []
        self.stopping = threading.Event()

    def _feed(self, images: int) -> dict[str, np.ndarray]:
        return {self.session.get_inputs()[0].name: np.random.default_rng(images).standard_normal((images, 3, 224, 224), np.float32)}

    def agents(self, images: int) -> tuple[str, ...]:
        """Among whom so many images are divided, which nobody has asked for; several plans of one shape would compete for requests."""
        session = bbgrap.InferenceSession(self.path, cluster=self.cluster, planner="bbgrap")
        feed = self._feed(images)
        answer = session.run(None, feed)
        assert ReferenceAnswers(self.path, feed).judge(answer).verified
        return tuple(sorted(session.plan.agents))

    def ask(self) -> None:
        """Ask until told to stop."""
        while not self.stopping.is_set():
            try:
                self.answers.append(self.session.run(None, self.feed))
            except Exception as error:
                self.failures.append(error)

    def some_more(self, count: int = 5) -> None:
        """Wait for further answers."""
        enough = len(self.answers) + count
        wait_for(lambda: self.failures or len(self.answers) >= enough)

    def __enter__(self) -> Self:
        self.thread = threading.Thread(target=self.ask)
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stopping.set()
        self.thread.join()
        if kind is None:
            assert self.failures == []
            witnesses = ReferenceAnswers(self.path, self.feed)
            for answer in {
                id(answer): answer for answer in (self.answers[0], self.answers[len(self.answers) // 2], self.answers[-1])
            }.values():
                assert witnesses.judge(answer).verified
            for answer in self.answers:
                np.testing.assert_allclose(answer[0], self.answers[0][0], rtol=1e-3, atol=1e-3)
