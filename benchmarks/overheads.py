"""What does the cluster itself cost, apart from computing?

    empty request     a model that computes next to nothing, on two agents: client -> coordinator -> agents -> coordinator -> client
    14 KB exchange    a row of halo (64 channels of 56 floats) to another process and back, half of it; between planes and nothing else
    locked            the same over TLS, and with 64 B and 1 MiB
    idle CPU          of coordinator and agents together, once a request has been answered

Everything runs on this machine, so the network is its loopback. `--json` prints the same figures for programs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np
import psutil
from onnx import TensorProto, helper

import bbgrap
from bbgrap.transport.certificates import Authority
from bbgrap.transport.tcp import TcpDataPlane
from bbgrap.transport.tls import TlsIdentity

HALO_BYTES = 64 * 56 * 4
IDLE_S = 2.0


def empty_model() -> bytes:
    """Return a model of one operator on 64 numbers."""
    shape = [1, 1, 8, 8]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "empty",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())


def microseconds(work: Callable[[], object], count: int) -> list[float]:
    """Return how long each of some runs takes, in order of length, after a tenth as many to warm up."""
    times = []
    for number in range(-count // 10, count):
        began = time.perf_counter()
        work()
        if number >= 0:
            times.append((time.perf_counter() - began) * 1e6)
    return sorted(times)


def echo(pipe: Connection, spin_s: float, identity: TlsIdentity | None) -> None:
    """Send back what comes, in a process of its own, until an empty message comes."""
    plane = TcpDataPlane("tcp://127.0.0.1:0", "127.0.0.1", identity=identity)
    pipe.send(plane.address)
    target, fingerprint = pipe.recv()
    plane.allow([fingerprint])
    plane.connect(target, fingerprint)
    pipe.send(None)
    while True:
        arrival = plane.receive(None, spin_s)
        if arrival is not None and not len(arrival.payload):
            break
        if arrival is not None:
            plane.send(target, arrival.header, arrival.payload)
    plane.close()


def exchanges(count: int, spin_s: float, size: int = HALO_BYTES, *, locked: bool = False) -> list[float]:
    """Return half the round trips of so many bytes, in microseconds."""
    here, there = multiprocessing.Pipe()
    authority = Authority.make()
    mine, theirs = (authority.identity(name) if locked else None for name in ("here", "there"))
    plane = TcpDataPlane("tcp://127.0.0.1:0", "127.0.0.1", identity=mine)
    process = multiprocessing.get_context("spawn").Process(target=echo, args=(there, spin_s, theirs))
    process.start()
    target = here.recv()
    here.send((plane.address, "" if mine is None else mine.fingerprint))
    here.recv()
    fingerprint = "" if theirs is None else theirs.fingerprint
    plane.allow([fingerprint])
    plane.connect(target, fingerprint)
    header, payload = bytes(32), bytes(size)

    def round_trip() -> None:
        plane.send(target, header, payload)
        while plane.receive(1.0, spin_s) is None:
            pass

    times = [time_us / 2 for time_us in microseconds(round_trip, count)]
    plane.send(target, header)
    process.join()
    plane.close()
    return times


def measure(count: int) -> dict[str, float]:
    """Return all figures."""
    with bbgrap.LocalCluster(agents=2, threads=1) as cluster:
        session = bbgrap.InferenceSession(empty_model(), cluster=cluster)
        feed = {"x": np.ones((1, 1, 8, 8), np.float32)}
        requests = microseconds(lambda: session.run(None, feed), count)
        time.sleep(0.5)
        children = [psutil.Process(process.pid) for process in cluster.processes.values()]
        before = [sum(child.cpu_times()[:2]) for child in children]
        time.sleep(IDLE_S)
        burnt = sum(sum(child.cpu_times()[:2]) for child in children) - sum(before)
    busily, asleep = exchanges(count, 200e-6), exchanges(count, 0.0)
    return {
        "empty_request_us": statistics.median(requests),
        "empty_request_p95_us": requests[int(0.95 * len(requests))],
        "exchange_14kb_us": statistics.median(busily),
        "exchange_14kb_p95_us": busily[int(0.95 * len(busily))],
        "exchange_14kb_without_spinning_us": statistics.median(asleep),
        **{
            f"exchange_{label}_{'locked' if locked else 'plain'}_us": statistics.median(exchanges(runs, 200e-6, size, locked=locked))
            for label, size, runs in (
                ("64b", 64, count),
                ("14kb", HALO_BYTES, count),
                ("64kb", 64 << 10, count),
                ("1mb", 1 << 20, count // 4),
            )
            for locked in (False, True)
        },
        "idle_cpu_percent": 100 * burnt / IDLE_S,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="requests and exchanges to measure")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    figures = measure(given.count)
    if given.json:
        machine = {
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "bbgrap": bbgrap.__version__,
        }
        print(json.dumps(machine | figures, indent=2))
        return
    for name, value in figures.items():
        label, _, unit = name.rpartition("_")
        print(f"{label.replace('_', ' '):36}{value:10.1f} {'%' if unit == 'percent' else 'µs'}")


if __name__ == "__main__":
    main()
