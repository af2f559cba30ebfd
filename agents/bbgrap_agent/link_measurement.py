"""How far away the other machines are, and whether they answer at all: over the data plane itself, to peers and the coordinator.

Every question has a number that nobody can guess, so a late answer is not taken for that of another question, and only those that were
asked can answer. Laws: these functions are for other threads than the executor's; a peer answers between two of its kernels.
"""

from __future__ import annotations

import logging
import queue
import secrets
import statistics
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial

from bbgrap.cluster.types import LinkProfile
from bbgrap.errors import ExecutionError
from bbgrap.protocol.addresses import apart_text
from bbgrap.protocol.limits import MOST_FAR_S, ROUND_TRIPS
from bbgrap.protocol.messages import Peer
from bbgrap.transport.pings import LONG_BYTES
from bbgrap_agent.executor import Executor
from bbgrap_agent.speed_fitting import Check, rounded

_PINGS = 30
_FEWEST_PINGS = 5
_PINGS_S = 1.0
"""Fewer pings than `_PINGS` are enough where they take longer than that. Chosen."""
_LEAST_BULK_BYTES = 16 << 10
_BULK_BYTES = 1 << 20
_BULKS = 4
_BULK_S = 0.25
"""An answer that takes so long, and three times as long as an empty one, is large enough to tell of the bandwidth. Chosen."""
_PING_WAIT_S = 1.0
_BULK_WAIT_S = 5.0
_TRIES_S = (0.3, 0.5)
"""How long an answer may take, the first and the second time; a first question may come before a peer knows that it may answer."""
_PATIENCE = 4.0
"""Times what the slowest answer took that others may take: where answers come late, machines are busy, and their links are well. Chosen."""
_LONGEST_S = 2.2
"""How long a late answer is waited for at most: a coordinator waits 3 s for what was found, and for what is far away longer. Chosen."""
_EXECUTOR_WAIT_S = 60.0
"""How long this agent's own executor may be in a kernel before it sends anything. Chosen."""

_log = logging.getLogger("bbgrap.agent")

Pongs = queue.SimpleQueue[int]
"""The numbers of the questions that were answered."""


