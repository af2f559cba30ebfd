"""The contract of passes, and their order (BBGraP, section 3.3).

A pass is a function from programs to programs. It may not change what `simulate` answers (tests check it for every pass)
and may not add a byte to what travels between devices (checked here, always). With `verify`, every law of programs is checked between
passes; a failure names the passes that already ran.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bbgrap.compiler.passes.crops import drop_trivial_assemblies, forward_crops
from bbgrap.compiler.passes.dead import drop_unused
from bbgrap.compiler.passes.fuse import fuse_segments
from bbgrap.compiler.passes.state import tailor_state
from bbgrap.compiler.passes.transfers import drop_empty_messages, tailor_transfers
from bbgrap.errors import ProgramError
from bbgrap.program.statistics import traffic_bytes
from bbgrap.program.steps import Program, check_program

Pass = Callable[[Program], Program]
"""A rewriting of programs: returns an equivalent one."""

DEFAULT_PASSES: tuple[Pass, ...] = (
    tailor_state,
    forward_crops,
    drop_unused,
    tailor_transfers,
    drop_trivial_assemblies,
    drop_empty_messages,
    fuse_segments,
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
        program = step(program)
        name = getattr(step, "__name__", type(step).__name__)
        if (after := traffic_bytes(program)) > before:
            raise ProgramError(f"pass {name}: traffic grew from {before} to {after} bytes; passes before it: {', '.join(done) or 'none'}")
        if verify and (faults := check_program(program)):
            raise ProgramError(f"pass {name} broke the program: {'; '.join(faults[:5])}; passes before it: {', '.join(done) or 'none'}")
        done.append(name)
        before = after
    return program
