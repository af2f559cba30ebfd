"""A planner's process: makes plans or standbys, one after the other, for the coordinator that started it (`bbgrap_coordinator.planning`).

Not to be started by hand: its arguments are what it makes and the descriptor of a pipe to the coordinator.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from bbgrap.cluster.types import Cluster
from bbgrap.control.planned import PlannedVariant
from bbgrap.engine.prepare import prepare
from bbgrap.engine.standby import standby_of
from bbgrap.errors import BbgrapError
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.client_messages import Fault
from bbgrap.transport.exit_with_parent import exit_with_parent
from bbgrap_coordinator.artifacts import write_artifacts
from bbgrap_coordinator.child import Reply, Task

Prepare = Callable[[Path, Mapping[str, tuple[int, ...]], Cluster, PlanOptions], tuple[PlannedVariant, ...]]
Standby = Callable[[Path], PlannedVariant]

FIRST_TO_GO = "500"
"""Of 1,000, what Linux adds to this process when memory runs out and one must end: its end costs one plan, that of others every request."""


def main(prepare: Prepare = prepare, standby: Standby = standby_of) -> None:
    """Plan until the coordinator ends."""
    exit_with_parent(lambda: os._exit(0))  # in the middle of a plan, too
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO)
    channel = Connection(int(sys.argv[2]))
    with suppress(EOFError, ConnectionError):  # the coordinator has ended
        while True:
            task: Task = channel.recv()
            channel.send_bytes(_reply(task, prepare, standby).to_bytes())


def _reply(task: Task, prepare: Prepare, standby: Standby) -> Reply:
    try:
        write_artifacts(task.folder, (standby(task.model),) if task.plan is None else prepare(task.model, *task.plan))
    except BbgrapError as error:
        return Reply(Fault.of(error).value, str(error))
    except OSError as error:
        return Reply(Fault.PLAN.value, f"planner: the coordinator cannot keep what was planned: {error.strerror or error}")
    except Exception as error:
        return Reply(Fault.PLAN.value, f"planner: {type(error).__name__}: {error}", traceback.format_exc())
    return Reply()


if __name__ == "__main__":
    main()
