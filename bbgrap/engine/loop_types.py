"""Types of what a `Loop` makes, where its shapes do not depend on the run: neither onnx nor onnxruntime infers any.

carried    has the shape that it has at first, if a turn hands on everything in the shapes in which it came, however many turns there are
collected  is as long as there are turns, if these follow from constants, and each of its parts is as a turn makes it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bbgrap.engine.sessions import make_session
from bbgrap.errors import ModelError
from bbgrap.graph.onnx_io import OnnxModel, write_graph
from bbgrap.graph.onnx_loops import FIRST_STATE, MOST_TURNS, counting, turn_of
from bbgrap.graph.types import STORABLE, Graph, Node, TensorType


def loop_types(graph: Graph, node: Node, typed: Callable[[OnnxModel], Graph]) -> dict[str, TensorType]:
    """Return the types of all outputs of a loop; nothing where a turn of it may change shapes. `typed` finds the types in a turn."""
    state = [graph.types[name] for name in node.inputs[FIRST_STATE:]]
    if any(kind.shape is None and kind.dtype in STORABLE for kind in (*state, *(graph.types[name] for name in node.captured))):
        return {}
    read = {name: graph.weights[name] for name in node.reads if name in graph.weights}
    fed = tuple(name for name in node.reads if name not in read)
    outputs = tuple(name for name in node.outputs if name)
    written = write_graph(replace(graph, nodes=(node,), inputs=fed, outputs=outputs, weights=read), weights="detached")
    try:
        turn = typed(turn_of(written.data, {name: read[name].array for name in written.detached}))
    except ModelError:
        return {}
    made = [turn.types[name] for name in turn.outputs[1:]]
    if made[: len(state)] != state:
        return {}
    turns = _turns(written.data)
    kinds = [*state, *(_collected(kind, turns) for kind in made[len(state) :])]
    return {name: kind for name, kind in zip(node.outputs, kinds, strict=False) if name}


def _collected(kind: TensorType, turns: int) -> TensorType:
    # Of no turns, onnxruntime makes what it has inferred of the shape: that of nothing at all, as a rule.
    return TensorType(kind.dtype, (turns, *kind.known_shape)) if turns and kind.shape is not None else replace(kind, shape=None)


def _turns(loop: bytes) -> int:
    """Return how many turns there are; 0 if that is not known."""
    counted = counting(loop)
    if counted is None:
        return 0
    try:
        (numbers,) = make_session(counted, threads=1, optimize=False).run(None, {})
    except Exception:  # onnxruntime's exceptions have no common base; the whole model tells what is wrong with it
        return 0
    return len(numbers) if len(numbers) <= MOST_TURNS else 0
