"""Types of all values of a model as onnxruntime really makes them.

ONNX's inference tells which shapes follow from those of the inputs alone, nearly always rightly. Two things are asked of onnxruntime:

    types of values of which onnx knows nothing     a session that has them as outputs declares them
    shapes that some operators make                 each node of theirs runs alone, on zeros: see `DOUBTED`; of an `Einsum` they are known

A third follows from what is asked: shapes that a loop makes, from those of one of its turns (`loop_types`).

Where these differ from what was inferred, all that follows is inferred anew from what is so. Laws: a shape that depends on the inputs'
values stays unknown; a shape that is known is the one that onnxruntime makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType

import numpy as np

from bbgrap.engine.cache_shapes import CACHING, cached_shapes
from bbgrap.engine.estimator_shapes import estimator_shapes, is_estimator
from bbgrap.engine.loop_types import loop_types
from bbgrap.engine.sessions import declared_type, make_session
from bbgrap.engine.steered_shapes import steered_shapes
from bbgrap.engine.told_numbers import run_alone
from bbgrap.errors import ModelError
from bbgrap.graph.lower import empty_to_constant, gathered_frames, plain_assignments
from bbgrap.graph.onnx_io import OnnxModel, to_graph, weights_of, write_graph
from bbgrap.graph.onnx_types import UNKNOWN
from bbgrap.graph.rewriting import Rewriter
from bbgrap.graph.types import STORABLE, Attribute, DType, Graph, Node, TensorType, Weight
from bbgrap.tdl import site_of
from bbgrap.tdl.operators.products import einsum_shape

POOLS = frozenset({"MaxPool", "AveragePool", "LpPool", "QLinearAveragePool", "NhwcMaxPool"})
"""With `ceil_mode`, onnx counts a last window that begins beyond the data, and onnxruntime does not."""

DOUBTED = POOLS | {"ConvTranspose", "Einsum", "PRelu", "Resize", "Upsample"}
"""Operators of which onnxruntime makes other shapes than onnx infers, in some cases; found by comparing thousands of random models."""

MOST_BYTES = 1 << 30
"""Of the operands and results of a node that runs alone; what onnx infers is believed of larger ones. Chosen: an image of 8192 x 8192 with
three channels takes 0.8 GB."""
MOST_WORK = 1 << 33
"""Elements times those of a window. Chosen: about ten seconds of one core."""

MOST_LOOPS = 16
"""Of which the shapes are found. Chosen: models have a few; what follows one is inferred in a round of its own, over the whole model."""

_STEERING = frozenset({DType.INT32, DType.INT64})
"""Types of values that may say which shape another value has."""

_Turns = dict[tuple[object, ...], dict[str, TensorType]]
"""What loops make, by their names and by the types of what they read."""

_Shapes = dict[tuple[object, ...], tuple[tuple[int, ...], ...] | None]
"""Shapes that a node made, by what decides about them; None where it could not be run alone."""


def typed_graph(model: OnnxModel, *, hides_sizes: bool = False, known: Mapping[str, Weight] = MappingProxyType({})) -> Graph:
    """Return the graph of a model with concrete input shapes; arguments as those of `to_graph` and `weights_of`.

    Raises:
        ModelError: if it cannot be represented.
    """
    seen: dict[str, TensorType] = {}
    declared: dict[str, TensorType] = {}
    asked: set[str] = set()
    ranks: dict[str, int] = {}
    shapes: _Shapes = {}
    turns: _Turns = {}
    stored = weights_of(model, known)
    while True:
        graph = to_graph(model, declared | seen, hides_sizes=hides_sizes, stored=stored)
        if wrong := _first_wrong(graph, seen, shapes):
            seen |= wrong
            declared.clear()  # what follows was declared for other shapes
            asked.clear()
            ranks.clear()
            continue
        unknown = [n for n, kind in graph.types.items() if kind.shape is None and not kind.onnx and n not in {*asked, *graph.inputs}]
        found, their_ranks = _declared_by_runtime(graph, seen, unknown) if unknown else ({}, {})
        ranks |= their_ranks
        if not found and (further := _made_by_loops(graph, declared, turns) or steered_shapes(graph, declared)):
            declared |= further
            continue
        if not found:
            return replace(empty_to_constant(gathered_frames(plain_assignments(plain_slopes(graph)))), ranks=ranks)
        # From shapes more may follow, here and there; of what nobody knows a shape, the type alone is taken.
        told = {name: kind for name, kind in found.items() if kind.shape is not None and name not in declared}
        if not told:
            asked.update(unknown)
        declared |= told or found


def plain_slopes(graph: Graph) -> Graph:
    """Spell out every `PRelu` whose slope has the higher rank: in a segment, inference would contradict what onnxruntime makes of it."""

    def write(writer: Rewriter, node: Node) -> bool:
        if node.op != "PRelu" or not _is_doubted(graph, node) or any(graph.types[name].shape is None for name in node.inputs):
            return False
        (x, slope), (y,) = node.inputs, node.outputs
        zero = writer.constant(f"{node.name}.zero", np.zeros((), graph.types[x].dtype.numpy))
        scaled = writer.made(f"{node.name}.scaled", "Mul", (x, slope))
        negative = writer.made(f"{node.name}.negative", "Less", (x, zero), dtype=DType.BOOL)
        writer.nodes.append(Node(node.name, "Where", (negative, scaled, x), (y,)))
        return True

    return Rewriter(graph).run(write)


def _first_wrong(graph: Graph, seen: Mapping[str, TensorType], shapes: _Shapes) -> dict[str, TensorType]:
    """Return the true types of what the first node makes whose shapes are not so; nothing if there is none.

    What was `seen` of a node stays while what it reads is not known again. Caches come with it, as nothing follows from their shapes, and
    estimators, as nothing was known of theirs.
    """
    found: dict[str, TensorType] = {}
    for node in graph.nodes:
        names = [name for name in node.outputs if name]
        if not _is_doubted(graph, node) or not _is_inferred(graph, node):
            continue
        made = None if _reduces_nothing(graph, node) else _true_shapes(graph, node, shapes)
        if made is None and seen.keys() >= set(names):
            continue
        if made is None or tuple(made) != tuple(graph.types[name].shape for name in names):
            # Where nobody can tell, the run will.
            found |= {n: replace(graph.types[n], shape=None if made is None else made[k]) for k, n in enumerate(names)}
            if node.op not in CACHING and not is_estimator(node):
                break
    return found


def _is_inferred(graph: Graph, node: Node) -> bool:
    """Whether enough is known of a node's outputs to tell their true shapes: of caches and of what estimators make the type is enough."""
    first, *others = (graph.types[name] for name in node.outputs if name)
    if is_estimator(node):
        return all(kind.dtype is not DType.OTHER for kind in (first, *others))
    if node.op in CACHING:
        return first.shape is not None and all(kind.dtype is not DType.OTHER for kind in others)
    return all(kind.shape is not None for kind in (first, *others))


