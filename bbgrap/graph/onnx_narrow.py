"""In what the floats behind a model's outputs were stored on the way. One of the files that import onnx (see `onnx_io`).

A float16 file that keeps 32 bits at its ends computes between two casts: its outputs are of 32 bits and as exact as 16.
"""

from __future__ import annotations

from onnx import GraphProto, TensorProto

from bbgrap.graph.onnx_infer import infer_shapes
from bbgrap.graph.onnx_read import OnnxModel, as_model_error
from bbgrap.graph.onnx_tidy import bodies_of, graphs_of, reads_of

_STEPS: dict[int, float] = {TensorProto.FLOAT16: 2.0**-10, TensorProto.BFLOAT16: 2.0**-7}
"""The distance of 1 and the next number, by the type of 16 bits."""


def narrow_steps(model: OnnxModel) -> tuple[float, ...]:
    """Return for every output the eps of the coarsest 16-bit floats that some operator before it answers in; 0.0 where none does.

    What is only stored in 16 bits, weights and inputs, does not count: it is not rounded by anybody.

    Raises:
        ModelError: if onnx cannot infer the types of its values.
    """
    with as_model_error(model.name):
        graph = infer_shapes(model.proto).graph
    steps: dict[str, float] = {}
    kinds = _kinds(graph)
    for node in graph.node:
        inside = max(
            (_STEPS.get(kind, 0.0) for body in bodies_of(node) for g in graphs_of(body) for kind in _kinds(g).values()), default=0.0
        )
        before = max((steps.get(name, 0.0) for name in reads_of(node)), default=0.0)
        for name in node.output:
            own = _STEPS.get(kinds.get(name, 0), 0.0) if node.op_type != "Constant" else 0.0
            steps[name] = max(inside, before, own)
    return tuple(steps.get(output.name, 0.0) for output in graph.output)


def _kinds(graph: GraphProto) -> dict[str, int]:
    return {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.output)}
