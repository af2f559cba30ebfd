"""Two replicas behind a queue: the whole model in onnxruntime on each node, over ZeroMQ. Whoever is free takes the next request.

The queue lives in the client. Every replica holds one request more than it works on, so that tensors travel while it computes; of two that
are equally free the one on the client's node is asked. `python -m benchmarks.peers.replicas ADDRESS MODEL` is a replica.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgpack
import numpy as np
import zmq

from bbgrap.engine.reference import Reference
from bbgrap.graph import Array
from benchmarks.machines import free_port
from benchmarks.peers.peer import START_S, Answers, Feeds, Peer, Running, Setting, Waiter, did_not_start
from benchmarks.testbed import process_at

_SLOTS = 2
"""Requests that a replica holds: one in work, one in wait."""

_READY = b"ready"


class Queue:
    """The client's end: requests in, answers out, each to whoever has a free slot."""

    def __init__(self, address: str) -> None:
        """Listen."""
        self._socket = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.bind(address)
        self._held: dict[bytes, int] = {}
        self._waiting: deque[tuple[int, Feeds]] = deque()
        self._answers: dict[int, list[Array]] = {}
        self._count = 0

    def admit(self, replicas: int, seconds: float) -> bool:
        """Wait until so many replicas are there, the nearest known by the first name; returns whether they are."""
        deadline = time.monotonic() + seconds
        while len(self._held) < replicas and (left := deadline - time.monotonic()) > 0:
            if self._socket.poll(1000 * left):
                self._take()
        self._held = dict(sorted(self._held.items()))
        return len(self._held) == replicas

    def begin(self, feeds: Feeds) -> Waiter:
        """Queue a request."""
        self._count += 1
        number = self._count
        self._waiting.append((number, feeds))
        self._give()
        return lambda: self._wait(number)

    def close(self) -> None:
        """Stop listening."""
        self._socket.close(linger=0)

    def _wait(self, number: int) -> Answers:
        while number not in self._answers:
            self._take()
        return self._answers.pop(number)

    def _take(self) -> None:
        who, kind, *frames = self._socket.recv_multipart(copy=False)
        if kind.bytes == _READY:
            self._held[who.bytes] = 0
            return
        self._held[who.bytes] -= 1
        self._give()  # before the answer is looked at: the replica is waiting
        self._answers[int.from_bytes(kind.bytes)] = list(_arrays(frames).values())

    def _give(self) -> None:
        while self._waiting and self._held:
            who = min(self._held, key=self._held.__getitem__)
            if self._held[who] == _SLOTS:
                return
            number, feeds = self._waiting.popleft()
            self._held[who] += 1
            self._socket.send_multipart([who, number.to_bytes(8), *_frames(feeds)], copy=False)


def _frames(arrays: Mapping[str, Array]) -> list[bytes | memoryview]:
    head = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
    return [msgpack.packb(head), *(np.ascontiguousarray(array).data for array in arrays.values())]


def _arrays(frames: Sequence[zmq.Frame]) -> dict[str, Array]:
    head = msgpack.unpackb(frames[0].bytes)
    return {name: np.frombuffer(frame.buffer, dtype).reshape(shape) for (name, dtype, shape), frame in zip(head, frames[1:], strict=True)}


def serve(address: str, name: str, model: Path) -> None:
    """Answer a queue's requests, until standard input ends."""
    session = Reference(model, threads=1)
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, name.encode())
    socket.connect(address)
    socket.send_multipart([_READY])
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    while sys.stdin.fileno() not in dict(poller.poll()):
        number, *frames = socket.recv_multipart(copy=False)
        answers = session.run(_arrays(frames))
        socket.send_multipart([number, *_frames({str(index): array for index, array in enumerate(answers)})], copy=False)


@contextmanager
def _open(setting: Setting) -> Iterator[Running]:
    address = f"tcp://{setting.hosts[0]}:{free_port(setting.hosts[0])}"
    queue = Queue(address)
    logs = [setting.home / f"replica{number}.log" for number in range(len(setting.places))]
    with ExitStack() as stack:
        stack.callback(queue.close)
        for number, (place, log) in enumerate(zip(setting.places, logs, strict=True)):
            stack.enter_context(process_at(place, log, __name__, address, f"replica{number}", str(setting.path)))
        if not queue.admit(len(logs), START_S):
            raise did_not_start("replicas", *logs)
        yield Running(lambda feeds: queue.begin(feeds)(), queue.begin, {"requests_held_per_replica": _SLOTS})


PEER = Peer("replicas", "two replicas behind a queue", _open, {"onnxruntime": "onnxruntime"})

if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
