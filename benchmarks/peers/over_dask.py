"""A pipeline of two stages over Dask: an actor on each node, onnxruntime inside.

Actors, for their calls do without the scheduler; tasks took longer here. What crosses passes the client, which is where the first stage is.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from benchmarks.machines import free_port
from benchmarks.peers.halves import Stage
from benchmarks.peers.peer import START_S, Answers, Feeds, Peer, Running, Setting, did_not_start
from benchmarks.testbed import process_at

_THREADS = 64
"""More than requests are ever on their way."""


@contextmanager
def _open(setting: Setting) -> Iterator[Running]:
    from distributed import Client

    port = free_port(setting.hosts[0])
    address = f"tcp://{setting.hosts[0]}:{port}"
    logs = [setting.home / f"dask-{name}.log" for name in ("scheduler", "node0", "node1")]
    with ExitStack() as stack:
        options = ["--host", setting.hosts[0], "--port", str(port), "--no-dashboard", "--no-show"]
        stack.enter_context(process_at(setting.places[0], logs[0], "distributed.cli.dask_scheduler", *options))
        for number, (place, host) in enumerate(zip(setting.places, setting.hosts, strict=True)):
            options = ["--host", host, "--name", f"node{number}", "--nthreads", "1", "--no-nanny", "--no-dashboard"]
            options += ["--local-directory", str(setting.home)]
            stack.enter_context(process_at(place, logs[number + 1], "distributed.cli.dask_worker", address, *options))
        try:
            client = stack.enter_context(Client(address, timeout=START_S))
            client.wait_for_workers(len(setting.places), timeout=START_S)
        except OSError:  # TimeoutError is one
            raise did_not_start("Dask", *logs) from None
        paths = setting.halves.paths
        first, second = (client.submit(Stage, path, actor=True, workers=[f"node{n}"]).result() for n, path in enumerate(paths))
        pool = stack.enter_context(ThreadPoolExecutor(_THREADS, "request"))

        def run(feeds: Feeds) -> Answers:
            between = first.run(list(feeds.values())).result()
            answers: Answers = second.run(between).result()
            return answers

        facts = {"cut": setting.halves.cut, "stages_s": setting.halves.seconds}
        yield Running(run, lambda feeds: pool.submit(run, feeds).result, facts)


PEER = Peer("dask", "two stages over Dask", _open, {"distributed": "distributed", "onnxruntime": "onnxruntime"})
