"""A reader of bytes, what it may do with any bytes, and whether it did."""

from __future__ import annotations

import time
import traceback
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from random import Random

from bbgrap.errors import BbgrapError

SECONDS = 2.0
"""Of processor time, which an input of some kilobytes may take: other processes do not count."""

LONGEST = 64 << 10
"""Bytes of an input; mutation does not grow beyond."""

WEIGHED_EVERY = 16
"""Memory is measured of one input in so many: it makes reading a few times slower."""

Mutator = Callable[[bytes, Random], bytes]


@dataclass(frozen=True)
class Reader:
    """What takes bytes, the errors it may raise, and the memory it may take: `times` the input and `beside`.

    `mutate` knows the form of the input and changes what is in it; without one, bytes are changed.
    """

    name: str
    read: Callable[[bytes], object]
    seeds: Sequence[bytes]
    errors: tuple[type[BbgrapError], ...]
    times: int = 16
    beside: int = 1 << 20
    mutate: Mutator | None = None
    slower: int = 1
    """How many times fewer inputs it gets: each waits for another process."""


@dataclass
class Tally:
    """What happened to a reader; `findings` are the first lines of each different fault, with an input that shows it."""

    reader: str
    inputs: int = 0
    taken: int = 0
    slowest: float = 0.0
    weighed: int = 0
    memory: float = 0.0
    """The largest part of the memory it may take that any input took."""
    findings: dict[str, str] = field(default_factory=dict)

    def plain(self) -> dict[str, object]:
        """Return it for JSON."""
        return asdict(self)


def judge(reader: Reader, data: bytes, tally: Tally) -> None:
    """Let a reader read an input, and note what it did."""
    tally.inputs += 1
    weighs = tally.inputs % WEIGHED_EVERY == 0
    if weighs:
        tracemalloc.start()
    began = time.process_time()
    try:
        reader.read(data)
        tally.taken += 1
    except reader.errors:
        pass
    except Exception as error:  # noqa: BLE001,RUF100 - whatever else it is, is what is looked for
        place = traceback.extract_tb(error.__traceback__)[-1]
        _note(tally, f"{type(error).__name__} in {place.filename}:{place.lineno}: {str(error)[:200]}", f"{type(error)}{place}", data)
    took = time.process_time() - began
    if weighs:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        tally.weighed += 1
        allowed = reader.times * len(data) + reader.beside
        tally.memory = max(tally.memory, peak / allowed)
        if peak > allowed:
            _note(tally, f"{peak} bytes of memory for {len(data)} bytes, allowed are {allowed}", "memory", data)
    tally.slowest = max(tally.slowest, took)
    if took > SECONDS:
        _note(tally, f"{took:.1f} seconds", "time", data)


def _note(tally: Tally, text: str, cause: str, data: bytes) -> None:
    if not any(known.startswith(f"{hash(cause)} ") for known in tally.findings):
        tally.findings[f"{hash(cause)} {text}"] = data.hex()
