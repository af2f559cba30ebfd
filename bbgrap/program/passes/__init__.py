"""The graph optimizer: one pass a file, and the pipeline that runs them."""

from bbgrap.program.passes.crops import DropTrivialAssemblies, ForwardCrops
from bbgrap.program.passes.dead import DropUnused
from bbgrap.program.passes.fuse import FuseSegments
from bbgrap.program.passes.instalments import InInstalments
from bbgrap.program.passes.order import SlowestFirst
from bbgrap.program.passes.pipeline import DEFAULT_PASSES, Pass, optimize
from bbgrap.program.passes.relay import RelayBroadcasts
from bbgrap.program.passes.transfers import DropEmptyMessages, TailorTransfers

__all__ = [
    "DEFAULT_PASSES",
    "DropEmptyMessages",
    "DropTrivialAssemblies",
    "DropUnused",
    "ForwardCrops",
    "FuseSegments",
    "InInstalments",
    "Pass",
    "RelayBroadcasts",
    "SlowestFirst",
    "TailorTransfers",
    "optimize",
]
