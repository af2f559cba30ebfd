"""The planner's process: plans one model after the other for the coordinator that started it (`bbgrap_coordinator.planning`).

Not to be started by hand: its argument is the descriptor of a pipe to the coordinator.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from bbgrap.control.planned import PlannedVariant
from bbgrap.engine.prepare import prepare
from bbgrap.errors import BbgrapError
from bbgrap.graph.types import Array
from bbgrap.transport.exit_with_parent import exit_with_parent
from bbgrap_coordinator.planning import Job, Packed, pack

FIRST_TO_GO = "500"
"""Of 1,000, what Linux adds to this process when memory runs out and one must end: its end costs one plan, that of others every request."""


def main() -> None:
    """Plan until the coordinator ends."""
    exit_with_parent(lambda: os._exit(0))  # in the middle of a plan, too
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO)
    channel = Connection(int(sys.argv[1]))
    with suppress(EOFError, ConnectionError):  # the coordinator has ended
        while True:
            channel.send(_answer(channel.recv()))


def _answer(job: Job) -> Packed | Exception:
    try:
        variants = prepare(job.model, job.shapes, job.cluster, job.options)
        with job.weights.open("wb") as weights:
            return pack(_each_once(variants), weights)
    except BbgrapError as error:
        return error
    except Exception as error:
        # of a plain kind: not every error can be made anew from what it says of itself
        bug = RuntimeError(f"{type(error).__name__}: {error}")
        bug.add_note(f"In the planner:\n{traceback.format_exc()}")
        return bug


def _each_once(variants: tuple[PlannedVariant, ...]) -> tuple[PlannedVariant, ...]:
    """Let variants share the arrays of equal weights, so that they are written once."""
    known: dict[str, Array] = {}
    shared = []
    for variant in variants:
        weights = {digest: known.setdefault(digest, array) for digest, array in variant.artifacts.weights.items()}
        shared.append(replace(variant, artifacts=replace(variant.artifacts, weights=weights)))
    return tuple(shared)


if __name__ == "__main__":
    main()
