"""Is a rule true? Numeric, soundness and minimality checks of an operator rule against onnxruntime.

For one node and one region of its output:
- numeric: the local nodes, given exactly the predicted input regions, compute the same elements as the whole operator does;
- soundness: nothing outside the predicted regions matters to the output region;
- minimality: on every axis, both ends of every predicted range matter, except where `Case.loose` documents a hull.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from bbgrap.graph.types import Array, Attribute, DType, Graph, Node, TensorType, Weight
from bbgrap.shapemap import IntervalSet, ShapeMap
from bbgrap.tdl import ConstantOperand, Description, Input, LocalNode, LocalOp, Result, describe, localize, output_regions


@dataclass(frozen=True, eq=False)
class Case:
    """One operator call with data for its operands (None: absent).

    `parameters` are the operands that are constants of the model.
    `exact` asks for equality to the bit: the operator only moves or compares, or the data are small integers, so that no sum rounds.
    `loose` are the (operand, axis) pairs where the predicted region is a documented hull; None: a perturbation need not show.
    `several_ranges` are the output axes along which a tile may have gaps.
    """

    op: str
    operands: tuple[Array | None, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    parameters: frozenset[int] = frozenset()
    opset: int = 18
    exact: bool = True
    loose: frozenset[tuple[int, int]] | None = frozenset()
    several_ranges: frozenset[int] | None = None
    """None: all."""
    domain: str = ""
    version: int = 1
    """Of the domain."""
    position: int = 0
    """Which output of the operator is used, and compared."""
    further: tuple[int, ...] = ()
    """Which outputs behind it are used, and compared, too."""
    below: Mapping[int, int] = field(default_factory=dict)
    """Operands of indices: their values are only changed into others from 0 to below this."""
    definition: tuple[onnx.NodeProto, ...] = ()
    """Of an operator that onnxruntime does not have: nodes that make `y` from `x0`, `x1` ..."""

    def __repr__(self) -> str:
        """Write what is needed to repeat the case by hand."""
        operands = [
            None if a is None else a.tolist() if k in self.parameters else f"{a.dtype}{list(a.shape)}" for k, a in enumerate(self.operands)
        ]
        return f"{self.op}-{self.opset}({operands}, {dict(self.attributes)})"


class Model:
    """Some nodes as a model in onnxruntime, one thread, with some of their outputs."""

    def __init__(
        self,
        nodes: Sequence[onnx.NodeProto],
        feeds: Mapping[str, Array],
        constants: Mapping[str, Array],
        opset: int,
        outputs: Sequence[str],
        version: int = 1,
    ) -> None:
        inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()]
        initializers = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
        graph = helper.make_graph(list(nodes), "g", inputs, [helper.make_empty_tensor_value_info(name) for name in outputs], initializers)
        domains = {node.domain for node in nodes if node.domain}
        imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, version) for domain in sorted(domains))]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        self.session = ort.InferenceSession(model.SerializeToString(), _OPTIONS, ["CPUExecutionProvider"])

    def __call__(self, feeds: Mapping[str, Array]) -> Array:
        """Run the model, and return its first output."""
        return self.all(feeds)[0]

    def all(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Run the model, and return its outputs."""
        return list(self.session.run(None, dict(feeds)))


def _options() -> Any:  # noqa: ANN401 - onnxruntime has no types
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return options


_OPTIONS = _options()


def names(operands: Sequence[object | None]) -> list[str]:
    """Name the present operands x0, x1, ...; absent ones have the empty name."""
    return ["" if operand is None else f"x{k}" for k, operand in enumerate(operands)]


def attributes_of(attributes: Mapping[str, Attribute]) -> dict[str, Any]:
    """Return attributes as onnx's helper takes them."""

    def taken(value: Attribute) -> object:
        return list(value) if isinstance(value, tuple) else numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value

    return {name: taken(value) for name, value in attributes.items()}


