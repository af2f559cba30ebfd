"""State: outputs of one request that are inputs of the next one of its sequence, and stay where they are computed.

    request n:    x ──► model ──► y         request n+1:    x ──► model ──► y
                          │ present  ─ ─ ─ ─ ─ ─ ─ ─ ─►  past │

A state input is not in the request, and its output is not in the answer. The output may be longer than the input along one axis, as a
cache that grows by a token is; that axis is never cut. A *lasting* input is a pair with itself, as what an encoder made of a sound: it
comes with the first request of a sequence, and stays.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from bbgrap.errors import ModelError, PlanError
from bbgrap.graph.types import DType, Graph
from bbgrap.shapemap import IntervalSet, ShapeMap

BRANCH, OF_ENCODER = "use_cache_branch", ".encoder."
"""Of decoders that Optimum merged from one for the first request and one for all others: the input that says which of them runs. Of any
that Optimum exports: what is in the names of caches that are made of what an encoder put out."""


def with_state(graph: Graph, pairs: Mapping[str, str]) -> Graph:
    """Return a graph with state; `pairs` are inputs, and the outputs that they are in the next request.

    Raises:
        ModelError: if a name is no input or output, or what a pair holds differs in type, or in more than the length of one axis.
        PlanError: if only a run tells the shape of a state, or it is of numbers that numpy lacks.
    """
    for name, output in pairs.items():
        label = f"state '{name}' of model '{graph.name}'"
        if name not in graph.inputs:
            raise ModelError(f"{label}: it is no input; the inputs are {', '.join(graph.inputs) or 'none'}")
        if output != name and output not in graph.outputs:
            raise ModelError(f"{label}: '{output}' is no output; the outputs are {', '.join(graph.outputs)}")
        if output != name and output not in graph.producers:
            raise ModelError(f"{label}: '{output}' is an input or a constant, expected what the model computes")
        if name in made_once(graph.inputs, pairs):
            raise PlanError(f"{label}: it stays whole, for only a sequence's first request makes '{output}'; later ones put out fillers")
        before, after = graph.types[name], graph.types[output]
        if before.dtype is not after.dtype or before.dtype is DType.STRING:
            raise ModelError(f"{label}: expected a tensor of numbers of one type, got {before} as input and {after} as '{output}'")
        if before.shape is None or after.shape is None:
            why = "numpy lacks such numbers" if before.dtype is DType.OTHER else "only a run tells its shape"
            raise PlanError(f"{label}: it stays whole, for {why}: {before} as input, {after} as '{output}'")
        if len(before.shape) != len(after.shape) or len(_growing(graph, name, output)) > 1:
            raise ModelError(
                f"{label}: expected shapes that differ along one axis at most, got {before} as input and {after} as '{output}'"
            )
    if len(set(pairs.values())) != len(pairs):
        raise ModelError(f"model '{graph.name}': an output is the state of two inputs")
    return replace(graph, state={name: pairs[name] for name in graph.inputs if name in pairs})


def made_once(inputs: Collection[str], pairs: Mapping[str, str]) -> frozenset[str]:
    """Return the state that only a sequence's first request makes: the encoder's caches in a decoder that Optimum merged of two.

    In later requests, those with `use_cache_branch`, it puts out fillers for them, and reads what the first one made.
    """
    is_merged = BRANCH in inputs
    return frozenset(name for name, output in pairs.items() if is_merged and name != output and OF_ENCODER in name)


def check_pairs(model: str, inputs: Collection[str], outputs: Collection[str], pairs: Collection[tuple[str, str]]) -> None:
    """Check that pairs of a model's state are of an input and an output each, or an input with itself, before anything is loaded.

    Raises:
        ModelError: if a name is none of the model's, or used twice.
    """
    for name, output in pairs:
        if name not in inputs or output not in (*outputs, name):
            known = f"the inputs are {', '.join(inputs) or 'none'}, the outputs {', '.join(outputs)}"
            raise ModelError(f"state '{name}' of model '{model}', which '{output}' becomes: expected an input and an output; {known}")
    if len({name for name, _ in pairs}) != len(pairs) or len({output for _, output in pairs}) != len(pairs):
        raise ModelError(f"model '{model}': an input or output is state twice")


def grows(graph: Graph) -> bool:
    """Whether a graph's state is longer after a request than before."""
    return any(graph.types[name].shape != graph.types[output].shape for name, output in graph.state.items())


