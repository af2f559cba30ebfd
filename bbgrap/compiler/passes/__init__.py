"""The graph optimizer: one pass a file, and the pipeline that runs them."""

from bbgrap.compiler.passes.chunk_inputs import ChunkInputs
from bbgrap.compiler.passes.own_first import OwnFirst
from bbgrap.compiler.passes.pipeline import DEFAULT_PASSES, optimize

__all__ = ["DEFAULT_PASSES", "ChunkInputs", "OwnFirst", "optimize"]
