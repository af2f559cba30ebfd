"""Partial results: splitting an index that is summed over (or maximised, ...) instead of one of the output (Tofu 4.1, case 2).

A part of a node computes the whole output region from a range of one reduction index; the parts of all ranges, combined with the
node's reducer, are the result. Terms that must count once (a bias) belong to the first part.

The law of partial sums (docs/equations.md): parts are made only where they do no harm.

1. Storing a part loses nothing: sums of 32 or 64 bits. A maximum is one of its elements, whatever its type. A product is too large, or
   nothing, in the middle where it is neither in the end: it has no parts. Nor has a `ReduceSum` or `Einsum` of integers, which onnxruntime
   adds up in 64-bit floats.
2. No jump that counts depends on a sum of floats (`bbgrap.tdl.bit_sensitive`), since it adds up in another order. Integers do not mind, nor
   do sums with zeros: of a table that is divided, one part has what is looked up.
3. Parts of a product of 8-bit integers begin at multiples of 4: x86 without VNNI adds neighbours in 16 bits and saturates, in pairs
   that start with the first element of every call; other processors take four at a time. Parts of a product of few bits begin at whole
   blocks, which share a scale, and at whole bytes of zero points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bbgrap.errors import PlanError
from bbgrap.graph.types import DType, Graph, Node
from bbgrap.shapemap import Interval, ShapeMap
from bbgrap.tdl.analysis import input_regions
from bbgrap.tdl.bit_sensitive import bit_sensitive_nodes
from bbgrap.tdl.language import Description, Expression, Index, Reduce, ReducerKind, ScalarCall
from bbgrap.tdl.rule import LocalNode, LocalOp, Site, site_of, with_empty_literals

WIDE_FLOATS = frozenset({DType.FLOAT, DType.DOUBLE})
WIDE_INTEGERS = frozenset({DType.INT32, DType.UINT32, DType.INT64, DType.UINT64})
COMPARABLE = WIDE_FLOATS | WIDE_INTEGERS | {DType.FLOAT16, DType.INT8, DType.UINT8}
"""Types of which onnxruntime has a `Max` and a `Min` of tensors."""


@dataclass(frozen=True, slots=True)
class Part:
    """A range (half-open) of the reduction index of a given name."""

    index: str
    interval: Interval

    def __str__(self) -> str:
        """Write as `ci 0:32`."""
        return f"{self.index} {self.interval}"


PartialLocalize = Callable[[Site, ShapeMap, tuple[ShapeMap | None, ...], Part], tuple[LocalNode, ...]]


@dataclass(frozen=True, slots=True)
class PartialRule:
    """How a part of a node is computed from the regions that it reads, and whether there may be parts."""

    localize: PartialLocalize
    allows: Callable[[Site], bool] = lambda _: True
    only: str = ""
    """The one index that may be split, of several; else all may."""
    unit: Callable[[Node], int] = lambda _: 1
    """Parts begin at multiples of it."""
    is_exact: bool = False
    """Of all parts, one has each element, and the others zeros: nothing rounds."""


_PARTIAL: dict[tuple[str, str], PartialRule] = {}


def register_partial(rule: PartialRule, *ops: str, domain: str = "") -> None:
    """Enter how operators compute partial results.

    Raises:
        ValueError: if an operator has such a rule already.
    """
    for op in ops:
        if (domain, op) in _PARTIAL:
            raise ValueError(f"operator {domain}:{op} has a rule for partial results already")
        _PARTIAL[domain, op] = rule


def partial_operators() -> tuple[tuple[str, str], ...]:
    """Return (domain, operator) of everything that has partial results, sorted."""
    return tuple(sorted(_PARTIAL))


def reducer_of(description: Description) -> ReducerKind | None:
    """Return how partial results of a node combine, or None if it reduces nothing."""
    found = _outer_reduction(description.body)
    return None if found is None else found.kind


def reducible(graph: Graph, node: Node, description: Description | None) -> tuple[Index, ...]:
    """Return the reduction indices along which a node can be split into partial results, by the law of this module."""
    rule = _PARTIAL.get((node.domain, node.op))
    found = None if description is None else _outer_reduction(description.body)
    stored = graph.types[node.first_output].dtype
    if rule is None or found is None or not ((rule.is_exact and stored in WIDE_FLOATS) or _is_harmless(graph, node, found.kind, stored)):
        return ()
    return tuple(index for index in found.over if rule.only in ("", index.name)) if rule.allows(site_of(graph, node)) else ()


def part_unit(node: Node) -> int:
    """Return the step at which a node's reduction indices can be cut: parts begin at multiples of it."""
    rule = _PARTIAL.get((node.domain, node.op))
    return 1 if rule is None else rule.unit(node)


def _is_harmless(graph: Graph, node: Node, kind: ReducerKind, stored: DType) -> bool:
    match kind:
        case "max" | "min":
            return stored in COMPARABLE
        case "sum":
            return stored in WIDE_INTEGERS or (stored in WIDE_FLOATS and node.name not in bit_sensitive_nodes(graph))
        case "prod":
            return False


def _outer_reduction(body: Expression) -> Reduce | None:
    """Return the reduction whose parts add up to the result: the body itself, or its first argument under a final scalar call."""
    if isinstance(body, ScalarCall) and body.arguments:
        return _outer_reduction(body.arguments[0])
    return body if isinstance(body, Reduce) else None


def localize_part(graph: Graph, node: Node, description: Description, region: ShapeMap, part: Part) -> LocalOp:
    """Return how a machine computes its part of an output region.

    Raises:
        PlanError: if the node cannot be split along that index.
    """
    if part.index not in {index.name for index in reducible(graph, node, description)}:
        raise PlanError(f"node '{node.name}' ({node.op}): it has no partial results along '{part.index}'")
    site = site_of(graph, node)
    reads = input_regions(description, region, site.input_shapes, {part.index: part.interval})
    nodes = _PARTIAL[node.domain, node.op].localize(site, region, reads, part)
    return LocalOp(reads, tuple(with_empty_literals(site, reads, each) for each in nodes))
