"""The cluster as pages and scrapers see it: the coordinator is asked once a second for all of them, never while nobody asks.

A snapshot is told as server-sent events: `status` (what `bbgrap status --json` prints, but its events, and rates), `happened` (the events
that this page was not told yet), `away` (why the coordinator does not answer), and once, at the beginning, `history`. Beside it there are
the pictures of a plan and of the latest request that was recorded on it: SVG of `bbgrap.report`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, is_dataclass, replace
from heapq import nlargest
from typing import Any

from bbgrap.costmodel.timeline import Timeline, read_timeline
from bbgrap.errors import BbgrapError, RemoteProtocolError
from bbgrap.observing.rates import ModelRates, rates_between
from bbgrap.protocol.status_messages import ClusterEvent, PlanShown, Status
from bbgrap.report.gantt import timeline_svg
from bbgrap.report.layer_map import layers_svg
from bbgrap.report.layers import read_layers
from bbgrap.report.svg import milliseconds
from bbgrap.report.tables import exchanges_of, traffic
from bbgrap.report.trace import clock_error_s, timeline_of
from bbgrap.serving.gateway import Gateway
from bbgrap.session.stops import StoppedError

EVERY_S = 1.0
"""Between two questions."""
_ANSWERS_WITHIN_S = 2.0
_WINDOW_S = 10.5
"""What rates are taken over at most."""
_HISTORY = 300
"""Snapshots that a new page is told of: five minutes."""
_SHOWN = 64
"""Models of which it tells, those with the most requests: of a thousand it would be 27 MB for each page. A page shows fewer."""
_EVENTS = 200
_PLANS_KEPT = 8
_PLAN_S = 4.0
"""How long pictures of a plan are shown to further pages."""


@dataclass(frozen=True, slots=True)
class StatusSnapshot:
    """The status at `at`, by this machine's clock; None: the coordinator did not answer. `text` is what pages are told.

    `events` and `history` are all that is known by then, of the coordinator of this `incarnation`.
    """

    number: int
    at: float
    status: Status | None
    text: bytes
    incarnation: int
    events: tuple[ClusterEvent, ...]
    history: tuple[object, ...]


class StatusPoller:
    """Asks a coordinator for its status. It belongs to the event loop; the coordinator is asked in a thread."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._thread = ThreadPoolExecutor(1, "bbgrap-serve-status")
        self._latest: StatusSnapshot | None = None
        self._asking: asyncio.Future[StatusSnapshot] | None = None
        self._seen: deque[Status] = deque()
        self._events: deque[ClusterEvent] = deque(maxlen=_EVENTS)
        self._history: deque[list[object]] = deque(maxlen=_HISTORY)
        self._plans: dict[tuple[str, int], tuple[float, bytes]] = {}
        """By key and by the epoch of what serves."""

    async def snapshot(self) -> StatusSnapshot:
        """Return how the cluster is, or was less than a second ago."""
        if self._latest is not None and time.monotonic() - self._latest.at < EVERY_S:
            return self._latest
        if self._asking is None:
            self._asking = asyncio.ensure_future(asyncio.get_running_loop().run_in_executor(self._thread, self._ask))
            self._asking.add_done_callback(self._answered)
        return await asyncio.shield(self._asking)

    async def told(self) -> AsyncIterator[bytes]:
        """Yield what a page is told, until the server stops."""
        yield b"retry: 1000\n\n"
        number, incarnation, heard = 0, 0, 0
        while not self._gateway.is_draining:
            now = await self.snapshot()
            if now.number != number:
                if not number:
                    yield _event("history", now.history)
                if now.incarnation != incarnation:
                    incarnation, heard = now.incarnation, 0
                news = [event for event in now.events if event.number > heard]
                number, heard = now.number, news[-1].number if news else heard
                yield now.text + (_event("happened", news) if news else b"")
            await asyncio.sleep(max(0.05, now.at + EVERY_S - time.monotonic()))

    async def plan(self, key: str) -> bytes:
        """Return the pictures of a plan as JSON.

        Raises:
            BbgrapError: if there is no such plan, or the coordinator cannot be asked.
            StoppedError: if the server stops.
            TimeoutError: if the coordinator does not answer.
        """
        status = (await self.snapshot()).status
        epochs = (plan.epoch for model in (status.models if status else ()) for plan in model.plans if plan.plan == key)
        what = key, next(epochs, 0)
        made_at, text = self._plans.get(what, (0.0, b""))
        if text and time.monotonic() - made_at < _PLAN_S:
            return text
        text = await asyncio.get_running_loop().run_in_executor(self._thread, self._draw, key)
        self._plans.pop(what, None)
        self._plans = dict([*self._plans.items(), (what, (time.monotonic(), text))][-_PLANS_KEPT:])
        return text

    # --- inside -----------------------------------------------------------------------------------------------------------------------

    def _answered(self, asking: asyncio.Future[StatusSnapshot]) -> None:
        self._asking = None
        if not asking.cancelled() and not asking.exception():
            self._latest = asking.result()

    def _ask(self) -> StatusSnapshot:
        """Ask the coordinator, in the thread, which alone changes what was seen."""
        try:
            status = self._status()
        except (BbgrapError, StoppedError, TimeoutError) as error:
            why = str(error) or f"the coordinator at {self._gateway.connection.address} does not answer"
            return self._snapshot_of(None, _event("away", {"why": why}))
        while self._seen and status.now - self._seen[0].now > _WINDOW_S:
            self._seen.popleft()
        # Of the latest seconds for people to read, and since the last question for series; nothing at the first one after a pause.
        rates, latest = ((rates_between(self._seen[place], status) if self._seen else ()) for place in (0, -1))
        if latest:
            self._history.append([status.now, *_points(status, latest)])
        self._seen.append(status)
        plain = {"uptime_s": status.uptime_s, **_plain(replace(status, events=())), "rates": rates, "latest": latest}
        return self._snapshot_of(status, _event("status", plain))

    def _snapshot_of(self, status: Status | None, text: bytes) -> StatusSnapshot:
        number = 1 if self._latest is None else self._latest.number + 1
        incarnation = self._seen[-1].incarnation if self._seen else 0
        return StatusSnapshot(number, time.monotonic(), status, text, incarnation, tuple(self._events), tuple(self._history))

    def _status(self) -> Status:
        connection, after = self._gateway.connection, self._events[-1].number if self._events else 0
        with connection.stops.when(lambda: self._gateway.is_draining):
            status = connection.status(after, _ANSWERS_WITHIN_S)
            if self._seen and self._seen[-1].incarnation != status.incarnation:
                # It was started anew: its numbers begin again, and so do all counts.
                self._seen.clear()
                self._events.clear()
                status = connection.status(0, _ANSWERS_WITHIN_S)
        self._events.extend(status.events)
        return status

    def _draw(self, key: str) -> bytes:
        with self._gateway.connection.stops.when(lambda: self._gateway.is_draining):
            return _json(drawn(self._gateway.connection.shown_plan(key, _ANSWERS_WITHIN_S))).encode()


