"""A real coordinator process that plans with `tests.cluster.tiny`, unless told otherwise."""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

from bbgrap_coordinator.planning import PlanningQueues
from bbgrap_coordinator.service import serve

PLANNER = ("-m", "tests.cluster.planner_process")


def main(planner: Sequence[str] = PLANNER) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bind")
    parser.add_argument("--state-dir", type=Path)
    parser.add_argument("--ready-file", type=Path)
    parser.add_argument("--until-eof", action="store_true")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    with PlanningQueues(planner) as planners:
        serve(
            given.bind,
            planners=planners,
            state_dir=given.state_dir,
            state_bytes=1 << 30,
            ready_file=given.ready_file,
            until_eof=given.until_eof,
        )


if __name__ == "__main__":
    main()
