"""What happens to a request, whichever way it came: it is let in, decoded, run on the cluster, encoded; or it is refused.

One thread does all of a plain request (`bbgrap.serving.connection_threads`). Of others the event loop moves the bytes, and a thread does
the rest. Laws: at most `in_flight` requests are let in; who gives up, by a deadline or by going away, takes the request out of the
coordinator's queue; while the coordinator is away nobody waits for it for long.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakSet

from bbgrap.errors import BbgrapError, ModelChangedError
from bbgrap.graph.types import Array
from bbgrap.own_process import give_back_freed
from bbgrap.protocol.client_messages import ListNodes, Nodes
from bbgrap.serving.batching import Batcher
from bbgrap.serving.infer_request import InferRequest
from bbgrap.serving.model import Durations, ServedModel
from bbgrap.serving.open_sequences import SequenceTurn
from bbgrap.serving.refusals import Refusal, RefusedError, malformed, refusal_of
from bbgrap.serving.repository import Repository
from bbgrap.serving.request_places import SMALL_BYTES, RequestPlace, RequestPlaces
from bbgrap.serving.tracing import Tracing
from bbgrap.session import Connection
from bbgrap.session.calls import CallFailedError
from bbgrap.session.stops import StoppedError

if TYPE_CHECKING:
    from bbgrap.observing.spans import RequestSpan

R = TypeVar("R")

DEADLINE_S = 300.0
"""Of a request that says nothing else; as a session's."""

_LOOK_EVERY_S, _SILENT_S = 1.0, 2.0
"""How often the coordinator is asked whether it is there, and after how long without an answer it is away."""

_GIVES_BACK_EVERY = 60
"""After so many looks at which nothing had come since the one before, and after the first, what was freed is given back to the system."""

MOST_UNSENT_BYTES = 1 << 30
"""Of answers that are still sent, beyond which no request is let in and further answers are dropped: clients that were stopped have them
kept. One may be larger."""

_ROOM_S, _LOOK_S = 30.0, 0.02
"""How long inputs may wait until they are read, and how often is looked whether they may."""

_PATIENCE_S = 10.0
"""So long requests that run wait for a coordinator that is away: one that is started anew goes on with them."""

