"""Descriptions of the operators, one family a file; importing this package registers them all."""

from bbgrap.tdl.operators import (  # noqa: F401 - that they are imported is all that is wanted
    attention,
    blocks,
    convolutions,
    elementwise,
    estimators,
    experts,
    group_query,
    indexing,
    linear_attention,
    movement,
    normalizations,
    padding,
    partials,
    products,
    quantized,
    recurrent,
    reductions,
    sampling,
    shapes,
    windows,
)
