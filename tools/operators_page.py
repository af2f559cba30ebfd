"""Write docs/reference/operators.md from the descriptions of a representative node of every operator; takes no arguments.

What splits, what reduces and where neighbours share elements is asked of the descriptions themselves, not written by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bbgrap.graph.divided_experts import OWN_DOMAIN
from bbgrap.graph.types import DType, Graph, Node, TensorType
from bbgrap.graph.weights import make_weight
from bbgrap.shapemap import IntervalSet, ShapeMap
from bbgrap.tdl import Description, describe, described_operators, granularity, input_regions
from bbgrap.tdl.language import Access, Expression, Opaque, Reduce, ScalarCall
from bbgrap.tdl.operators.undescribed import UNDESCRIBED
from bbgrap.tdl.rule import _RULES
from tools.operators_examples import EXAMPLES, Example

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "operators.md"

HEAD = """\
# Operators

Written by `tools/operators_page.py` from the descriptions in `bbgrap/tdl/operators/`; do not edit. Every row is computed from one
representative node (`tools/operators_examples.py`); other shapes and attributes may split less, or more. Axes are those of the output.
Descriptions hold for opsets 13 to 28; older models are converted on entry.

- *splits*: tiles along these axes are computed independently. *whole*: every tile has all of them.
- *reduces*: indices of a sum, maximum, minimum or product inside an element.
- *halo*: along these axes neighbouring tiles read common elements.
- *unit*: cuts along the axis are free of waste at its multiples, and correct anywhere.
- *element*: what one output element is; `i...` are its coordinates, `R`, `S`, `D`, `P` the operator's own parameters.

"""

TITLES = {
    "": "ai.onnx",
    "ai.onnx.ml": "ai.onnx.ml",
    "com.microsoft": "com.microsoft, as onnxruntime's exporters and quantizers write it",
    OWN_DOMAIN: "bbgrap, which no file has: of [second forms](../decisions/0055-divided-experts.md)",
}
"""Of the domains, as onnx calls them."""


@dataclass(frozen=True, slots=True)
class Row:
    """What the page says of an operator."""

    splits: str
    whole: str
    reduces: str
    halo: str
    unit: str
    element: str

    def line(self, operators: list[str]) -> str:
        """Write a table row for operators that share it."""
        return f"| {', '.join(operators)} | {self.splits} | {self.whole} | {self.reduces} | {self.halo} | {self.unit} | {self.element} |"


def described(domain: str, op: str, example: Example) -> tuple[Description, Graph]:
    """Return the description of an example.

    Raises:
        ValueError: if it has none.
    """
    names = tuple("" if shape is None else f"x{k}" for k, shape in enumerate(example.inputs))
    node = Node("node", op, names, ("y",), example.attributes, domain)
    types = {n: TensorType(DType.FLOAT, shape) for n, shape in zip(names, example.inputs, strict=True) if n and shape is not None}
    weights = {f"x{k}": make_weight(f"x{k}", np.array(value)) for k, value in example.constants.items()}
    types |= {name: weight.type for name, weight in weights.items()} | {"y": TensorType(DType.FLOAT, example.output)}
    inputs = tuple(n for n in names if n and n not in weights)
    graph = Graph("example", (node,), inputs, ("y",), weights, types, {"": 26})
    found = describe(graph, node)
    if found is None:
        raise ValueError(f"{domain}:{op}: its example has no description")
    return found, graph


def row_of(domain: str, op: str) -> Row:
    """Ask the description of an operator's example."""
    example = EXAMPLES[domain, op]
    description, graph = described(domain, op, example)
    names = [name for name in example.axes.split() if not name.isdigit()]
    axes = [axis for axis, name in enumerate(example.axes.split()) if not name.isdigit()]
    splits = [(axis, name) for axis, name in zip(axes, names, strict=True) if axis in description.splittable_axes]
    whole = [name for axis, name in zip(axes, names, strict=True) if axis not in description.splittable_axes]
    shapes = [graph.types[name].shape if name else None for name in graph.nodes[0].inputs]
    units = [(granularity(description, axis), name) for axis, name in splits]
    return Row(
        splits=_listed(name for _, name in splits),
        whole=_listed(whole),
        reduces="; ".join(f"{r.kind} over {_listed(i.name for i in r.over)}" for r in reductions_in(description.body)) or "–",
        halo=_listed(name for axis, name in splits if has_halo(description, shapes, axis)),
        unit=_listed(f"{name}: {unit}" for unit, name in units if unit > 1),
        element=_element(domain, op),
    )


def _listed(names: Iterator[str] | list[str]) -> str:
    return ", ".join(dict.fromkeys(names)) or "–"


def reductions_in(expression: Expression) -> Iterator[Reduce]:
    """Yield every reduction of an expression, outermost first."""
    match expression:
        case Reduce(body=body):
            yield expression
            yield from reductions_in(body)
        case ScalarCall(arguments=arguments):
            for argument in arguments:
                yield from reductions_in(argument)
        case Access() | Opaque():
            pass


def has_halo(description: Description, shapes: list[tuple[int, ...] | None], axis: int) -> bool:
    """Tell whether two neighbouring tiles read common elements along an axis of an operand, and each some of its own."""
    unit, extent = granularity(description, axis), description.shape[axis]
    middle = extent // 2 // unit * unit
    tiles = [ShapeMap.full(description.shape).replace(axis, IntervalSet.of(piece)) for piece in ((0, middle), (middle, extent))]
    left, right = (input_regions(description, tile, shapes) for tile in tiles)
    pairs = [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
    return any(len(p.intersect(q)) and p != q for a, b in pairs for p, q in zip(a.axes, b.axes, strict=True))


def _element(domain: str, op: str) -> str:
    describe_function = _RULES[domain, op].describe
    text = getattr(describe_function, "func", describe_function).__doc__ or ""
    return " ".join(text.split("\n\n")[0].split())


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for domain, title in TITLES.items():
        rows: dict[Row, list[str]] = {}
        for place, op in described_operators():
            if place == domain:
                rows.setdefault(row_of(domain, op), []).append(op)
        count = sum(map(len, rows.values()))
        parts.append(f"## {title}: {count} described\n\n| operator | splits | whole | reduces | halo | unit | element |\n")
        parts.append("|---|---|---|---|---|---|---|\n")
        parts += [f"{row.line(operators)}\n" for row, operators in sorted(rows.items(), key=lambda item: item[1])]
        parts.append("\n")
    parts.append("## Whole on one machine\n\n| operators | reason |\n|---|---|\n")
    reasons: dict[str, list[str]] = {}
    for (domain, op), reason in UNDESCRIBED.items():
        reasons.setdefault(reason, []).append(f"{domain}:{op}" if domain else op)
    parts += [f"| {', '.join(sorted(operators))} | {reason} |\n" for reason, operators in sorted(reasons.items(), key=lambda r: r[1])]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
