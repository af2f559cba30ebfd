"""Lengths that onnxruntime has written beside products, under names that it would take again.

One operator of a product and its bias wants rows, so onnxruntime writes what these come from and what they become. It (1.32) looks for
names that no *node* has, and refuses a model that has a weight of such a name: what it wrote itself, once there is one more product to
join. That is so of files that it has optimised with free sizes, which a request tells, and of float16, where it is asked twice. One of
the files that import onnx (see `onnx_io`).
"""

from __future__ import annotations

from onnx import GraphProto

from bbgrap.graph.onnx_tidy import bodies_of, captured_by

_TAKEN = ("gemm_input_shape", "gemm_output_shape")
"""How these names begin."""


def rename_lengths(graph: GraphProto) -> None:
    """Give such weights of a graph other names, in place; not those that callers know, or that a body reads."""
    known = {value.name for value in (*graph.input, *graph.output)}
    known |= {name for node in graph.node for body in bodies_of(node) for name in captured_by(body)}
    written = [tensor for tensor in graph.initializer if tensor.name.startswith(_TAKEN) and tensor.name not in known]
    if not written:
        return
    used = known | {tensor.name for tensor in graph.initializer} | {name for node in graph.node for name in node.output}
    names: dict[str, str] = {}
    for tensor in written:
        name = f"kept.{tensor.name}"
        while name in used:
            name = f"kept.{name}"
        names[tensor.name] = tensor.name = name
        used.add(name)
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name in names:
                node.input[place] = names[name]
