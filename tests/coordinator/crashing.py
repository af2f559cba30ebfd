"""Ends itself by SIGKILL before its Nth step, for every N: a step is a statement of the database or whatever changes the file system.

python -m tests.coordinator.crashing FOLDER      prints how many steps there are; N's files are in FOLDER/N, what it said in `said`
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bbgrap_coordinator.artifacts import ArtifactFolders, write_artifacts
from bbgrap_coordinator.state_database import StateDatabase
from bbgrap_coordinator.storage import Storage

from bbgrap.cluster.types import NodeProfile
from bbgrap.control.coordinator_instructions import ForgetPlan, SaveModel, SavePlan, SaveProfile
from bbgrap.protocol.client_messages import ModelFile
from tests.coordinator.made import ARRAYS, plan, variant

STEPS = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "sqlite3.connect"})
CONNECT: Any = sqlite3.connect
DIGEST = "0" * 64
FILE = ModelFile("m.onnx", DIGEST, 5)


def main() -> None:
    home = Path(sys.argv[1])
    for limit in range(10_000):
        (home / str(limit)).mkdir()
        child = os.fork()
        if not child:
            run(home / str(limit), limit)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            sys.stdout.write(f"{limit} {os.waitstatus_to_exitcode(status)}")
            return


def run(folder: Path, limit: int) -> None:
    said = os.open(folder / "said", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    count = 0

    def step(*_: object) -> None:
        nonlocal count
        if count == limit:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    def connect(path: Path, **more: object) -> sqlite3.Connection:
        database: sqlite3.Connection = CONNECT(path, **more)
        database.set_trace_callback(step)
        return database

    sqlite3.connect = connect
    sys.addaudithook(lambda event, _: step() if event in STEPS else None)
    for jobs in ((1, 2), (3, 4)):
        session(folder, jobs, lambda text: os.write(said, f"{text}\n".encode()))


def session(folder: Path, jobs: tuple[int, int], say: Callable[[str], object]) -> None:
    """One life of a coordinator: two plans are saved, the first one is changed and forgotten."""
    state, folders = StateDatabase(folder / "state"), ArtifactFolders(folder / "state" / "plans")
    say(f"incarnation {state.incarnation}")
    storage = Storage(state, folders)
    storage.read({DIGEST: 5})
    for job in jobs:
        write_artifacts(folders.make(job), [variant(ARRAYS)])
        storage.made(job)
        storage.carry_out(SavePlan(plan(job)))
        storage.flush()
        say(f"saved {job}")
    storage.carry_out(SavePlan(plan(jobs[0], quarantine="it ended two agents")))
    storage.carry_out(SaveModel(DIGEST, (FILE,)))
    storage.carry_out(SaveProfile(NodeProfile("a"), by_hand=True))
    storage.saw_agents()
    storage.flush()
    say("noted all")
    say(f"forgets {jobs[0]}")
    storage.carry_out(ForgetPlan(jobs[0]))
    storage.flush()
    say(f"forgot {jobs[0]}")
    storage.close()


if __name__ == "__main__":
    main()
