"""From a plan to its programs, initial and optimised."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bbgrap.compiler.build import StateLayout, build_initial
from bbgrap.compiler.passes import DEFAULT_PASSES, ChunkInputs, OwnFirst, optimize
from bbgrap.compiler.passes.chunks import narrower
from bbgrap.compiler.passes.open_sizes import leave_sizes_open
from bbgrap.compiler.passes.pipeline import Pass
from bbgrap.compiler.predict import Predictor
from bbgrap.planners.options import TransferType
from bbgrap.planners.plan import Plan
from bbgrap.program.steps import Program
from bbgrap.tdl import Descriptions


@dataclass(frozen=True)
class Compiled:
    """A plan with the program before and after the passes; with `instalments`, inputs may come in parts."""

    plan: Plan
    initial: Program
    optimized: Program
    instalments: bool = True


def compile_plan(
    plan: Plan,
    descriptions: Descriptions,
    transfers: TransferType = "exact",
    dictionary_devices: frozenset[int] = frozenset(),
    *,
    instalments: bool = True,
    begins: StateLayout | None = None,
    open_sizes: bool = False,
) -> Compiled:
    """Build and optimise the program of a plan.

    Args:
        plan: What the devices compute.
        descriptions: Of its nodes, by name.
        transfers: What 32-bit floats become on their way to an agent.
        dictionary_devices: Those that get the model's inputs encoded with dictionaries.
        instalments: Let inputs come in parts where that is expected to be faster.
        begins: Of a sequence's first request: how it leaves state for the next one (`bbgrap.compiler.passes.state.layout_of`).
        open_sizes: Make a program for all sizes of the graph's moving axes.

    Raises:
        PlanError: with `open_sizes`, if something is cut along a moving axis.
    """
    initial = replace(
        build_initial(plan, descriptions, begins, open_sizes=open_sizes), transfers=transfers, dictionary_devices=dictionary_devices
    )
    passes = passes_of(plan, descriptions, instalments=instalments, open_sizes=open_sizes)
    return Compiled(plan, initial, optimize(initial, passes), instalments and not open_sizes)


def passes_of(plan: Plan, descriptions: Descriptions, *, instalments: bool = True, open_sizes: bool = False) -> tuple[Pass, ...]:
    """Return what the program of a plan goes through; arguments are those of `compile_plan`."""
    tailored, fused = DEFAULT_PASSES[:-1], DEFAULT_PASSES[-1:]
    opened = (leave_sizes_open,) if open_sizes else ()
    predictor, narrow = Predictor(plan.cluster), narrower(plan.graph, descriptions)
    sooner = (OwnFirst(predictor, narrow, descriptions), ChunkInputs(predictor, narrow)) if instalments and not open_sizes else ()
    return (*tailored, *opened, *fused, *sooner)