class AnsweredPeers:
    """The peers that have answered since something is deployed that sends to them; for any thread.

    Laws: a peer need not be asked for each deployment that sends to it; it is asked again when messages to it may have been lost.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_epoch: dict[int, frozenset[tuple[str, str]]] = {}

    def unasked(self, peers: Iterable[Peer]) -> list[Peer]:
        """Return the peers that are to be asked."""
        with self._lock:
            known = {peer for peers in self._by_epoch.values() for peer in peers}
        return [peer for peer in peers if (peer.address, peer.fingerprint) not in known]

    def add(self, epoch: int, peers: Iterable[Peer]) -> None:
        """Note which peers that a deployment sends to have answered."""
        with self._lock:
            self._by_epoch[epoch] = frozenset((peer.address, peer.fingerprint) for peer in peers)

    def forget(self, epoch: int) -> None:
        """Note that a deployment is gone."""
        with self._lock:
            self._by_epoch.pop(epoch, None)

    def lost(self, address: str) -> None:
        """Note that messages to an address may have been lost."""
        with self._lock:
            self._by_epoch = {epoch: frozenset(peer for peer in peers if peer[0] != address) for epoch, peers in self._by_epoch.items()}


class SilentPeers:
    """The peers that gave no answer when links were last tried; for any thread.

    Laws: who gives none twice in a row is named in this node's log, once: people read that first, and it would end with `joined`, though
    nobody reaches this node. One that has ended is not tried twice.
    """

    def __init__(self, own_address: str) -> None:
        self._own_address = own_address
        self._lock = threading.Lock()
        self._times: dict[str, int] = {}
        """How often in a row, by name."""

    def tried(self, peers: Iterable[Peer], missing: Iterable[Peer]) -> None:
        """Take what a trial of these peers has found."""
        silent, apart = {peer.name for peer in missing}, list[tuple[str, str]]()
        with self._lock:
            for peer in peers:
                before = self._times.pop(peer.name, 0)
                if peer.name in silent:
                    self._times[peer.name] = before + 1
                    if before == 1:
                        apart.append((peer.name, peer.address))
                elif before > 1:
                    _log.info("this node and '%s' reach each other again", peer.name)
        if apart:
            _log.warning("this node %s", apart_text(apart, self._own_address))


def unreachable(peers: Sequence[Peer], executor: Executor, tries_s: Sequence[float] = _TRIES_S) -> tuple[Peer, ...]:
    """Ask all peers at once for an answer, as often and as many seconds as told; return those that gave none, in their order.

    Where others answer late, those that are missing have longer: machines that start twenty agents at once shake hands for a second. And
    those have that are far away: over 200 ms a first answer takes all of 0.8 s.

    Raises:
        ExecutionError: if this agent's executor does not even come to sending.
    """
    missing, asked = dict(enumerate(peers)), dict[int, tuple[int, float]]()
    pongs: Pongs = queue.SimpleQueue()
    executor.post(lambda: executor.begin_pings(peers))
    first, until = time.monotonic(), 0.0

    def take(deadline: float) -> None:
        nonlocal until
        while missing and (number := _next(pongs, deadline)) is not None:
            place, began = asked[number]
            missing.pop(place, None)
            until = max(until, began + min(_LONGEST_S, _PATIENCE * (time.monotonic() - began)))

    try:
        for seconds in tries_s:
            if not missing:
                break
            questions, began = {secrets.randbits(63): place for place in missing}, time.monotonic()
            asked.update({number: (place, began) for number, place in questions.items()})
            _send(executor, {number: peers[place] for number, place in questions.items()}, pongs)
            take(time.monotonic() + seconds)
        farthest = max((executor.plane.round_trip_s(peer.address) for peer in missing.values()), default=0.0)
        until = max(until, first + min(MOST_FAR_S, ROUND_TRIPS * farthest))
        while missing and time.monotonic() < until:
            take(until)
    finally:
        executor.post(lambda: executor.end_pings(peers, asked))
    return tuple(missing.values())


def measure_links(peers: Sequence[Peer], executor: Executor, check: Check) -> tuple[LinkProfile, ...]:
    """Measure the links to all peers that answer, one after the other; requests that run meanwhile disturb it, and it them."""
    links = []
    for peer in peers:
        check()
        if (link := measure_link(peer, executor)) is not None:
            links.append(link)
        else:
            text = "it gave no answer in time; if it can be reached at all, plans take it for one of 1 Gbit/s"
            _log.info("the link to '%s' is not measured: %s", peer.name, text)
    return tuple(links)


def measure_link(peer: Peer, executor: Executor) -> LinkProfile | None:
    """Measure the data plane to a peer with the executor's own sockets; None if it does not answer.

    Bandwidth is that of the way back: the answers are large, the questions small.
    """
    asked: list[int] = []
    executor.post(lambda: executor.begin_pings([peer]))
    try:
        times = list[float]()
        while len(times) < _FEWEST_PINGS or (len(times) < _PINGS and sum(times) < _PINGS_S):
            times.append(_ping(executor, peer, 0, asked))
        round_trip, size = statistics.median(times), _LEAST_BULK_BYTES
        # The first one of a size finds pages that nobody has touched.
        while _ping(executor, peer, size, asked) < max(_BULK_S, 3 * round_trip) and size < _BULK_BYTES:
            size *= 4
        took = statistics.median(_ping(executor, peer, size, asked) for _ in range(_BULKS))
    except TimeoutError:
        return None
    finally:
        executor.post(lambda: executor.end_pings([peer], asked))
    # A large answer takes no less than a small one: where the small ones took longer, the machine was busy meanwhile.
    seconds = max(took - min(round_trip, took) / 2, 1e-6)
    return LinkProfile(peer.name, rounded(size / seconds), rounded(round_trip))


def _ping(executor: Executor, peer: Peer, size: int, asked: list[int]) -> float:
    """Return the seconds until a question is answered with so many bytes; its numbers are added to `asked`.

    Raises:
        TimeoutError: if it never is, though asked twice.
    """
    for _ in range(2):
        number, pongs = secrets.randbits(63), queue.SimpleQueue[int]()
        asked.append(number)
        began = time.perf_counter()
        executor.post(partial(executor.send_ping, peer, number, size, pongs.put))
        if _next(pongs, time.monotonic() + (_BULK_WAIT_S if size else _PING_WAIT_S)) is not None:
            return time.perf_counter() - began
    raise TimeoutError


def _send(executor: Executor, questions: dict[int, Peer], pongs: Pongs) -> None:
    """Have questions sent, as long as the answers, and wait until they are: before, nobody can answer.

    Raises:
        ExecutionError: if they are not within a minute.
    """
    sent: queue.SimpleQueue[None] = queue.SimpleQueue()

    def send() -> None:
        for number, peer in questions.items():
            executor.send_ping(peer, number, LONG_BYTES, pongs.put, LONG_BYTES)
        sent.put(None)

    executor.post(send)
    try:
        sent.get(timeout=_EXECUTOR_WAIT_S)
    except queue.Empty:
        raise ExecutionError(f"links: this agent's executor has been in one kernel for {_EXECUTOR_WAIT_S:g} s; is it stuck?") from None


def _next(pongs: Pongs, deadline: float) -> int | None:
    """Return the number of the next question that was answered; None if none was before the deadline."""
    try:
        return pongs.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        return None
