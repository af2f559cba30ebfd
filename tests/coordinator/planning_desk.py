"""Planners with a store of models and a place for what they make."""

from __future__ import annotations

import hashlib
import queue
import time
from pathlib import Path

from bbgrap_coordinator.artifacts import ArtifactFolders
from bbgrap_coordinator.models import ModelStore
from bbgrap_coordinator.planning import PlanningQueues

from bbgrap.cluster import Cluster
from bbgrap.control.coordinator_events import PlanFailed, Planned
from bbgrap.control.coordinator_instructions import StartPlanning, StartStandby
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.client_messages import ModelFile
from bbgrap.zoo import materialize

SHAPES = {"input": (1, 3, 32, 32)}
STRANGE = ("-m", "tests.coordinator.strange_planner")
WAIT_S = 60


class Desk:
    """Where jobs are given, and answers come."""

    def __init__(self, planners: PlanningQueues, folder: Path) -> None:
        self.planners = planners
        self.answers: queue.Queue[Planned | PlanFailed] = queue.Queue()
        self.models, self.folders = ModelStore(folder / "models"), ArtifactFolders(folder / "plans")
        self.file = self.keep(materialize("tiny").read_bytes())
        planners.begin(self.models, self.folders, self.answers.put)

    def keep(self, content: bytes) -> ModelFile:
        """Store a model."""
        digest = hashlib.sha256(content).hexdigest()
        (self.models.directory / digest).write_bytes(content)
        return ModelFile("tiny-1.onnx", digest, len(content))

    def plan(
        self,
        job: int,
        planner: str = "bbgrap",
        cluster: Cluster | None = None,
        file: ModelFile | None = None,
        client: bytes = b"",
        **options: int,
    ) -> None:
        """Ask for a plan."""
        asked = PlanOptions(planner, **options)  # type: ignore[arg-type]  # names of planners are not checked here
        self.planners.submit(StartPlanning(job, (file or self.file,), SHAPES, cluster or Cluster.even(2), asked, client=client))

    def standby(self, job: int, file: ModelFile | None = None) -> None:
        """Ask for a standby."""
        self.planners.submit(StartStandby(job, (file or self.file,)))

    def answer(self, within_s: float = WAIT_S) -> Planned | PlanFailed:
        """Return the next answer."""
        return self.answers.get(timeout=within_s)

    def clear(self) -> None:
        """End all jobs, and their processes: the next test shall not meet one that ends, but another."""
        for job in self.jobs_on_disk():
            self.planners.cancel(job)
            self.folders.remove(job)
        for queue_ in (self.planners.plans, self.planners.standbys):
            while queue_._doomed or not queue_._lock._waiters:  # its thread has removed what it was at when it waits for the next job
                time.sleep(0.01)
            queue_.start()

    def jobs_on_disk(self) -> list[int]:
        """Return whose folders are there."""
        return sorted(int(path.name) for path in self.folders.directory.iterdir())