def _true_shapes(graph: Graph, node: Node, shapes: _Shapes) -> Sequence[tuple[int, ...] | None] | None:
    if node.op == "Einsum":
        made = einsum_shape(site_of(graph, node))
        return None if made is None else (made,)
    if is_estimator(node):
        return estimator_shapes(graph, node, shapes)
    return cached_shapes(graph, node) if node.op in CACHING else _made_shapes(graph, node, shapes)


def _is_doubted(graph: Graph, node: Node) -> bool:
    """Whether a node may make other shapes than were inferred."""
    match node.op:
        case "PRelu":
            data, slope = (graph.types[name].shape for name in node.inputs)
            return data is None or slope is None or len(slope) > len(data)
        case "Einsum":  # where an axis broadcasts, onnx infers the extent that it finds first
            return all(graph.types[name].shape is not None for name in node.inputs) and einsum_shape(site_of(graph, node)) is not None
        case "Resize":
            # sizes that are given are made, unless the ratio is to be kept
            return not any(node.inputs[3:4]) or node.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch"
        case op:
            return op in DOUBTED or is_estimator(node) or _reduces_nothing(graph, node) or (op in CACHING and any(node.outputs[1:]))


def _reduces_nothing(graph: Graph, node: Node) -> bool:
    """Whether a node reduces a value without elements: there onnxruntime does not understand negative axes, and keeps others."""
    reduces = node.op.startswith(("Reduce", "Arg")) and not node.domain
    return reduces and 0 in (graph.types[node.inputs[0]].shape or ())


