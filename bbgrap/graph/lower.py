"""Rewriting a fresh `Graph` into fewer kinds of operators, without changing what it computes.

- Wires go: `Identity`, `Concat` of one operand, and `Dropout` outside training. One stays where it is the direct way from a graph input,
  a weight or another graph output to a graph output, or where the body of a control-flow node reads one of its ends by name.
- Operands that are packed are spread out (`packed`).
- `Split` becomes one `Slice` per output: each is a plain copy, so the parts can be computed, and placed, apart.
- Nodes that no output depends on go, and with them the weights and types that nothing mentions.
- Optional outputs that nobody reads are left out: exporters name all outputs of an LSTM, whatever the model uses.
- A graph output that is a weight gets an `Identity`: every output is then a graph input or the output of a node.

Once shapes are known for sure, three more are done: a value without elements is a constant, so nobody computes or sends it
(`empty_to_constant`), and what slices are overwritten with is put between what stays (`plain_assignments`), and
frames that are cut one by one are taken at once (`gathered_frames`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from bbgrap.graph.packed import PACKED
from bbgrap.graph.rewriting import Rewriter, trimmed, unique_name
from bbgrap.graph.types import STORABLE, Array, Graph, Node, TensorType

_MANY_FRAMES = 8
"""Chosen: fewer slices are as soon planned as they are."""
_MOST_PLACES = 1 << 22
"""Of which a constant is made: 32 MB."""
RECURRENT = frozenset({"LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"})
"""Operators every one of whose outputs may be absent."""
_OPTIONAL_OUTPUTS = RECURRENT | {
    "LayerNormalization",
    "SimplifiedLayerNormalization",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
}
"""Operators every one of whose further outputs may be absent."""

_DROPOUT_WITH_MODE = 12
"""The opset from which `Dropout` takes `training_mode` as an input; from 7 to here it never drops anything."""


def lower(graph: Graph) -> Graph:
    """Apply every rewriting of this module once, in the order of its list."""
    return name_constant_outputs(_without_unread(Rewriter(remove_wires(graph)).run(*PACKED, _split)))


def _without_unread(graph: Graph) -> Graph:
    return remove_dead(drop_unread_outputs(remove_dead(graph)))


def remove_wires(graph: Graph) -> Graph:
    """Remove nodes that hand on their first input unchanged, and let its readers read what it read."""
    pinned = {name for node in graph.nodes for name in node.captured}
    alias: dict[str, str] = {}
    kept = [node for node in graph.nodes if not (_is_wire(graph, node) and _bypass(graph, node, pinned, alias))]
    if not alias:
        return graph
    nodes = [replace(node, inputs=_resolve(alias, node.inputs), outputs=_resolve(alias, node.outputs)) for node in kept]
    types = dict(graph.types)
    for name, (stand_in,) in ((name, _resolve(alias, (name,))) for name in alias):
        if types[stand_in].shape is None:
            types[stand_in] = types[name]
    return replace(graph, nodes=tuple(nodes), types=types)


def _split(writer: Rewriter, node: Node) -> bool:
    """Write slices in place of a `Split` whose parts have known sizes."""
    sizes = _part_sizes(writer.source, node) if writer.can_slice and node.op == "Split" and not node.domain else None
    if sizes is None:
        return False
    writer.slices(node.name, node.inputs[0], _axis(writer.source, node), [0, *accumulate(sizes)], node.outputs)
    return True


def empty_to_constant(graph: Graph) -> Graph:
    """Let every reader of a value that is known to have no elements read an empty weight instead, but for bodies, which keep its name.

    Only where shapes are those that a run makes: of what is left out nobody finds out that it makes others.
    """
    writer = Rewriter(graph)
    stand_in: dict[str, str] = {}
    for name in graph.consumers:
        kind = graph.types[name]
        if kind.shape is not None and 0 in kind.shape and kind.dtype in STORABLE and name not in graph.weights:
            stand_in[name] = writer.constant(f"{name}.empty", np.empty(kind.shape, kind.dtype.numpy))
    if not stand_in:
        return graph
    inputs = ((node, _with_elements(graph, node)) for node in graph.nodes)
    writer.nodes += (replace(node, inputs=tuple(stand_in.get(name, name) for name in names)) for node, names in inputs)
    return _without_unread(remove_wires(writer.graph()))


def _with_elements(graph: Graph, node: Node) -> tuple[str, ...]:
    """Return what a node reads, of a `Concat` without what other nodes make that adds nothing to it; all of that where all adds nothing.

    So a weight that would be empty in one axis, and as long as the state in another, is none.
    """
    if node.op != "Concat" or node.domain or graph.types[node.first_output].shape is None:
        return node.inputs
    axis = _axis(graph, node)
    shapes = {name: graph.types[name].shape for name in node.inputs if name in graph.producers}
    kept = tuple(name for name in node.inputs if not (shape := shapes.get(name)) or shape[axis])
    return kept or node.inputs


def plain_assignments(graph: Graph) -> Graph:
    """Write a `ScatterND` that overwrites slices, in order, without it: so exporters write `x[:, 2:5] = y` and `x[..., ::2] = y`.

    Parts of the old are put around the new, or old and new together, and chosen from; what overwrites everything is what it writes. Only
    where shapes are those that a run makes.
    """
    return _without_unread(remove_wires(Rewriter(graph).run(_assignment)))


def _assignment(writer: Rewriter, node: Node) -> bool:
    places = _overwritten(writer.source, node) if writer.can_slice else None
    if places is None:
        return False
    old, _, new = node.inputs
    partial = [(axis, chosen) for axis, chosen in enumerate(places) if chosen.size < writer.shape(old)[axis]]
    writer.nodes.append(Node(node.name, "Identity", (_assigned(writer, node.name, old, new, partial),), node.outputs))
    return True


def _overwritten(graph: Graph, node: Node) -> tuple[Array, ...] | None:
    """Return where, of each of the first axes, a `ScatterND` overwrites, ascending; None if that is not all these places of all axes."""
    if node.op != "ScatterND" or node.domain or node.attributes.get("reduction", "none") != "none":
        return None
    shape, places = graph.types[node.inputs[0]].shape, graph.constant(node.inputs[1])
    if shape is None or places is None or not places.size:
        return None
    counts = places.shape[:-1]
    if len(counts) != places.shape[-1] or graph.types[node.inputs[2]].shape != (*counts, *shape[len(counts) :]):
        return None
    places = np.where(places < 0, places + np.array(shape[: len(counts)]), places)
    chosen = tuple(np.moveaxis(places[..., axis], axis, 0).reshape(count, -1)[:, 0] for axis, count in enumerate(counts))
    ascending = all(bool(each[0] >= 0 and (np.diff(each) > 0).all()) for each in chosen)
    return chosen if ascending and np.array_equal(places, np.stack(np.meshgrid(*chosen, indexing="ij"), -1)) else None


def _assigned(writer: Rewriter, wanted: str, old: str, new: str, places: Sequence[tuple[int, Array]]) -> str:
    """Write what is in `old` but for places of axes, where it is `new`; return its name."""
    if not places:
        return new
    (axis, chosen), *inner = places
    shape, start, stop = writer.shape(old), int(chosen[0]), int(chosen[-1]) + 1
    if stop - start > chosen.size:
        within = _assigned(writer, wanted, _chosen(writer, f"{wanted}.{axis}.old", old, axis, chosen), new, inner) if inner else new
        both = writer.made(
            f"{wanted}.{axis}.both", "Concat", (old, within), {"axis": axis}, shape=_resized(shape, axis, shape[axis] + chosen.size)
        )
        order = np.arange(shape[axis])
        order[chosen] = shape[axis] + np.arange(chosen.size)
        return _chosen(writer, f"{wanted}.{axis}", both, axis, order)
    parts = []
    for begin, end in ((0, start), (start, stop), (stop, shape[axis])):
        is_new = (begin, end) == (start, stop)
        if is_new and not inner:
            parts.append(new)
        elif begin < end:
            label = f"{wanted}.{axis}.{begin}"
            part = writer.new(label, writer.types[old].dtype, _resized(shape, axis, end - begin))
            writer.slices(label, old, axis, (begin, end), (part,))
            parts.append(_assigned(writer, wanted, part, new, inner) if is_new else part)
    return writer.made(f"{wanted}.{axis}", "Concat", parts, {"axis": axis}, shape=shape)


def _chosen(writer: Rewriter, wanted: str, x: str, axis: int, places: Array) -> str:
    shape = _resized(writer.shape(x), axis, places.size)
    return writer.made(wanted, "Gather", (x, writer.integers(f"{wanted}.places", places.tolist())), {"axis": axis}, shape=shape)


def _resized(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def gathered_frames(graph: Graph) -> Graph:
    """Take frames of a signal by one `Gather`: PyTorch's older exporter writes `unfold` as a `Slice` and an `Unsqueeze` for each."""
    written = Rewriter(graph).run(_gathered)
    return graph if written is graph else remove_dead(written)


