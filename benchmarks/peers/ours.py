"""bbgrap itself, locked as it always is: planner `auto`, for latency where one request is asked for, for throughput where several are."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from bbgrap.planners.options import Objective, PlanOptions
from bbgrap.session import InferenceSession
from benchmarks.peers.peer import Peer, Running, Setting

_THREADS = 64
"""More than requests are ever on their way."""


@contextmanager
def _open(setting: Setting) -> Iterator[Running]:
    with setting.coordinator.connect() as connection, ThreadPoolExecutor(_THREADS, "request") as pool:
        connection.profile()

        def prepared(objective: Objective) -> InferenceSession:
            session = InferenceSession(setting.path, cluster=connection, options=PlanOptions("auto", objective=objective))
            session.prepare({name: array.shape for name, array in setting.feeds.items()}, setting.feeds)
            return session

        alone, stream = prepared("latency"), prepared("throughput")
        facts = {"latency": alone.plan.report.get("serving"), "throughput": stream.plan.report.get("serving")}
        yield Running(lambda feeds: alone.run(None, feeds), lambda feeds: pool.submit(stream.run, None, feeds).result, facts)


PEER = Peer("bbgrap", "bbgrap, planner auto", _open)
