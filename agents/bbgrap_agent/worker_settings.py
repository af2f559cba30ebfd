"""What a nanny tells its worker on the command line; apart from both, for the nanny must not import what the worker does."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

DEFAULT_CACHE_BYTES = 8 << 30
"""What weights on disk may take. Chosen: a dozen large convolutional networks."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a nanny tells its worker on the command line; `pipe`, `listener` and `progress` are file descriptors that it inherits.

    So is `identity`, from which it reads what it shows on the data plane, key and all; -1: nothing, the data plane is plain. And
    `memories`, over which memory comes that it shares with devices of this machine, offered at `memory_name`; -1: none can be.
    """

    name: str
    threads: int
    host: str
    """The host that others reach this one by."""
    coordinator_host: str
    cache_dir: str
    compiling: bool
    verbose: bool
    cache_bytes: int = DEFAULT_CACHE_BYTES
    """What weights on disk may take."""
    state_bytes: int = 0
    """What the state of sequences may take; 0: a part of the memory that the agent declares."""
    nanny: int = 0
    pipe: int = -1
    listener: int = -1
    progress: int = -1
    identity: int = -1
    memories: int = -1
    memory_name: str = ""

    def argument(self) -> str:
        """Return the command line's argument."""
        return json.dumps(asdict(self))

    @staticmethod
    def parse(argument: str) -> WorkerSettings:
        """Undo `argument`."""
        return WorkerSettings(**json.loads(argument))