def node_proto(
    op: str, inputs: Sequence[str], outputs: Mapping[int, str], attributes: Mapping[str, Attribute], domain: str = ""
) -> onnx.NodeProto:
    """Return one node, of whose outputs those at some positions are used."""
    made = [outputs.get(place, "") for place in range(max(outputs) + 1)]
    return helper.make_node(op, list(inputs), made, domain=domain, **attributes_of(attributes))


class Whole:
    """The operator as it is: its description, and a model to compare with."""

    def __init__(self, case: Case) -> None:
        self.case = case
        named = {n: a for n, a in zip(names(case.operands), case.operands, strict=True) if a is not None}
        constants = {n: a for n, a in named.items() if int(n[1:]) in case.parameters}
        self.feeds = {n: a for n, a in named.items() if n not in constants}
        outputs = outputs_of(case)
        proto = node_proto(case.op, names(case.operands), outputs, case.attributes, case.domain)
        self.model = Model(case.definition or [proto], self.feeds, constants, case.opset, tuple(outputs.values()), case.version)
        self.outputs = self.model.all(self.feeds)
        self.output = self.outputs[0]
        self.node = Node("node", case.op, tuple(names(case.operands)), tuple(proto.output), case.attributes, case.domain)
        self.graph = Graph(
            name="g",
            nodes=(self.node,),
            inputs=tuple(self.feeds),
            outputs=tuple(outputs.values()),
            weights={n: Weight(n, _type_of(a), "", a) for n, a in constants.items()},
            types={n: _type_of(a) for n, a in (*named.items(), *zip(outputs.values(), self.outputs, strict=True))},
            opsets={"": case.opset},
        )

    def describe(self) -> Description:
        """Return the description of a node that must have one."""
        description = describe(self.graph, self.node)
        assert description is not None, f"{self.case} is not described"
        assert description.shape == self.output.shape
        return description

    def localize(self, region: ShapeMap) -> LocalOp:
        """Return the local form for a region."""
        return localize(self.graph, self.node, self.describe(), region)


def outputs_of(case: Case) -> dict[int, str]:
    """Name the outputs that a case uses, by their places."""
    return {place: "y" if place == case.position else f"y{place}" for place in (case.position, *case.further)}


def _type_of(array: Array) -> TensorType:
    return TensorType(DType.of(array.dtype), array.shape)


def take(array: Array, region: ShapeMap) -> Array:
    """Return the dense local tensor of a region."""
    return array[np.ix_(*(np.array(list(axis), np.int64) for axis in region.axes))] if region.rank else array


def run_local(case: Case, local: LocalOp) -> list[Array]:
    """Compute a local piece, all of its outputs in use, from nothing but the regions it says it reads."""
    feeds: dict[str, Array] = {}
    constants: dict[str, Array] = {}
    protos = []
    used = outputs_of(case)
    further = {place: used[place] for place in case.further}
    last = len(local.nodes) - 1
    making = next((number for number, node in enumerate(local.nodes) if node.makes_further), last)
    for number, node in enumerate(local.nodes):
        inputs = []
        for position, operand in enumerate(node.operands):
            match operand:
                case Input(k):
                    read, array = local.reads[k], case.operands[k]
                    assert read is not None
                    assert array is not None
                    inputs.append(f"x{k}")
                    (constants if k in case.parameters else feeds)[f"x{k}"] = take(array, read)
                case ConstantOperand(array):
                    inputs.append(f"c{number}.{position}")
                    constants[inputs[-1]] = array
                case Result(k):
                    inputs.append(f"r{k}")
                case None:
                    inputs.append("")
        outputs = {case.position: "y"} if number == last else {0: f"r{number}"}
        protos.append(node_proto(node.op, inputs, outputs | (further if number == making else {}), node.attributes, node.domain))
    return Model(protos, feeds, constants, case.opset, tuple(used.values()), case.version).all(feeds)


def check(whole: Whole, region: ShapeMap, seed: int = 0) -> None:
    """Check one region in all three ways."""
    local = whole.localize(region)
    check_numeric(whole, region, local)
    check_soundness(whole, region, local, np.random.default_rng(seed))
    if whole.case.loose is not None:
        check_minimality(whole, region, local)


