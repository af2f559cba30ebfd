"""A pipeline of two stages over Ray: an actor on each node, onnxruntime inside; what crosses goes from store to store.

Ray's compiled graphs would save some time per call, but a check of its own fails in its daemon (2.60) where two nodes are on one host.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.machines import free_port
from benchmarks.peers.halves import Stage
from benchmarks.peers.peer import START_S, Feeds, Peer, Running, Setting, Waiter, did_not_start
from benchmarks.testbed import process_at

_STORE_BYTES = 512 << 20
_ROOT = Path(__file__).parents[2]


@contextmanager
def _open(setting: Setting) -> Iterator[Running]:
    import ray

    # Its workers unpickle the stages by the name of their module.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # it warns of this otherwise
    address = f"{setting.hosts[0]}:{free_port(setting.hosts[0])}"
    logs = [setting.home / f"ray{number}.log" for number in range(len(setting.places))]
    with ExitStack() as stack:
        # Paths of sockets are short.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True))
        for number, (place, host, log) in enumerate(zip(setting.places, setting.hosts, logs, strict=True)):
            where = ["--address", address] if number else ["--head", "--port", address.rpartition(":")[2], "--include-dashboard", "false"]
            options = ["--node-ip-address", host, "--num-cpus", "1", "--resources", json.dumps({f"node{number}": 1}), "--temp-dir", folder]
            options += ["--object-store-memory", str(_STORE_BYTES), "--include-log-monitor", "false", "--disable-usage-stats", "--block"]
            stack.enter_context(process_at(place, log, "ray.scripts.scripts", "start", *where, *options))
            _wait_for(log, logs)
        ray.init(address=address, _node_ip_address=setting.hosts[0], log_to_driver=False, logging_level="error")
        stack.callback(ray.shutdown)
        actor: Any = ray.remote(Stage)
        paths = setting.halves.paths
        first, second = (actor.options(num_cpus=1, resources={f"node{number}": 1}).remote(path) for number, path in enumerate(paths))

        def begin(feeds: Feeds) -> Waiter:
            answer = second.run.remote(first.run.remote(list(feeds.values())))
            return lambda: ray.get(answer)

        yield Running(lambda feeds: begin(feeds)(), begin, {"cut": setting.halves.cut, "stages_s": setting.halves.seconds})


def _wait_for(log: Path, logs: list[Path]) -> None:
    deadline = time.monotonic() + START_S
    while "Ray runtime started" not in log.read_text(errors="replace"):
        if time.monotonic() > deadline:
            raise did_not_start("Ray", *logs)
        time.sleep(0.05)


PEER = Peer("ray", "two stages over Ray", _open, {"ray": "ray", "onnxruntime": "onnxruntime"})