def _declared_by_runtime(graph: Graph, seen: Mapping[str, TensorType], unknown: list[str]) -> tuple[dict[str, TensorType], dict[str, int]]:
    """Return what onnxruntime can tell of types that onnx could not infer, where those that are known are so, and the ranks of tensors.

    What is known comes from outside: it may follow from what onnxruntime does not infer. But integers may steer shapes.
    """

    def is_known(node: Node) -> bool:
        kinds = {name: graph.types[name] for name in node.outputs if name}
        return all(name in seen or (kind.shape is not None and kind.dtype not in _STEERING) for name, kind in kinds.items())

    known = {node.name for node in graph.nodes if is_known(node)}
    nodes = tuple(node for node in graph.nodes if node.name not in known)
    read = {name for node in nodes for name in node.reads}
    cut = {name for node in graph.nodes if node.name in known for name in node.outputs if name}
    made = tuple(name for name in graph.producers if name in cut & read)
    weights = {name: weight for name, weight in graph.weights.items() if name in read}  # onnxruntime drops others, and misses them
    outputs = tuple(name for name in unknown if name not in cut)
    asked = replace(graph, nodes=nodes, inputs=(*graph.inputs, *made), outputs=outputs, weights=weights)
    written = write_graph(asked, weights="detached")
    arrays = {name: graph.weights[name].array for name in written.detached}
    try:
        session = make_session(written.data, weights=arrays, threads=1, optimize=False, packs=False)
    except ModelError:  # an operator that onnxruntime has only at a higher level, say; the types stay unknown
        return {}, {}
    found = {item.name: declared_type(item) for item in session.get_outputs()}
    tensors = [item for item in session.get_outputs() if found[item.name].dtype in STORABLE]  # an optional one has a shape, too
    ranks = {item.name: len(item.shape) for item in tensors if isinstance(item.shape, list) and item.shape}
    return {name: kind for name, kind in found.items() if kind not in (graph.types[name], UNKNOWN)}, ranks


def _made_by_loops(graph: Graph, declared: Mapping[str, TensorType], table: _Turns) -> dict[str, TensorType]:
    """Return what is not yet declared of the types of what loops make."""
    found: dict[str, TensorType] = {}
    for node in graph.nodes:
        if node.op == "Loop" and not node.domain:
            key = (node.name, *(graph.types[name] for name in node.reads))
            if key not in table and sum(map(bool, table.values())) < MOST_LOOPS:
                table[key] = loop_types(graph, node, typed_graph)
            found |= {name: kind for name, kind in table.get(key, {}).items() if declared.get(name) != kind}
    return found


def _made_shapes(graph: Graph, node: Node, table: _Shapes) -> tuple[tuple[int, ...], ...] | None:
    """Return the shapes of a node's outputs as onnxruntime makes them; None if it cannot be run alone."""
    alone = _alone(graph, node)
    if alone is None:
        return None
    weights = tuple((place, alone.weights[name].digest) for place, name in enumerate(node.inputs) if name in alone.weights)
    key = (
        node.op,
        node.domain,
        repr(sorted(alone.nodes[0].attributes.items())),
        weights,
        tuple(alone.types[name].shape for name in alone.inputs),
    )
    if key not in table:
        table[key] = _run(alone) if _is_light(graph, node, alone) else None
    made = table[key]
    kinds = [graph.types[name] for name in node.outputs if name]
    if made is None:
        return None
    kept = _irrelevant_axes(graph, node)
    shapes = zip((kind.known_shape for kind in kinds), made, strict=True)
    return tuple(tuple(old[axis] if axis in kept else size for axis, size in enumerate(new)) for old, new in shapes)