def _gathered(writer: Rewriter, node: Node) -> bool:
    if node.op != "Concat" or node.domain or len(node.inputs) < _MANY_FRAMES:
        return False
    frames = [frame for name in node.inputs if (frame := _frame(writer.source, name))]
    if len(frames) < len(node.inputs) or len({(x, axis, places.size) for x, axis, places in frames}) > 1:
        return False
    (x, axis, _), places = frames[0], np.stack([frame[2] for frame in frames])
    if axis != _axis(writer.source, node) or places.size > _MOST_PLACES or np.ptp(np.diff(places[:, 0])):
        return False
    writer.nodes.append(Node(node.name, "Gather", (x, writer.constant(f"{node.name}.places", places)), node.outputs, {"axis": axis}))
    return True


def _frame(graph: Graph, name: str) -> tuple[str, int, Array] | None:
    """Return what a frame is cut of, along which axis, which gets another before it, and where; None if it is nothing like that."""
    added = graph.producers.get(name)
    part = graph.producers.get(added.inputs[0]) if added and added.op == "Unsqueeze" and len(added.inputs) > 1 else None
    if added is None or part is None or part.op != "Slice" or len(part.inputs) < 4:
        return None
    told = [graph.constant(value) for value in (added.inputs[1], part.inputs[3], part.inputs[1], *part.inputs[4:])]
    shapes = [graph.types[value].shape for value in (part.inputs[0], part.first_output)]
    if any(each is None or each.size != 1 for each in told) or None in shapes:
        return None
    new, axis, start, *step = (int(each.flat[0]) for each in told if each is not None)
    known = [shape for shape in shapes if shape is not None]
    if new != axis or axis < 0 or start < 0 or step not in ([], [1]):
        return None
    return part.inputs[0], axis, np.arange(start, start + known[1][axis])


