"""One model for many input shapes: read, folded and hashed once; another shape takes a tenth of the time that the first one took.

    file -> folded with free dimensions (once) -> concrete shapes -> what follows of them folded, weights left out -> Graph

The first shape goes the same way as those that follow, so that their graphs have the same nodes wherever sizes make no difference: with
sizes told from the beginning, onnxruntime makes other nodes of some models, and gives other names to those it adds.

Law: the graph is one that `bbgrap.engine.load.load_graph` might have returned: the same function, with onnxruntime's types.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from dataclasses import replace
from functools import cached_property
from graphlib import TopologicalSorter
from heapq import heappop, heappush
from pathlib import Path

import onnxruntime as ort

from bbgrap.engine.free_sizes import sizes_of_free
from bbgrap.engine.load import folded, load_graph, loads_again
from bbgrap.engine.optimizing import optimized
from bbgrap.engine.sessions import JOINS_AXES
from bbgrap.engine.true_types import typed_graph
from bbgrap.errors import ModelError
from bbgrap.graph.onnx_fixed import with_fixed_sizes
from bbgrap.graph.onnx_free import Sizes, has_free_inputs, moving_axes
from bbgrap.graph.onnx_io import OnnxModel, as_model_error, read_model, weights_of, with_input_shapes
from bbgrap.graph.onnx_shapes import with_inputs_as_weights, with_open_axes, with_weights_as_inputs, without_weights
from bbgrap.graph.types import Graph, Node, Weight

MOST_ROUNDS = 8
"""In which fixed sizes are found, beside the first. Chosen: the slices of rotated halves, in a slice of a head, take one."""

_log = logging.getLogger("bbgrap.engine")


class ReloadedModel:
    """A model that is loaded for one shape after the other; the nodes of all graphs are in one order, as far as they are the same."""

    def __init__(self, path: Path, state: Container[str] = ()) -> None:
        """Read a file, which may be elsewhere later; weights that may be overridden are inputs if they are `state`."""
        self._model = without_weights(read_model(path), state)
        self._kept: tuple[OnnxModel, Mapping[str, Weight]] | None = None

    @property
    def declared(self) -> Mapping[str, tuple[int | str | None, ...]]:
        """The inputs whose rank is declared, with the sizes and symbols of their axes."""
        return {item.name: tuple(item.shape) for item in self._model.inputs if item.shape is not None}

    def graph(self, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
        """Load the model, whose file is there now, for concrete input shapes; raises what `load_graph` raises."""
        overrides = shapes.keys() - {item.name for item in self._model.inputs}  # weights that are inputs this time
        if overrides or not has_free_inputs(self._model):
            return load_graph(path, shapes)
        try:
            with as_model_error(f"model '{path}'"):
                return self._with_sizes(shapes)
        except ModelError as error:
            _log.info("loaded from its file: %s", error)
            return load_graph(path, shapes)

    def open_graph(self, shapes: Mapping[str, tuple[int, ...]], open_axes: Mapping[str, frozenset[int]]) -> Graph:
        """Load the model for concrete input shapes, and fold nothing that follows from the sizes of `open_axes`, of inputs by name.

        Raises:
            ModelError: if it cannot be represented.
            InputError: if the shapes do not fit the model's inputs.
        """
        with as_model_error(f"model '{self._model.name}'"):
            model, weights = self._folded(shapes)
            given = with_open_axes(with_input_shapes(model, shapes), self.declared, open_axes)
            small = _small_with_fixed_sizes(given)
            return typed_graph(with_input_shapes(with_inputs_as_weights(small, given), shapes), known=weights)

    def _with_sizes(self, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
        model, weights = self._folded(shapes)
        given = with_input_shapes(model, shapes)
        graph = typed_graph(with_inputs_as_weights(_small(given, JOINS_AXES), given), known=weights)
        return replace(graph, nodes=_in_order(graph, model.places), moving=moving_axes(self._sizes, graph))

    def _folded(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[OnnxModel, Mapping[str, Weight]]:
        """Return the model with free dimensions, folded once, and its large weights; `shapes` are to try it with."""
        if self._kept is None:
            model = folded(self._model, shapes)
            self._kept = model, {name: weight for name, weight in weights_of(model).items() if name in model.weights}
        return self._kept

    @cached_property
    def _sizes(self) -> Sizes:
        return sizes_of_free(self._model)  # as `load_graph` asks it: equal segments of the first shape and of others are to be found equal


def _small(given: OnnxModel, *without: str) -> OnnxModel:
    """Return what onnxruntime makes of a model with concrete input shapes, its large weights left out.

    Raises:
        ModelError: if onnxruntime does not take what it has made.
    """
    made = optimized(with_weights_as_inputs(given), {}, ort.GraphOptimizationLevel.ORT_ENABLE_BASIC, given.name, without)
    if not loads_again(made):
        raise ModelError(f"model '{given.name}': onnxruntime refuses what it has made of it for these shapes")
    return made


def _small_with_fixed_sizes(given: OnnxModel) -> OnnxModel:
    """Return what `_small` makes of a model with open axes, and of the sizes that these leave as they are; from some others follow."""
    small = _small(with_fixed_sizes(given))
    for _ in range(MOST_ROUNDS):
        further = with_fixed_sizes(small)
        if further is small:
            break
        small = _small(further)
    return small


def _in_order(graph: Graph, order: Mapping[str, int]) -> tuple[Node, ...]:
    """Return the nodes of a graph in an order of names, as far as that is a topological one."""
    waits = {node.name: {graph.producers[name].name for name in node.reads if name in graph.producers} for node in graph.nodes}
    places = {node.name: order.get(node.name, len(order) + place) for place, node in enumerate(graph.nodes)}
    sorter = TopologicalSorter(waits)
    sorter.prepare()
    ready: list[tuple[int, str]] = []
    made = []
    while sorter:
        for name in sorter.get_ready():
            heappush(ready, (places[name], name))
        _, name = heappop(ready)
        made.append(graph.node_by_name[name])
        sorter.done(name)
    return tuple(made)
