"""A planner's process that plans with `tests.cluster.tiny`."""

from bbgrap_coordinator.planner import main

from tests.cluster import tiny

if __name__ == "__main__":
    main(tiny.prepare)