def drop_unread_outputs(graph: Graph) -> Graph:
    """Leave out optional outputs that no node reads and that are no graph outputs; at least one output stays."""
    read = set(graph.consumers) | set(graph.outputs)
    nodes = []
    for node in graph.nodes:
        outputs = node.outputs
        if node.op in _OPTIONAL_OUTPUTS and any(name in read for name in outputs):
            stays = 0 if node.op in RECURRENT else 1
            outputs = tuple(name if name in read or place < stays else "" for place, name in enumerate(outputs))
        nodes.append(node if outputs == node.outputs else replace(node, outputs=trimmed(outputs)))
    return replace(graph, nodes=tuple(nodes))


def name_constant_outputs(graph: Graph) -> Graph:
    """Give every graph output that is a weight a node that produces it."""
    constant = [name for name in dict.fromkeys(graph.outputs) if name in graph.weights]
    if not constant:
        return graph
    inner = {name: unique_name(f"{name}.value", graph.types) for name in constant}
    weights = {inner.get(name, name): replace(weight, name=inner.get(name, name)) for name, weight in graph.weights.items()}
    types = {**graph.types, **{inner[name]: graph.types[name] for name in constant}}
    copies = [Node(unique_name(f"copy {name}", graph.node_by_name), "Identity", (inner[name],), (name,)) for name in constant]
    nodes = [replace(node, inputs=tuple(inner.get(name, name) for name in node.inputs)) for node in graph.nodes]
    return replace(graph, nodes=(*copies, *nodes), weights=weights, types=types)


def remove_dead(graph: Graph) -> Graph:
    """Keep only what the graph outputs depend on, and all graph inputs."""
    needed = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            kept.append(node)
            needed.update(node.reads)
    nodes = tuple(reversed(kept))
    defined = needed.union(graph.inputs, *(node.outputs for node in nodes))
    return replace(
        graph,
        nodes=nodes,
        weights={name: weight for name, weight in graph.weights.items() if name in needed},
        types={name: type_ for name, type_ in graph.types.items() if name in defined},
    )


def _is_wire(graph: Graph, node: Node) -> bool:
    if node.domain or node.op not in ("Identity", "Dropout", "Concat"):
        return False
    if node.op == "Identity":
        return True
    if node.op == "Concat":
        return len(node.inputs) == 1
    opset = graph.opsets.get("", 0)
    mask_is_read = len(node.outputs) > 1 and (node.outputs[1] in graph.consumers or node.outputs[1] in graph.outputs)
    mode = node.inputs[2] if len(node.inputs) > 2 and opset >= _DROPOUT_WITH_MODE else ""
    constant = graph.constant(mode)
    trains = bool(mode) and (constant is None or bool(constant.any()))
    return opset >= 7 and not mask_is_read and not trains


def _bypass(graph: Graph, wire: Node, pinned: set[str], alias: dict[str, str]) -> bool:
    """Let one end of a wire stand for the other, if nothing needs both names; return whether that is so."""
    (source,), target = _resolve(alias, wire.inputs[:1]), wire.outputs[0]
    if target in pinned:
        return False
    if target not in graph.outputs:
        alias[target] = source
    elif source in graph.producers and source not in graph.outputs and source not in pinned:
        alias[source] = target
    else:
        return False
    return True


def _resolve(alias: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, ...]:
    """Follow each name to the one that stands for it."""
    while any(name in alias for name in names):
        names = tuple(alias.get(name, name) for name in names)
    return names


def _axis(graph: Graph, node: Node) -> int:
    axis = node.attributes.get("axis", 0)
    rank = len(graph.types[node.inputs[0]].known_shape)
    return axis % rank if isinstance(axis, int) and rank else 0


def _part_sizes(graph: Graph, node: Node) -> list[int] | None:
    """Return the length of each part along the axis, or None if one is not known before the run."""
    parts = [graph.types.get(name) for name in node.outputs]
    if graph.types[node.inputs[0]].shape is None:
        return None
    axis = _axis(graph, node)
    shapes = [part.shape for part in parts if isinstance(part, TensorType) and part.shape is not None]
    return [shape[axis] for shape in shapes] if len(shapes) == len(node.outputs) else None