def _points(status: Status, latest: Sequence[ModelRates]) -> list[list[object]]:
    """Return what the history has of a snapshot: the models that a page chooses from."""
    asked = {model.model: sum(model.requests.values()) + model.waiting + model.running for model in status.models}
    return [_point(rates) for rates in nlargest(_SHOWN, latest, key=lambda rates: asked[rates.model])]


def _point(rates: ModelRates) -> list[object]:
    """Return a model's place in the history."""
    return [rates.model, rates.per_s, *rates.quantiles_s, rates.waiting, rates.running]


def _event(name: str, value: object) -> bytes:
    return f"event: {name}\ndata: {_json(value)}\n\n".encode()


def _json(value: object) -> str:
    # Letters beyond ASCII are escaped, so no name can end a line.
    return json.dumps(value, default=_plain, separators=(",", ":"))


def _plain(value: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever a status holds
    """Return the fields of a dataclass; the same as `asdict`, which copies everything, too, and takes ten times as long."""
    if not is_dataclass(value):
        raise TypeError(f"expected plain values, got {type(value).__name__}")
    return {field.name: getattr(value, field.name) for field in fields(value)}


_MAX_LAYERS, _MAX_SPANS = 600, 4000
"""What a browser still draws quickly."""
_MAX_EXCHANGES = 100
_NOTHING = Timeline((), ())


def drawn(shown: PlanShown) -> dict[str, Any]:
    """Return what the page shows of a plan, as plain values.

    Raises:
        RemoteProtocolError: if the report or the records make no sense.
    """
    report = _report(shown.report)
    agents = [str(name) for name in report.get("agents", [])]
    layers = read_layers(report.get("layers", []))
    predicted = read_timeline(report["predicted_timeline"]) if "predicted_timeline" in report else _NOTHING
    measured = timeline_of(shown.records, shown.devices) if shown.records else _NOTHING
    until_s, names = max(measured.total_s, predicted.total_s), measured.devices
    return {
        "agents": agents,
        "layers": len(layers),
        "layers_svg": layers_svg(layers[:_MAX_LAYERS], agents) if layers else "",
        "recorded_at": shown.recorded_at,
        "clock_error_s": clock_error_s(shown.records),
        "measured_s": measured.total_s,
        "measured_svg": _picture(measured, "measured", until_s),
        "predicted_svg": _picture(predicted, "predicted", until_s),
        "traffic": [[names[source], names[target], size] for (source, target), size in sorted(traffic(measured).items())],
        "exchanges": [[e.values, e.messages, e.bytes, e.longest_wait_s] for e in exchanges_of(measured)[:_MAX_EXCHANGES]],
    }


def _report(text: str) -> dict[str, Any]:
    try:
        report = json.loads(text or "{}")
    except ValueError as error:
        raise RemoteProtocolError(f"report: it is no JSON: {error}") from None
    if not isinstance(report, dict):
        raise RemoteProtocolError(f"report: expected an object, got {type(report).__name__}")
    return report


def _picture(timeline: Timeline, kind: str, until_s: float) -> str:
    if not timeline.spans or len(timeline.spans) > _MAX_SPANS:
        return ""
    return timeline_svg(timeline, f"{kind}: {milliseconds(timeline.total_s)}", until_s=until_s, styled=False)
