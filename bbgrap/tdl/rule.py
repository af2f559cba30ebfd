"""Operator rules: a description for every operator, and how a node changes when only a piece of it is computed.

A rule is two functions: `describe` says what an output element reads (everything else about splitting follows from that), `localize`
says which small ONNX nodes compute an output region from exactly the input regions that `input_regions` predicts. Most operators keep
their node as it is; windowed ones change their pads, `Reshape` its target, `Slice` its bounds.
An operator without a rule, or whose `describe` returns None, runs whole on one machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bbgrap.errors import PlanError
from bbgrap.graph.lower import RECURRENT
from bbgrap.graph.types import Array, Attribute, DType, Graph, Node, TensorType
from bbgrap.shapemap import ShapeMap
from bbgrap.tdl.analysis import input_regions
from bbgrap.tdl.bit_sensitive import bit_sensitive_nodes
from bbgrap.tdl.language import Description

MINIMUM_OPSET = 13
"""Descriptions speak of operators as of this opset; older models are converted on entry, and what cannot be converted runs whole."""


_IMMOVABLE = (DType.OTHER, DType.BFLOAT16)
"""Types without a numpy counterpart: pieces of them could not be sent."""


@dataclass(frozen=True, slots=True)
class Site:
    """A node in its place: types of what it reads and writes, and the content of operands that are constants.

    All tuples follow `node.inputs` (None: absent) and `node.outputs`.
    """

    node: Node
    inputs: tuple[TensorType | None, ...]
    outputs: tuple[TensorType, ...]
    constants: tuple[Array | None, ...]
    free: tuple[frozenset[int], ...] = ()
    """Per operand: axes whose sizes differ between shapes of the model's inputs. Pieces had better not tell such a size."""
    free_made: frozenset[int] = frozenset()
    """The same of the first output."""
    has_state: bool = False
    """Whether these sizes differ between requests, too."""
    keeps_bits: bool = False
    """Whether the last bits of what it makes may decide an answer (`bit_sensitive`)."""

    @property
    def moving(self) -> tuple[frozenset[int], ...]:
        """Per operand: axes whose sizes differ between requests. Pieces must not tell such a size."""
        return self.free if self.has_state else tuple(frozenset() for _ in self.free)

    @property
    def moving_made(self) -> frozenset[int]:
        """The same of the first output."""
        return self.free_made if self.has_state else frozenset()

    @property
    def input_shapes(self) -> tuple[tuple[int, ...] | None, ...]:
        """Shapes of the operands; None for an absent one or one whose shape is unknown."""
        return tuple(None if t is None else t.shape for t in self.inputs)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the first output."""
        return self.outputs[0].known_shape

    def has(self, operand: int) -> bool:
        """Tell whether an operand is present."""
        return operand < len(self.inputs) and self.inputs[operand] is not None

    def shape(self, operand: int) -> tuple[int, ...]:
        """Return the shape of a present operand."""
        kind = self.inputs[operand]
        if kind is None:
            raise PlanError(f"node '{self.node.name}' ({self.node.op}): operand {operand} is absent")
        return kind.known_shape

    def constant(self, operand: int) -> Array | None:
        """Return the content of an operand that is a constant, else None."""
        return self.constants[operand] if operand < len(self.constants) else None

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        value = self.node.attributes.get(name, default)
        if not isinstance(value, int):
            raise PlanError(f"node '{self.node.name}' ({self.node.op}): attribute '{name}' is no integer: {value!r}")
        return value

    def text(self, name: str, default: str) -> str:
        """Return a string attribute."""
        value = self.node.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def integers(self, name: str, default: Sequence[int]) -> tuple[int, ...]:
        """Return a list-of-integers attribute."""
        value = self.node.attributes.get(name, tuple(default))
        if not isinstance(value, tuple):
            raise PlanError(f"node '{self.node.name}' ({self.node.op}): attribute '{name}' is no list: {value!r}")
        return tuple(int(v) for v in value if isinstance(v, int))


@dataclass(frozen=True, slots=True)
class Input:
    """The local piece of operand number `operand`."""

    operand: int


@dataclass(frozen=True, slots=True, eq=False)
class ConstantOperand:
    """A constant that the local piece needs, e.g. a new target shape."""

    array: Array


@dataclass(frozen=True, slots=True)
class Result:
    """The output of an earlier node of the same `LocalOp`."""

    node: int


LocalOperand = Input | ConstantOperand | Result | None


@dataclass(frozen=True, slots=True)
class LocalNode:
    """One ONNX node of a local piece."""

    op: str
    operands: tuple[LocalOperand, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    domain: str = ""
    makes_further: bool = False
    """Its further outputs are those of the whole node; where no node of a piece says so, the last one's are."""


@dataclass(frozen=True, slots=True)
class LocalOp:
    """How one machine computes its piece of a node.

    `reads` gives, per operand of the node, the global region its local piece covers (None: not read as data).
    The first output of the last node is the node's; so are its further ones, unless a node before makes them.
    """

    reads: tuple[ShapeMap | None, ...]
    nodes: tuple[LocalNode, ...]


Describe = Callable[[Site], Description | None]
Localize = Callable[[Site, ShapeMap, tuple[ShapeMap | None, ...]], tuple[LocalNode, ...]]


def same_node(site: Site, region: ShapeMap, reads: tuple[ShapeMap | None, ...]) -> tuple[LocalNode, ...]:
    """Keep the node as it is: right wherever no attribute or parameter speaks of extents or borders."""
    return (LocalNode(site.node.op, operands_of(site, reads), site.node.attributes, site.node.domain),)


