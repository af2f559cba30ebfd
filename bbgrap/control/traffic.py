"""How many bytes of tensors went from whom to whom: what each variant sends for a request, times the requests that ended well on it.

Those of a sequence that go on from state count by their own program. Nothing is counted while a request runs. Law: what a variant was part
of is not forgotten when it is released.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod

from bbgrap.cluster.types import COORDINATOR
from bbgrap.control.plans import Variant
from bbgrap.graph.types import TensorType
from bbgrap.program.encodings import wire_bytes, wire_of
from bbgrap.runtime.schedule import LocalSend, Schedule, part_shape

MAX_PAIRS = 4096
"""Pairs of nodes whose bytes are kept; those for which none were counted for longest make room."""

Pair = tuple[str, str]


class Traffic:
    """Bytes by source and destination.

    Invariants: `_settled` is of variants that were released, and of standbys; `_each` holds what a request takes, of the others: one that
    brings its state along, and a further one.
    """

    def __init__(self) -> None:
        self._settled: Counter[Pair] = Counter()
        self._each: dict[int, tuple[Mapping[Pair, int], Mapping[Pair, int]]] = {}

    def took_whole(self, variant: Variant, given: int, answered: int) -> None:
        """Count a request that the standby answered, by the bytes of its inputs and outputs: its plan is for any shape."""
        for name in variant.parts:
            self._add({(COORDINATOR, name): given, (name, COORDINATOR): answered})

    def settle(self, variant: Variant) -> None:
        """Count a variant that is released."""
        self._add(self._of(variant))
        self._each.pop(variant.epoch, None)

    def _add(self, sent: Mapping[Pair, int]) -> None:
        for pair, size in sent.items():
            self._settled[pair] = self._settled.pop(pair, 0) + size
        while len(self._settled) > MAX_PAIRS:
            del self._settled[next(iter(self._settled))]

    def read(self, variants: Iterable[Variant]) -> Counter[Pair]:
        """Return all that was sent, by those that were released and by these."""
        total = Counter(self._settled)
        for variant in variants:
            total.update(self._of(variant))
        return total

    def _of(self, variant: Variant) -> Counter[Pair]:
        if not variant.answered or variant.plan.is_standby:
            return Counter()
        if variant.epoch not in self._each:
            self._each[variant.epoch] = bytes_of(variant), bytes_of(variant, further=True)
        first, further = self._each[variant.epoch]
        sent = Counter({pair: (variant.answered - variant.went_on) * size for pair, size in first.items()})
        sent.update({pair: variant.went_on * size for pair, size in further.items()})
        return sent


def bytes_of(variant: Variant, *, further: bool = False) -> Counter[Pair]:
    """Return the bytes that one request on a variant moves, by source and destination; `further`: one that goes on from state."""
    names, artifacts = [*(name for name, _ in variant.nodes), COORDINATOR], variant.planned.artifacts
    schedules = [(part.further if further else part.schedule) for part in artifacts.devices]
    sent: Counter[Pair] = Counter()
    for name, schedule in zip(names, (*schedules, artifacts.further if further else artifacts.host), strict=True):
        for step in () if schedule is None else schedule.steps:
            if schedule is not None and isinstance(step, LocalSend):
                sent[name, names[step.destination]] += _size(schedule, step)
    return sent


def _size(schedule: Schedule, step: LocalSend) -> int:
    total = 0
    for part in step.parts:
        spec = schedule.buffers[part.buffer]
        shape = part_shape(spec, part)
        wire = wire_of(spec.dtype, step.wire)
        total += TensorType(spec.dtype, shape).nbytes if wire == "exact" or shape is None else wire_bytes(prod(shape), wire)
    return total