def check_numeric(whole: Whole, region: ShapeMap, local: LocalOp) -> None:
    """The local nodes compute the region, and those of further outputs that are made with it."""
    regions = output_regions(whole.describe(), region, [array.shape for array in whole.outputs])
    for array, part, got in zip(whole.outputs, regions, run_local(whole.case, local), strict=True):
        expected = take(array, part)
        assert got.dtype == expected.dtype, f"expected {expected.dtype}, got {got.dtype}"
        assert got.shape == expected.shape, f"expected the shape {expected.shape}, got {got.shape}"
        if whole.case.exact:
            np.testing.assert_array_equal(got, expected)
        else:
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def check_soundness(whole: Whole, region: ShapeMap, local: LocalOp, random: np.random.Generator) -> None:
    """Other values outside what is read change nothing."""
    changed = {}
    for name, array in whole.feeds.items():
        read = local.reads[int(name[1:])]
        other = next(_others(random.permutation(array.ravel()).reshape(array.shape), whole.case.below.get(int(name[1:]))))
        if read is not None and not read.is_empty:
            place = np.ix_(*(list(axis) for axis in read.axes)) if read.rank else ()
            other[place] = array[place]
        changed[name] = other
    expected, got = take(whole.output, region), take(whole.model(changed), region)
    if whole.case.exact:
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def check_minimality(whole: Whole, region: ShapeMap, local: LocalOp) -> None:
    """Both ends of every predicted range matter, on every axis that is no documented hull."""
    loose = whole.case.loose or frozenset()
    for name in whole.feeds:
        operand = int(name[1:])
        read = local.reads[operand]
        if read is None or read.is_empty:
            continue
        if any(number == operand for number, _ in loose) and not _matters(whole, name, region, read):
            continue  # a hull of nothing but gaps
        for axis, end in [(a, e) for a, s in enumerate(read.axes) for r in s.ranges for e in (r.start, r.stop - 1)]:
            if (operand, axis) not in loose:
                shown = _matters(whole, name, region, read.replace(axis, IntervalSet.of((end, end + 1))))
                assert shown, f"operand {operand}: index {end} of axis {axis} in {read} does not matter to {region}"


def _matters(whole: Whole, name: str, region: ShapeMap, part: ShapeMap) -> bool:
    """Tell whether other values in a part of an operand show in a region of the output."""
    before, array = take(whole.output, region), whole.feeds[name]
    place = np.ix_(*(list(axis) for axis in part.axes)) if part.rank else ()
    for other in _others(array, whole.case.below.get(int(name[1:]))):
        changed = array.copy()
        changed[place] = other[place]
        after = take(whole.model({**whole.feeds, name: changed}), region)
        if not np.array_equal(before, after, equal_nan=before.dtype.kind == "f"):
            return True
    return False


def _others(array: Array, below: int | None) -> Iterator[Array]:
    """Yield arrays that differ from the given one in every element (all indices below 1 are equal)."""
    if below is not None:
        yield from (np.asarray((array + shift) % below).astype(array.dtype) for shift in range(1, max(2, below)))
    elif array.dtype.kind == "O":
        yield np.asarray(array + "x")
    elif array.dtype.kind == "b":
        yield np.asarray(~array)
    elif array.dtype.kind == "f":
        yield from (np.asarray(array + shift).astype(array.dtype) for shift in (1, 1000, -1000, np.inf, np.nan))
    else:
        yield from (np.asarray(array + shift).astype(array.dtype) for shift in (1, 100))


def local_pads(local: LocalOp) -> tuple[int, ...]:
    """Return the pads of a piece that is one windowed node."""
    (node,) = local.nodes
    return pads_of(node)


def pads_of(node: LocalNode) -> tuple[int, ...]:
    """Return the `pads` of a local node."""
    pads = node.attributes["pads"]
    assert isinstance(pads, tuple)
    return tuple(int(p) for p in pads if isinstance(p, int))