def operands_of(site: Site, reads: tuple[ShapeMap | None, ...]) -> tuple[LocalOperand, ...]:
    """Return the node's own operands: local pieces where they are read by region, whole constants elsewhere, None where absent."""
    return tuple(None if kind is None else Input(i) if reads[i] is not None else _parameter(site, i) for i, kind in enumerate(site.inputs))


def _parameter(site: Site, operand: int) -> ConstantOperand:
    array = site.constant(operand)
    if array is None:
        raise PlanError(f"node '{site.node.name}' ({site.node.op}): parameter {operand} is no constant")
    return ConstantOperand(array)


@dataclass(frozen=True, slots=True)
class OperatorRule:
    """How one operator is described and localized."""

    describe: Describe
    localize: Localize = same_node


_RULES: dict[tuple[str, str], OperatorRule] = {}


def register(rule: OperatorRule, *ops: str, domain: str = "") -> None:
    """Enter a rule for operators.

    Raises:
        ValueError: if an operator has a rule already.
    """
    for op in ops:
        if (domain, op) in _RULES:
            raise ValueError(f"operator {domain}:{op} has a rule already")
        _RULES[domain, op] = rule


def described_operators() -> tuple[tuple[str, str], ...]:
    """Return (domain, operator) of every rule, sorted."""
    return tuple(sorted(_RULES))


def site_of(graph: Graph, node: Node) -> Site:
    """Return a node of a graph with its types and constants."""
    return Site(
        node,
        tuple(graph.types[name] if name else None for name in node.inputs),
        tuple(graph.types[name] for name in node.outputs if name),
        tuple(graph.constant(name) if name else None for name in node.inputs),
        tuple(graph.moving.get(name, frozenset()) for name in node.inputs),
        next((graph.moving.get(name, frozenset()) for name in node.outputs if name), frozenset()),
        bool(graph.state),
        node.name in bit_sensitive_nodes(graph),
    )


def describe(graph: Graph, node: Node) -> Description | None:
    """Return the description of a node, or None if it has none and must run whole on one machine.

    None for: no rule; an opset below 13; a tensor of unknown shape or of a type that cannot leave its machine; more outputs in use than
    the description speaks of, or not the first one, but of a recurrent layer; control flow; an empty tensor.
    """
    rule = _RULES.get((node.domain, node.op))
    if rule is None or graph.opsets.get("", 0) < MINIMUM_OPSET or node.captured:
        return None
    if not node.outputs[0] and node.op not in RECURRENT:
        return None
    site = site_of(graph, node)
    types = [t for t in (*site.inputs, *site.outputs) if t is not None]
    if any(t.shape is None or t.dtype in _IMMOVABLE for t in types):
        return None
    if any(0 in (t.shape or ()) for t in site.outputs):
        return None
    description = rule.describe(site)
    return description if description is not None and len(site.outputs) <= 1 + len(description.extra) else None


def localize(graph: Graph, node: Node, description: Description | None, region: ShapeMap) -> LocalOp:
    """Return how a machine computes `region` (global, of the first output) of a node; without a description, the node as it is.

    Raises:
        PlanError: if the region cuts an axis that the operator cannot split.
    """
    if description is None:
        reads = tuple(ShapeMap.full(graph.types[name].shape or ()) if name else None for name in node.inputs)
        operands = tuple(Input(i) if name else None for i, name in enumerate(node.inputs))
        return LocalOp(reads, (LocalNode(node.op, operands, node.attributes, node.domain),))
    site = site_of(graph, node)
    if cut := _cut_whole_axes(description, region):
        raise PlanError(f"node '{node.name}' ({node.op}): axis {cut[0]} of its output cannot be split, but the tile is {region}")
    found = input_regions(description, region, site.input_shapes)
    nodes = _RULES[node.domain, node.op].localize(site, region, found)
    return LocalOp(found, tuple(with_empty_literals(site, found, n) for n in nodes))


def can_make(graph: Graph, node: Node, description: Description | None, region: ShapeMap) -> bool:
    """Tell whether one machine can compute a region of a node's output by one local piece.

    It cannot where the region cuts an axis that does not split, nor where it has several ranges of an axis along which the operator
    slides, counts or pads: such a piece would not be dense (`several_ranges` in the tests of every rule).
    """
    if description is None:
        return region == ShapeMap.full(graph.types[node.first_output].shape or ())
    if _cut_whole_axes(description, region):
        return False
    if all(len(axis.ranges) < 2 for axis in region.axes):
        return True
    try:
        localize(graph, node, description, region)
    except PlanError:
        return False
    return True


def _cut_whole_axes(description: Description, region: ShapeMap) -> list[int]:
    """Return the axes that a region cuts though they do not split."""
    pairs = enumerate(zip(region.shape, description.shape, strict=True))
    return [axis for axis, (piece, extent) in pairs if piece != extent and axis not in description.splittable_axes]


def with_empty_literals(site: Site, reads: tuple[ShapeMap | None, ...], node: LocalNode) -> LocalNode:
    """Replace operands of which nothing is read (a piece wholly inside padding) by empty constants: nobody has to send them."""

    def operand(o: LocalOperand) -> LocalOperand:
        if isinstance(o, Input) and (read := reads[o.operand]) is not None and read.is_empty:
            kind = site.inputs[o.operand]
            assert kind is not None, "an operand that is read is present"
            return ConstantOperand(np.empty(read.shape, kind.dtype.numpy))
        return o

    return replace(node, operands=tuple(operand(o) for o in node.operands))
