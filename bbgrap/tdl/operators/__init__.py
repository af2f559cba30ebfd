"""Descriptions of the operators, one family a file; importing this package registers them all."""

from bbgrap.tdl.operators import (
    attention,
    blocks,
    convolutions,
    elementwise,
    group_query,
    indexing,
    movement,
    normalizations,
    partials,
    products,
    quantized,
    recurrent,
    reductions,
    sampling,
    shapes,
    windows,
)

__all__ = [
    "attention",
    "blocks",
    "convolutions",
    "elementwise",
    "group_query",
    "indexing",
    "movement",
    "normalizations",
    "partials",
    "products",
    "quantized",
    "recurrent",
    "reductions",
    "sampling",
    "shapes",
    "windows",
]