def counts_words(symbol: int | str | None) -> bool:
    """Whether an axis is of all words so far: exporters call that of a mask `total...`."""
    return isinstance(symbol, str) and symbol.startswith("total")


def of_batch(
    declared: Mapping[str, Sequence[int | str | None]], sizes: Mapping[str, Sequence[int]], state: Collection[str]
) -> frozenset[str]:
    """Return symbols of first axes of inputs, as a mask has one, that are no others' and as long as those of the state.

    They may be of the batch: `torch.export` numbers axes, and gives two one number only where something needs them to be one.
    """
    theirs = {symbol for name in state for symbol in declared.get(name, ()) if isinstance(symbol, str)}
    lengths = {sizes[name][0] for name in state if theirs.intersection(declared.get(name, ())[:1])}
    found = set()
    for name in declared.keys() - set(state):
        first, *more = declared[name] or (None,)
        if isinstance(first, str) and more and not theirs.intersection(declared[name]) and {sizes[name][0]} == lengths:
            found.add(first)
    return frozenset(found)


def kept_region(graph: Graph, name: str, region: ShapeMap) -> ShapeMap:
    """Return the region of a state's output that is `region` of its input; an axis that grows is whole in both."""
    output = graph.state[name]
    growing, whole = _growing(graph, name, output), ShapeMap.full(graph.types[output].known_shape)
    return ShapeMap(tuple(whole.axes[axis] if axis in growing else held for axis, held in enumerate(region.axes)))


def uncut(graph: Graph, name: str, region: ShapeMap) -> ShapeMap:
    """Return the smallest region of a state input that has this one, and is whole along the axis that grows."""
    for axis in _growing(graph, name, graph.state[name]):
        region = region.replace(axis, IntervalSet.of((0, graph.types[name].known_shape[axis])))
    return region


def with_growth(graph: Graph, *others: Graph) -> Graph:
    """Return a graph whose moving axes are those in which it differs from itself when what grows has other lengths.

    Of several lengths one had better be short: what a window keeps of a long state is always as much.

    Raises:
        ModelError: if more than sizes differ: then what the model computes depends on how long its state is.
    """
    moving: dict[str, frozenset[int]] = {}
    for other in others:
        _check_alike(graph, other)
        for name, kind in graph.types.items():
            if kind.shape is not None and (sizes := other.types[name].shape) is not None:
                axes = frozenset(axis for axis, (size, more) in enumerate(zip(kind.shape, sizes, strict=True)) if size != more)
                moving |= {name: axes | moving.get(name, frozenset())} if axes else {}
    return replace(graph, moving=moving)


def _check_alike(graph: Graph, other: Graph) -> None:
    """Check that nothing but sizes differs between two lengths of a state."""
    now, then = ([(n.name, n.op, n.inputs, n.outputs, repr(n.attributes)) for n in each.nodes] for each in (graph, other))
    if now != then:
        raise ModelError(f"model '{graph.name}': its nodes are others when its state is longer or shorter")
    if untold := [name for name, kind in graph.types.items() if (kind.shape is None) != (other.types[name].shape is None)]:
        raise ModelError(f"model '{graph.name}': with some lengths of its state only a run tells the shape of '{untold[0]}'")
    digests, changed = ({name: weight.digest for name, weight in each.weights.items()} for each in (graph, other))
    if unlike := [name for name in digests | changed if digests.get(name) != changed.get(name)]:
        raise ModelError(f"model '{graph.name}': constants are others when its state is longer or shorter: {', '.join(unlike[:3])}")


def _growing(graph: Graph, name: str, output: str) -> list[int]:
    pairs = zip(graph.types[name].known_shape, graph.types[output].known_shape, strict=True)
    return [axis for axis, (before, after) in enumerate(pairs) if before != after]