_log = logging.getLogger("bbgrap.serving")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server takes on."""

    in_flight: int = 64
    body_bytes: int = 256 << 20
    batch_rows: int = 1
    batch_delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Inference(Generic[R]):
    """One inference: what is asked for, what makes the answer of its outputs, and its trace."""

    asked: InferRequest
    answer: Callable[[list[Array]], R]
    traceparent: str

    @property
    def deadline_s(self) -> float:
        """How long it may take."""
        return DEADLINE_S if self.asked.timeout_s is None else min(self.asked.timeout_s, DEADLINE_S)


class Gateway:
    """A server's requests.

    Invariants: `_places` are of those that were let in and have not ended, `unsent` the answers to them that are still sent, which have
    `_unsent_bytes`, `_come` all of them. What is not asynchronous any thread may call.
    """

    def __init__(self, connection: Connection, repository: Repository, limits: Limits, tracing: Tracing | None = None) -> None:
        self.connection = connection
        self.repository = repository
        self.limits = limits
        self.tracing = tracing or Tracing()
        self.unsent = 0
        self._unsent_bytes = 0
        self._come = 0
        self._places = RequestPlaces()
        self._lock = self._places.lock
        self.is_loaded = False
        """Whether the models of the start have been looked at."""
        self.is_draining = False
        self.nodes = 0
        self._away_since: float | None = None
        self._away = ""
        self._gave_up = False
        self._threads = ThreadPoolExecutor(limits.in_flight, "bbgrap-serve")
        self._beside = ThreadPoolExecutor(2, "bbgrap-serve-beside")
        self._loader = ThreadPoolExecutor(1, "bbgrap-serve-load")
        self._watcher = ThreadPoolExecutor(1, "bbgrap-serve-watch")
        self._batchers: dict[ServedModel, Batcher] = {}
        self._changed: WeakSet[ServedModel] = WeakSet()

    # --- whether it serves ------------------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Keep looking whether the coordinator is there."""
        loop = asyncio.get_running_loop()
        while True:
            asking = loop.run_in_executor(self._watcher, self._unless_stopping, self._list_nodes)
            asking.add_done_callback(lambda future: future.cancelled() or future.exception())  # whoever has stopped waiting has seen it
            if not (await asyncio.wait([asking], timeout=_SILENT_S))[0]:
                self._note_away(f"the coordinator at {self.connection.address} does not answer")
            try:
                self.nodes = len((await asking).nodes)
                if self._away:
                    _log.warning("requests are taken again")
                self._away_since, self._away = None, ""
            except (BbgrapError, CallFailedError, StoppedError, TimeoutError) as error:
                self._note_away(str(error) or f"the coordinator at {self.connection.address} does not answer")
            await asyncio.sleep(_LOOK_EVERY_S)

    async def tidy(self) -> None:
        """Keep giving back what was freed while nothing goes on: after large answers glibc keeps several times what they took."""
        quiet, come = 0, self._come
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            quiet = quiet + 1 if come == self._come and not self.in_flight else 0
            come = self._come
            if quiet % _GIVES_BACK_EVERY == 1:
                await self.beside(give_back_freed)

    def _note_away(self, why: str) -> None:
        if why != self._away and not self.is_draining:
            _log.warning("requests are refused: %s", why)
        self._away_since = self._away_since or time.monotonic()
        self._away = why

    def _list_nodes(self) -> Nodes:
        # Longer than a connection takes to be opened anew, which the call does by itself.
        return self.connection.try_call(ListNodes(self.connection.number()), Nodes, timeout_s=_PATIENCE_S)

    def _unless_stopping(self, work: Callable[[], R]) -> R:
        with self.connection.stops.when(lambda: self.is_draining):
            return work()

    def why_not_ready(self) -> str:
        """Return why requests are better sent elsewhere; empty if they are not."""
        if self.is_draining:
            return "the server is stopping"
        if not self.is_loaded:
            return "models are being loaded"
        if self._away:
            return self._away
        return "" if self.nodes else "the cluster has no agents"

    def give_up(self) -> None:
        """End what runs: the server stops and has waited long enough."""
        self._gave_up = True

    # --- requests ---------------------------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """How many requests were let in and have not ended."""
        return len(self._places)

    @contextmanager
    def admitted(self, nbytes: int = 0) -> Iterator[RequestPlace]:
        """Let a request in, with inputs of so many bytes, once there is room for them; this thread waits meanwhile.

        Where all places are taken, or all room, it gets those of a client that has stopped in the middle of its body.

        Raises:
            RefusedError: if there are too many, or too many answers that nobody takes, the server stops, or there is no coordinator.
        """
        until = time.monotonic() + _ROOM_S
        while (place := self._place(nbytes, until)) is None:
            time.sleep(_LOOK_S)
        with self._places.held(place):
            yield place

    @asynccontextmanager
    async def admitted_soon(self, nbytes: int) -> AsyncIterator[RequestPlace]:
        """Let a request in as `admitted` does, on the event loop."""
        until = time.monotonic() + _ROOM_S
        while (place := self._place(nbytes, until)) is None:
            await asyncio.sleep(_LOOK_S)
        with self._places.held(place):
            yield place

    def _place(self, nbytes: int, until: float) -> RequestPlace | None:
        """Return a place, or None if there is no room for its inputs yet."""
        if self.is_draining or self._away:
            raise RefusedError(Refusal.UNAVAILABLE, "the server is stopping" if self.is_draining else self._away)
        with self._lock:
            if self.in_flight >= self.limits.in_flight and not self._places.free_one():
                raise RefusedError(Refusal.BUSY, f"{self.in_flight} requests are in flight, no more are taken (--max-in-flight)")
            if self._unsent_bytes > MOST_UNSENT_BYTES and self.unsent > 1:
                raise self._too_many_unsent()
            if not self._places.has_room(nbytes):
                if time.monotonic() > until:
                    raise RefusedError(
                        Refusal.BUSY, f"inputs of {self._places.nbytes} bytes are here; more are not read before some have ended"
                    )
                self._places.free_one()
                return None
            self._come += 1
            return self._places.take(nbytes)

    def begin_sending(self, nbytes: int) -> Callable[[], None]:
        """Count an answer whose client has not taken all of it; return what is to be called when it has.

        It takes nobody's place, but a server that stops waits for it.
        """
        self._count_unsent(1, nbytes)
        return partial(self._count_unsent, -1, -nbytes)

    def _too_many_unsent(self, more: int = 0) -> RefusedError:
        kept = f"{self.unsent} answers of {self._unsent_bytes} bytes are not taken by their clients"
        return RefusedError(
            Refusal.BUSY, f"{kept}; {f'one more of {more} bytes is dropped' if more else 'no more requests are'} before some are"
        )

    def _count_unsent(self, answers: int, nbytes: int) -> None:
        with self._lock:
            self.unsent += answers
            self._unsent_bytes += nbytes

    async def infer(self, model: ServedModel, work: Inference[R]) -> R:
        """Return the answer to a request that was let in.

        Raises:
            RefusedError: if there is none.
        """
        began = time.perf_counter_ns()
        is_over = False
        limit = asyncio.timeout(work.deadline_s)
        try:
            with self.tracing.request(model.name, work.traceparent) as span:
                async with limit:
                    answer, where = await self._answer(model, work, lambda: is_over, span)
        except Exception as error:
            model.statistics.failed(time.perf_counter_ns() - began)
            raise self._refusal(model, error, work.deadline_s, is_late=limit.expired()) from error
        except asyncio.CancelledError:
            model.statistics.failed(time.perf_counter_ns() - began)
            raise
        finally:
            is_over = True
        model.statistics.succeeded(time.perf_counter_ns() - began, where)
        return answer

    def runs_at_once(self, model: ServedModel) -> bool:
        """Return whether a request of a model needs no other: it is neither part of a sequence nor of a batch."""
        return model.sequences is None and (self.limits.batch_rows <= 1 or not model.has_rows)

    def infer_here(self, model: ServedModel, work: Inference[R], has_gone: Callable[[], bool]) -> R:
        """Return the answer to a request that was let in and runs at once, in this thread; it is given up when `has_gone()`.

        Raises:
            RefusedError: if there is none.
        """
        began = time.perf_counter_ns()
        until = time.monotonic() + work.deadline_s
        try:
            _refuse_part(model, work)
            with self.tracing.request(model.name, work.traceparent) as span:
                answer, where = self._at_once(model, work, lambda: time.monotonic() > until or has_gone(), span, began)
        except Exception as error:
            model.statistics.failed(time.perf_counter_ns() - began)
            raise self._refusal(model, error, work.deadline_s, is_late=time.monotonic() > until) from error
        model.statistics.succeeded(time.perf_counter_ns() - began, where)
        return answer

    async def beside(self, work: Callable[[], R]) -> R:
        """Do what is not inference in a thread: looking at folders, parsing what is large."""
        return await asyncio.get_running_loop().run_in_executor(self._beside, self._unless_stopping, work)

    async def loading(self, work: Callable[[], R]) -> R:
        """Load or unload, which may wait for a plan, in a thread that nothing else waits for."""
        return await asyncio.get_running_loop().run_in_executor(self._loader, self._unless_stopping, work)

    def close(self) -> None:
        """End the threads; requests must have ended."""
        for pool in (self._threads, self._beside, self._loader, self._watcher):
            pool.shutdown(wait=False, cancel_futures=True)

    # --- inside -----------------------------------------------------------------------------------------------------------------------

    async def _answer(
        self, model: ServedModel, work: Inference[R], has_ended: Callable[[], bool], span: RequestSpan | None
    ) -> tuple[R, Durations]:
        begin = time.perf_counter_ns()
        if model.sequences is not None:
            if work.asked.part is None:
                raise malformed(f"model '{model.name}' has state: say which sequence a request is part of, with parameter 'sequence_id'")
            async with model.sequences.turn(work.asked.part) as turn:
                return await self._in_thread(partial(self._at_once, model, work, has_ended, span, begin, turn))
        _refuse_part(model, work)
        if self.runs_at_once(model):
            return await self._in_thread(partial(self._at_once, model, work, has_ended, span, begin))
        feed = await self._in_thread(work.asked.feed)
        decoded = time.perf_counter_ns()
        outputs, began = await self._batcher(model).run(feed, work.asked.output_names)
        ran = time.perf_counter_ns()
        answer = await self._in_thread(partial(self._made, work, outputs))
        return answer, Durations(began - decoded, decoded - begin, ran - began, time.perf_counter_ns() - ran)

    def _refusal(self, model: ServedModel, error: Exception, deadline_s: float, *, is_late: bool) -> RefusedError:
        if is_late:
            return RefusedError(Refusal.DEADLINE, f"model '{model.name}': its deadline of {deadline_s:g} s passed")
        if isinstance(error, StoppedError):
            return RefusedError(Refusal.UNAVAILABLE, self._away or "the server is stopping")
        if isinstance(error, ModelChangedError):
            why = "the cluster has lost it, and its file is another one or gone"
            reason = f"model '{model.name}' must be loaded again, which any client may ask for: {why}"
            if model not in self._changed:
                self._changed.add(model)
                _log.error("%s: %s", reason, error)
            return RefusedError(Refusal.UNAVAILABLE, reason)
        return refusal_of(error)

    def _at_once(
        self,
        model: ServedModel,
        work: Inference[R],
        has_ended: Callable[[], bool],
        span: RequestSpan | None,
        came: int,
        turn: SequenceTurn | None = None,
    ) -> tuple[R, Durations]:
        """Do the whole of a request in this thread."""
        begin = time.perf_counter_ns()
        feed = work.asked.feed()
        decoded = time.perf_counter_ns()
        outputs = self._run(model, feed, work.asked.output_names, has_ended, span, turn)
        ran = time.perf_counter_ns()
        answer = self._made(work, outputs)
        return answer, Durations(begin - came, decoded - begin, ran - decoded, time.perf_counter_ns() - ran)

    def _made(self, work: Inference[R], outputs: list[Array]) -> R:
        """Return the answer of outputs, unless clients leave too many others."""
        nbytes = sum(output.nbytes for output in outputs)
        if nbytes > SMALL_BYTES and self.unsent and self._unsent_bytes + nbytes > MOST_UNSENT_BYTES:
            raise self._too_many_unsent(nbytes)
        return work.answer(outputs)

    def _run(
        self,
        model: ServedModel,
        feed: Mapping[str, Array],
        names: Sequence[str] | None,
        has_ended: Callable[[], bool],
        span: RequestSpan | None = None,
        turn: SequenceTurn | None = None,
    ) -> list[Array]:
        """Run a model, and let all nodes record it if that is due; requests of sequences are not recorded.

        A run is given up when nobody waits for it, or the coordinator is away.
        """

        def stop() -> bool:
            away = self._away_since
            return has_ended() or self._gave_up or (away is not None and time.monotonic() - away > _PATIENCE_S)

        if turn is not None or not self.tracing.is_due(model.name):
            return model.run(feed, names, stop, turn)
        outputs, timeline = model.run_recorded(feed, names, stop)
        if span is not None and timeline is not None:
            span.add(timeline)
        return outputs

    def _batcher(self, model: ServedModel) -> Batcher:
        if model not in self._batchers:
            loaded = set(self.repository.models.values())
            self._batchers = {known: batcher for known, batcher in self._batchers.items() if known in loaded}

            async def run(feed: Mapping[str, Array], names: Sequence[str] | None, has_ended: Callable[[], bool]) -> list[Array]:
                return await self._in_thread(partial(self._run, model, feed, names, has_ended))

            limits = self.limits
            self._batchers[model] = Batcher(run, limits.batch_rows, limits.batch_delay_s, lambda: max(2, self.nodes))
        return self._batchers[model]

    async def _in_thread(self, work: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _refuse_part(model: ServedModel, work: Inference[R]) -> None:
    if work.asked.part is not None:
        raise malformed(f"parameter 'sequence_id': model '{model.name}' is served without state (--state)")


async def ended(task: asyncio.Task[R]) -> None:
    """Cancel a task and wait until it has ended; an error that ended it before is raised."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
