"""How coarse the floats behind a model's outputs are. One of the files that import onnx (see `onnx_io`).

A float16 file that keeps 32 bits at its ends computes between two casts: its outputs are of 32 bits and as exact as 16. A sigmoid is
computed as 0.5 and something: one near 0 is as exact as one near 0.5.
"""

from __future__ import annotations

from onnx import GraphProto, TensorProto

from bbgrap.graph.onnx_infer import infer_shapes
from bbgrap.graph.onnx_read import OnnxModel, as_model_error
from bbgrap.graph.onnx_tidy import bodies_of, graphs_of, reads_of

_STEPS: dict[int, float] = {TensorProto.FLOAT16: 2.0**-10, TensorProto.BFLOAT16: 2.0**-7}
"""The distance of 1 and the next number, by the type of 16 bits."""

SIGMOID_GRAIN = 3 * 2.0**-23
"""How far two of onnxruntime's sigmoids of one number may be apart, however small they are. Measured over [-40, 20]: below -5 they are
multiples of 2^-25, and up to 1.4 eps from the exact ones; twice as far."""

_MOVES = frozenset({"Concat", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"})


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


def sigmoid_grains(model: OnnxModel) -> tuple[float, ...]:
    """Return for every output `SIGMOID_GRAIN` if some of its elements are sigmoids as they are; else 0.0."""
    sigmoids: set[str] = set()
    for node in model.proto.graph.node:
        if node.op_type == "Sigmoid" or (node.op_type in _MOVES and not sigmoids.isdisjoint(node.input)):
            sigmoids.update(node.output)
    return tuple(SIGMOID_GRAIN if output.name in sigmoids else 0.0 for output in model.proto.graph.output)


def _kinds(graph: GraphProto) -> dict[str, int]:
    return {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.output)}
