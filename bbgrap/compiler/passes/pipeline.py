"""The contract of passes, and their order (BBGraP, section 3.3).

A pass is a function from programs to programs. It may not change what `simulate` answers (tests check it for every pass)
and may not add a byte to what travels between devices: together they are always checked here. With `verify`, each is, and every law of
programs between two; a failure names the passes that already ran.
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
        ProgramError: if passes add traffic, or (with `verify`) one breaks a law of programs.
    """
    done: list[str] = []
    before = traffic_bytes(program)
    for step in passes:
        program = step(program)
        done.append(getattr(step, "__name__", type(step).__name__))
        # Of many nodes the first programs have a hundred thousand messages: to count them after every pass takes a fifth of all time.
        if verify or step is passes[-1]:
            after = traffic_bytes(program)
            if after > before:
                raise ProgramError(f"traffic grew from {before} to {after} bytes by pass {_last(done)}")
            before = after
        if verify and (faults := check_program(program)):
            raise ProgramError(f"the program was broken by pass {_last(done)}: {'; '.join(faults[:5])}")
    return program


def _last(done: Sequence[str]) -> str:
    """Name the last of passes, and those that ran before it."""
    return f"{done[-1]}; passes before it: {', '.join(done[:-1]) or 'none'}"