def _is_light(graph: Graph, node: Node, alone: Graph) -> bool:
    """Whether a node alone takes little memory and time; a file of a hundred bytes can ask for any of both."""
    small = _irrelevant_axes(graph, node)
    sizes = [alone.types[name].known_shape for name in alone.inputs]
    sizes += [tuple(1 if axis in small else size for axis, size in enumerate(graph.types[n].known_shape)) for n in node.outputs if n]
    window = node.attributes.get("kernel_shape", ())
    extents = tuple(extent for extent in window if isinstance(extent, int)) if isinstance(window, tuple) else ()
    if node.op == "ConvTranspose":
        extents = graph.types[node.inputs[1]].known_shape[2:]
    elements = sum(map(prod, sizes))
    return 4 * elements <= MOST_BYTES and elements * prod(extents) <= MOST_WORK


def _irrelevant_axes(graph: Graph, node: Node) -> frozenset[int]:
    """Return the axes of the first operand of which one element is enough: images and channels, or what is not resized."""
    if node.op in POOLS or node.op == "ConvTranspose":
        channels_last = node.attributes.get("channels_last", 0) or node.op.startswith("Nhwc")
        return frozenset({0, len(graph.types[node.inputs[0]].known_shape) - 1 if channels_last else 1})
    scales = graph.constant(node.inputs[2]) if node.op == "Resize" and len(node.inputs) == 3 else None
    cropped = node.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    if scales is None or cropped or "axes" in node.attributes:
        return frozenset()
    return frozenset(axis for axis, scale in enumerate(scales.tolist()) if scale == 1)


def _alone(graph: Graph, node: Node) -> Graph | None:
    """Return a graph of one node, its first operand as small as possible; None if its shape depends on values that nobody knows."""
    types = {name: graph.types[name] for name in (*node.inputs, *node.outputs) if name}
    if any(kind.shape is None or kind.dtype not in STORABLE for kind in types.values()):
        return None
    attributes: dict[str, Attribute] = dict(node.attributes)
    inputs = list(node.inputs)
    small = _irrelevant_axes(graph, node)
    first = types[inputs[0]]
    types[inputs[0]] = TensorType(first.dtype, tuple(1 if axis in small else size for axis, size in enumerate(first.known_shape)))
    if node.op == "ConvTranspose":
        types[inputs[1]] = TensorType(first.dtype, (1, 1, *types[inputs[1]].known_shape[2:]))
        attributes["group"] = 1
        inputs = inputs[:2]
    parameters = () if node.op in ("ConvTranspose", "PRelu") else tuple(name for name in inputs[1:] if name)
    if any(name not in graph.weights for name in parameters):
        return None
    fed = tuple(dict.fromkeys(name for name in inputs if name and name not in parameters))
    outputs = tuple(name for name in node.outputs if name)
    types |= {name: TensorType(types[name].dtype, None) for name in outputs}
    if not node.domain:  # there are kernels for 32-bit floats; shapes do not depend on the type
        types |= {name: TensorType(DType.FLOAT, types[name].shape) for name in (*fed, outputs[0])}
    single = replace(node, inputs=tuple(inputs), attributes=attributes)
    weights = {name: graph.weights[name] for name in parameters}
    return Graph(graph.name, (single,), fed, outputs, weights, types, graph.opsets, graph.ir_version)


def _run(alone: Graph) -> tuple[tuple[int, ...], ...] | None:
    found = run_alone(alone, {name: np.zeros(alone.types[name].known_shape, alone.types[name].dtype.numpy) for name in alone.inputs})
    return None if found is None else tuple(array.shape for array in found)
