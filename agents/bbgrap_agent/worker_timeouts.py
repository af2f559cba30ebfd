"""How long a nanny lets its worker go on: with a kernel of a request that nobody wants any more, and with a load.

Laws: only time counts in which the worker could work: not that in which it was stopped, nor a leap of the clock between two looks, when
nobody worked. A kernel is judged, not a request: one that makes progress ends by itself.
"""

from __future__ import annotations

from collections import OrderedDict

from bbgrap.protocol.messages import Deploy
from bbgrap_agent.progress import WorkerActivity

EARLIER_S = 10.0
"""How long a kernel may go on with a request of an earlier membership, that nobody remembers. Chosen."""
LOAD_S = 60.0
"""How long a load may take, besides its weights. Chosen: a hundred times that of a large model on a laptop."""
LOAD_BYTES_PER_S = 20e6
"""The slowest disk that weights are read from. Chosen: a memory card."""
APART_S = 5.0
"""How much longer a load may take on each next device of a plan. Chosen: what hangs on all of them ends one worker after the other, and one
that has ended is back before the next one does, so requests of other models have an agent."""
ALL_APART_S = 30.0
"""And on the last device at most: of many, some may be away at once. Chosen: over twenty, a model that hung waited for 155 s."""
LONGEST_LOOK_S = 0.3
"""Of the time between two looks, more does not count: this process itself may have been stopped."""
MAX_DROPPED = 1024


def apart_s(device: int, devices: int) -> float:
    """Return how much longer a load may take on a device than on the first one of so many, in seconds."""
    return device * min(APART_S, ALL_APART_S / max(1, devices))


class WorkerTimeouts:
    """What one worker is allowed.

    Invariants: `_awake` is the time in seconds that the worker could use; `_kernel` and `_load` are what it did at the last look, and
    since when.
    """

    def __init__(self, now: float) -> None:
        self._looked = now
        self._awake = 0.0
        self._dropped: OrderedDict[tuple[int, int], tuple[float, float]] = OrderedDict()
        self._before = (0, 0.0)
        self._allowed: dict[int, float] = {}
        self._kernel: tuple[object, float] = ((), 0.0)
        self._load: tuple[object, float] = ((), 0.0)

    def drop(self, epoch: int, request: int, patience_s: float) -> None:
        """Nobody wants a request any more; a kernel may go on with it for so long."""
        self._dropped.setdefault((epoch, request), (self._awake, patience_s))
        if len(self._dropped) > MAX_DROPPED:
            self._dropped.popitem(last=False)

    def drop_before(self, request: int) -> None:
        """Nobody wants any request with a lower number."""
        self._before = (request, self._awake)

    def _dropped_since(self, epoch: int, request: int) -> tuple[float, float]:
        """Return since when nobody wants a request, and for how long a kernel may go on with it: for ever if it is wanted."""
        bound, since = self._before
        told = self._dropped.get((epoch, request), (0.0, float("inf")))
        # Of a request of an earlier membership the coordinator may still know the deadline.
        return min(told, (since, EARLIER_S), key=sum) if request < bound else told

    def allow(self, deploy: Deploy) -> None:
        """A deployment is to be loaded."""
        nbytes = sum(kind.nbytes for kind in deploy.weight_types.values())
        self._allowed[deploy.epoch] = LOAD_S + nbytes / LOAD_BYTES_PER_S + apart_s(deploy.schedule.device, deploy.schedule.host)

    def look(self, doing: WorkerActivity, now: float, *, stopped: bool) -> str:
        """Return why the worker is to be ended, or an empty text."""
        self._awake += 0.0 if stopped else min(now - self._looked, LONGEST_LOOK_S)
        self._looked = now
        key = (doing.epoch, doing.request)
        kernel, load = (*key, doing.since_ns), (doing.loading, doing.loading_since_ns)
        if kernel != self._kernel[0]:
            self._kernel = (kernel, self._awake)
        if load != self._load[0]:
            self._load = (load, self._awake)
        dropped, patience_s = self._dropped_since(*key)
        if doing.request and self._awake - max(dropped, self._kernel[1]) >= patience_s:
            return f"a kernel of request {doing.request} did not end within its deadline"
        if doing.loading and self._awake - self._load[1] >= (allowed := self._allowed.get(doing.loading, LOAD_S)):
            return f"the load of epoch {doing.loading} did not end within {allowed:.0f} s"
        return ""
