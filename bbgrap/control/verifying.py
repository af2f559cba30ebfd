"""Requests that run a second time, on other nodes, to find out who answers wrongly.

    answered -> waiting -> running -> comparing -> the same: done
                   ^                     |
                   '-- a third run ------+-> differ: the nodes are named

The client has its answer before. Which requests, agents cannot foresee: a keyed digest of the request's number decides. A second run takes
another variant of the plan or a copy of the standby, the one that shares the fewest nodes with the first. If answers differ, a third one is
asked. Laws: one of these runs is in flight at a time; what is kept for them is bounded in bytes and number; a run is compared with others
over other nodes only, for those of which every run has a part cannot be told apart.

Who is named: a node is *suspect* if it alone explains what was seen, that is, if all runs without it agree. With two runs over nodes
A and B that is every node of both; with a third one, C, which agrees with B, it is those of A.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import combinations

from bbgrap.control.audit import peer_of
from bbgrap.control.coordinator_events import Compared, RequestDone
from bbgrap.control.coordinator_instructions import Answer, Audit, Compare, CoordinatorInstruction, Log, StartRequest
from bbgrap.control.coordinator_settings import Settings
from bbgrap.control.loading import Loading
from bbgrap.control.planning import Planning
from bbgrap.control.plans import Variant
from bbgrap.control.request import Request
from bbgrap.control.synthetic_requests import SyntheticRequests

MAX_BYTES = 256 << 20
"""Inputs and outputs that are kept for further runs; a request beyond is not verified."""
MAX_CHECKS = 256
GIVE_WAY_S = 2.0
"""How long a run waits for nobody else to be there; then it is one request among the others, or a busy cluster would never be verified."""
WITHIN_S = 60.0
"""How long it waits at all."""
RUN_WITHIN_S = 30.0
TRIES = 3
"""Runs of a request that may fail or be lost before it is given up."""
MAX_SAID = 8
"""Nodes that a line for people names at most."""


@dataclass(frozen=True, slots=True)
class _Run:
    variant: str
    nodes: frozenset[str]
    answer: Answer


@dataclass(eq=False, slots=True)
class _Check:
    """A request that is verified; `faults` is how the answers of two of its runs differ, by their places."""

    request: Request
    since: float
    runs: list[_Run]
    faults: dict[tuple[int, int], str] = field(default_factory=dict)
    failed: set[frozenset[str]] = field(default_factory=set)
    """Nodes on which it is not tried again."""
    lost: int = 0

    @property
    def nbytes(self) -> int:
        return self.request.bytes + sum(run.answer.nbytes for run in self.runs)

    @property
    def what(self) -> str:
        return f"request {self.request.number} of {self.request.plan.called}"


@dataclass(frozen=True, slots=True)
class _Running:
    check: _Check
    number: int
    variant: Variant


def suspects(runs: Sequence[frozenset[str]], agree: Callable[[int, int], bool]) -> frozenset[str]:
    """Return the nodes of which each alone explains that answers differ: the runs without it agree with each other."""
    return frozenset(
        node
        for node in frozenset[str]().union(*runs)
        if all(agree(one, other) for one, other in combinations([i for i, nodes in enumerate(runs) if node not in nodes], 2))
    )


class Verifying:
    """The requests that are verified: those that wait for a further run, one that runs, and those that are compared.

    Invariants: the number of the run is in its variant's queue; `verified` are the requests of a node that were compared with runs without
    it, `differed` those in which it is suspect.
    """

    def __init__(self, settings: Settings, loading: Loading, planning: Planning, synthetic: SyntheticRequests, tally: Counter[str]) -> None:
        """Start without any; what becomes of them is counted in `tally`."""
        self._settings = settings
        self._loading = loading
        self._planning = planning
        self._synthetic = synthetic
        self._tally = tally
        self._waiting: deque[_Check] = deque()
        self._comparing: dict[int, _Check] = {}
        self._running: _Running | None = None
        self._bytes = 0
        self.verified: Counter[str] = Counter()
        self.differed: Counter[str] = Counter()

    @property
    def running(self) -> int:
        """The number of the run in flight; 0 if there is none."""
        return 0 if self._running is None else self._running.number

    # --- which, and when ----------------------------------------------------------------------------------------------------------

    def draw(self, request: Request) -> bool:
        """Decide as a request starts whether it is verified."""
        digest = blake2b(request.number.to_bytes(16, "big"), digest_size=8, key=self._settings.verify_key).digest()
        return int.from_bytes(digest, "big") < self._settings.verify_fraction * 2.0**64

    def take(self, request: Request, variant: Variant, event: RequestDone, now: float) -> None:
        """Take a request that was drawn and has been answered."""
        run = _Run(variant.name, frozenset(variant.parts), Answer(event.outputs, event.payload))
        check = _Check(request, now, [run])
        count = len(self._waiting) + len(self._comparing)
        if self._bytes + check.nbytes > MAX_BYTES or count >= MAX_CHECKS:
            self._tally["skipped, memory"] += 1
        elif self._next(check) is None:
            self._tally["skipped, no other copy"] += 1
        else:
            self._bytes += check.nbytes
            self._waiting.append(check)

    def _next(self, check: _Check) -> Variant | None:
        """Return what a further run takes: what shares the fewest nodes with those before, and tells something."""
        before = [run.nodes for run in check.runs]
        seen = frozenset[str]().union(*before)
        able = [v for v in check.request.plan.answering if frozenset(v.parts) not in {*before, *check.failed}]
        return min(able, key=lambda v: (len(seen & v.parts.keys()), len(v.queue.running), v.usual_s, v.epoch), default=None)

    def go_on(self, now: float) -> list[CoordinatorInstruction]:
        """Start the next run if nobody is in its way, or it has given way for long enough."""
        done: list[CoordinatorInstruction] = []
        while self._waiting and self._running is None:
            check = self._waiting[0]
            waited = now - check.since
            if self._synthetic.is_busy or self._synthetic.has_turn or (waited < GIVE_WAY_S and self._others_are_there()):
                if waited <= WITHIN_S:
                    break
            elif (variant := self._next(check)) is not None and waited <= WITHIN_S:
                if not variant.queue.has_room:
                    break
                self._waiting.popleft()
                number = next(self._loading.epochs)
                self._running = _Running(check, number, variant)
                variant.queue.running[number] = variant.used = now
                done.append(StartRequest(variant.epoch, number, check.request.message.inputs, check.request.message.payload))
                break
            self._waiting.popleft()
            done += self._give_up(check)
        return done

    def _others_are_there(self) -> bool:
        return self._loading.is_anything_running or any(plan.waiting for plan in self._planning.plans.values())

    # --- how a run ends -----------------------------------------------------------------------------------------------------------

    def _end(self) -> _Running:
        """Take the run in flight out of its queue."""
        ended, self._running = self._running, None
        assert ended is not None, "whoever ends it has looked"
        del ended.variant.queue.running[ended.number]
        self._loading.touch(ended.variant.plan)
        self._loading.touch(ended.check.request.plan)
        return ended

    def done(self, event: RequestDone) -> list[CoordinatorInstruction]:
        """Compare the answer of the run in flight with those before."""
        ended = self._end()
        check, answer = ended.check, Answer(event.outputs, event.payload)
        self._bytes += answer.nbytes
        check.runs.append(_Run(ended.variant.name, frozenset(ended.variant.parts), answer))
        self._comparing[check.request.number] = check
        options = check.request.plan.options
        transfers = "exact" if options is None else options.transfer_dtype
        return [Compare(check.request.number, tuple(run.answer for run in check.runs), transfers)]

    def failed(self, reason: str) -> list[CoordinatorInstruction]:
        """Try the run in flight elsewhere: it failed, where another one of the same request did not."""
        ended = self._end()
        where = _named(ended.variant.parts)
        told = Log(f"{ended.check.what} was answered, but a second run failed on {where}: {reason}", is_warning=True)
        ended.check.failed.add(frozenset(ended.variant.parts))
        return [told, *self._again(ended)]

    def taken_back(self, variant: Variant) -> list[CoordinatorInstruction]:
        """Try the run again, elsewhere, if its variant is lost."""
        return [] if self._running is None or self._running.variant is not variant else self._again(self._end())

    def _again(self, ended: _Running) -> list[CoordinatorInstruction]:
        done = self._loading.abandon(ended.variant, ended.number)
        ended.check.lost += 1
        if ended.check.lost >= TRIES:
            return [*done, *self._give_up(ended.check)]
        self._waiting.append(ended.check)
        return done

    def overdue(self, now: float) -> list[CoordinatorInstruction]:
        """End a run that takes too long."""
        running = self._running
        if running is None or now - running.variant.queue.running[running.number] <= RUN_WITHIN_S:
            return []
        return self.failed(f"no answer within {RUN_WITHIN_S:g} s")

    # --- what comes of it ---------------------------------------------------------------------------------------------------------

    def compared(self, event: Compared, now: float) -> list[CoordinatorInstruction]:
        """Count what is the same; of what differs, name the nodes, after a third run if there can be one."""
        check = self._comparing.pop(event.check)
        if event.faults is None:
            self._bytes -= check.runs.pop().answer.nbytes
            return self._give_up(check)
        last = len(check.runs) - 1
        check.faults.update({(place, last): fault for place, fault in enumerate(event.faults) if fault})
        if check.faults and last == 1 and self._next(check) is not None:
            check.since, check.lost = now, 0
            self._waiting.appendleft(check)
            return []
        return self._conclude(check)

    def _give_up(self, check: _Check) -> list[CoordinatorInstruction]:
        """Conclude from what is known, if it is more than one answer."""
        if check.faults:
            return self._conclude(check)
        self._bytes -= check.nbytes
        self._tally["skipped, no second answer"] += 1
        return []

    def _conclude(self, check: _Check) -> list[CoordinatorInstruction]:
        self._bytes -= check.nbytes
        runs = [run.nodes for run in check.runs]
        self.verified.update(frozenset[str]().union(*runs) - frozenset.intersection(*runs))
        for name in self._loading.members.forget_gone(self.verified):
            self.differed.pop(name, None)
        self._tally["compared"] += 1
        if not check.faults:
            return []
        self._tally["differed"] += 1
        named = suspects(runs, lambda one, other: (one, other) not in check.faults)
        self.differed.update(named)
        who = f"{_named(named, 'or')} answered wrongly"
        if not named:
            who = "no node alone explains it: several answered wrongly, or the model draws random numbers"
        fault = next(iter(check.faults.values()))
        ways = " / ".join(f"'{run.variant}' on {_named(run.nodes)}" for run in check.runs)
        text = f"{check.what}: the answers of {len(runs)} runs differ ({ways}): {who}; {fault}"
        return [
            Log(text, event="differed", model=check.request.plan.model, request=check.request.number),
            Audit(
                "differed",
                peer_of(check.request.caller[0]),
                {
                    "model": check.request.plan.model,
                    "plan": check.request.plan.key,
                    "request": check.request.number,
                    "named": sorted(named),
                    "runs": [{"variant": run.variant, "nodes": sorted(run.nodes)} for run in check.runs],
                    "differ": [list(pair) for pair in check.faults],
                    "fault": fault,
                },
            ),
        ]


def _named(nodes: Collection[str], joint: str = "and") -> str:
    names = [f"'{name}'" for name in sorted(nodes)]
    return f" {joint} ".join([*names[:MAX_SAID], *([f"{len(names) - MAX_SAID} others"] if len(names) > MAX_SAID else [])])
