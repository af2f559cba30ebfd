"""What a nanny tells its worker on the command line; apart from both, for the nanny must not import what the worker does."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields


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
    compiling: int
    verbose: int
    state_bytes: int = 0
    """What the state of sequences may take; 0: a part of the memory that the agent declares."""
    nanny: int = 0
    pipe: int = -1
    listener: int = -1
    progress: int = -1
    identity: int = -1
    memories: int = -1
    memory_name: str = ""

    def arguments(self) -> list[str]:
        """Return the command line's arguments."""
        return [f"--{field.name}={getattr(self, field.name)}" for field in fields(self)]

    @staticmethod
    def parse(arguments: Sequence[str]) -> WorkerSettings:
        """Undo `arguments`."""
        parser = argparse.ArgumentParser("bbgrap_agent.worker")
        for field in fields(WorkerSettings):
            parser.add_argument(f"--{field.name}", type=int if field.type == "int" else str, required=True)
        return WorkerSettings(**vars(parser.parse_args(arguments)))
