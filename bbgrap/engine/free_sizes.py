"""Which sizes of a model's values are the same for all shapes of its inputs, as onnx infers them, and onnxruntime where onnx knows nothing.

onnx knows nothing of onnxruntime's own operators, nor of what follows from them.
"""

from __future__ import annotations

from bbgrap.engine.cache_shapes import CACHING
from bbgrap.engine.sessions import make_session
from bbgrap.errors import ModelError
from bbgrap.graph.onnx_free import Sizes, asking, fixed_sizes
from bbgrap.graph.onnx_io import OnnxModel


def sizes_of_free(model: OnnxModel) -> Sizes:
    """Return the sizes that a model's values have whatever its inputs' are, None where they differ; values nobody knows are left out."""
    known = fixed_sizes(model)
    data, asked = asking(model, known, CACHING)
    if not asked:
        return known
    try:
        session = make_session(data, threads=1, optimize=False)
    except ModelError:  # a kernel that wants its weights before it runs, say: what onnx does not know moves
        return known
    told = {item.name: item.shape for item in session.get_outputs() if item.name in asked and item.shape}
    return {**known, **{name: tuple(size if isinstance(size, int) else None for size in shape) for name, shape in told.items()}}
