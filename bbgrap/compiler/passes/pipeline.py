"""The contract of passes, and their order (BBGraP, section 3.3).

A pass is a function from programs to programs. It may not change what `simulate` answers (tests check it for every pass)
and may not add a byte to what travels between devices: together they are always checked here.
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
from bbgrap.program.steps import Program

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
"""What every program goes through; `OwnFirst` and `ChunkInputs`, which ask for a cluster's links, may follow."""


def optimize(program: Program, passes: Sequence[Pass] = DEFAULT_PASSES) -> Program:
    """Run passes in order.

    Raises:
        ProgramError: if passes add traffic.
    """
    done: list[str] = []
    made = program
    for step in passes:
        made = step(made)
        done.append(getattr(step, "__name__", type(step).__name__))
    # Of many nodes the first programs have a hundred thousand messages: to count them after every pass takes a fifth of all time.
    before, after = traffic_bytes(program), traffic_bytes(made)
    if after > before:
        raise ProgramError(f"traffic grew from {before} to {after} bytes by passes {', '.join(done)}")
    return made
