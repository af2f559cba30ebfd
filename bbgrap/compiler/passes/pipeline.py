"""The contract of passes, and their order (BBGraP, section 3.3).

A pass is a frozen dataclass with `run(program) -> program`. It may not change what `simulate` answers (tests check it for every pass)
and may not add a byte to what travels between devices (checked here, always). With `verify`, every law of programs is checked between
passes; a failure names the passes that already ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bbgrap.compiler.passes.crops import DropTrivialAssemblies, ForwardCrops
from bbgrap.compiler.passes.dead import DropUnused
from bbgrap.compiler.passes.fuse import FuseSegments
from bbgrap.compiler.passes.state import TailorState
from bbgrap.compiler.passes.transfers import DropEmptyMessages, TailorTransfers
from bbgrap.errors import ProgramError
from bbgrap.program.statistics import traffic_bytes
from bbgrap.program.steps import Program, check_program


class Pass(Protocol):
    """A rewriting of programs."""

    def run(self, program: Program) -> Program:
        """Return an equivalent program."""
        ...


DEFAULT_PASSES: tuple[Pass, ...] = (
    TailorState(),
    ForwardCrops(),
    DropUnused(),
    TailorTransfers(),
    DropTrivialAssemblies(),
    DropEmptyMessages(),
    FuseSegments(),
)
"""What every program goes through; `ChunkInputs` and `SlowestFirst`, which ask for a cluster's links, may follow."""


def optimize(program: Program, passes: Sequence[Pass] = DEFAULT_PASSES, *, verify: bool = False) -> Program:
    """Run passes in order.

    Raises:
        ProgramError: if a pass adds traffic, or (with `verify`) breaks a law of programs.
    """
    done: list[str] = []
    before = traffic_bytes(program)
    for step in passes:
        program = step.run(program)
        name = type(step).__name__
        if (after := traffic_bytes(program)) > before:
            raise ProgramError(f"pass {name}: traffic grew from {before} to {after} bytes; passes before it: {', '.join(done) or 'none'}")
        if verify and (faults := check_program(program)):
            raise ProgramError(f"pass {name} broke the program: {'; '.join(faults[:5])}; passes before it: {', '.join(done) or 'none'}")
        done.append(name)
        before = after
    return program
