"""How far away the other machines are: round trips and bandwidth over the data plane itself, to peers and the coordinator."""

from __future__ import annotations

import queue
import statistics
import time
from collections.abc import Sequence

from bbgrap.cluster.types import LinkProfile
from bbgrap.protocol.data import Frame, Kind
from bbgrap.protocol.messages import Peer
from bbgrap_agent.executor import Executor
from bbgrap_agent.fitting import rounded

_PINGS = 30
_BULK_BYTES = 1 << 20
_BULKS = 4
_PING_WAIT_S = 1.0


def measure_links(peers: Sequence[Peer], executor: Executor) -> tuple[LinkProfile, ...]:
    """Measure the links to all peers that answer, one after the other; requests that run meanwhile disturb it, and it them."""
    return tuple(link for peer in peers if (link := measure_link(peer, executor)) is not None)


def measure_link(peer: Peer, executor: Executor) -> LinkProfile | None:
    """Measure the data plane to a peer with the executor's own sockets; None if it does not answer.

    Bandwidth is that of the way back: the answers are large, the questions small.
    """
    pongs: queue.SimpleQueue[int] = queue.SimpleQueue()
    executor.post(lambda: executor.begin_pings(peer.address, pongs.put))
    try:
        times = [_ping(executor, peer, pongs, number, 0) for number in range(_PINGS)]
        bulk = [_ping(executor, peer, pongs, _PINGS + number, _BULK_BYTES) for number in range(_BULKS + 1)]
    except TimeoutError:
        return None
    finally:
        executor.post(lambda: executor.end_pings(peer.address))
    round_trip = statistics.median(times)
    seconds = max(statistics.median(bulk[1:]) - round_trip / 2, 1e-6)  # the first one finds pages that nobody has touched
    return LinkProfile(peer.name, rounded(_BULK_BYTES / seconds), rounded(round_trip))


def _ping(executor: Executor, peer: Peer, pongs: queue.SimpleQueue[int], number: int, size: int) -> float:
    """Return the seconds until a ping is answered with so many bytes.

    Raises:
        TimeoutError: if it never is. The first one may be too early for a peer that has just learned of us, so each is tried twice.
    """
    frame = Frame(Kind.PING, 0, 0, number, size)
    for _ in range(2):
        began = time.perf_counter()
        executor.post(lambda: executor.send_ping(peer.address, frame))
        try:
            while pongs.get(timeout=_PING_WAIT_S) != number:
                continue  # a late answer to an earlier try
            return time.perf_counter() - began
        except queue.Empty:
            continue
    raise TimeoutError
