"""The graph optimizer: one pass a file, and the pipeline that runs them."""

from bbgrap.compiler.passes.chunk_inputs import ChunkInputs
from bbgrap.compiler.passes.crops import DropTrivialAssemblies, ForwardCrops
from bbgrap.compiler.passes.dead import DropUnused
from bbgrap.compiler.passes.fuse import FuseSegments
from bbgrap.compiler.passes.order import SlowestFirst
from bbgrap.compiler.passes.pipeline import DEFAULT_PASSES, Pass, optimize
from bbgrap.compiler.passes.transfers import DropEmptyMessages, TailorTransfers

__all__ = [
    "DEFAULT_PASSES",
    "ChunkInputs",
    "DropEmptyMessages",
    "DropTrivialAssemblies",
    "DropUnused",
    "ForwardCrops",
    "FuseSegments",
    "Pass",
    "SlowestFirst",
    "TailorTransfers",
    "optimize",
]
