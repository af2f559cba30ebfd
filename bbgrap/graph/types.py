"""The model as planning sees it: a frozen graph of nodes, values and weights; no protobuf.

Laws: nodes are in topological order; every value name is a graph input, a weight or the output of exactly one node;
`types` knows every one of them; shapes are concrete (a model with free dimensions becomes one `Graph` per concrete input shape).
A value whose shape is only known when the model runs (`NonZero`) has `shape=None`; it is moved whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bbgrap.errors import ModelError

Array = NDArray[Any]


class DType(Enum):
    """Element types, by the code ONNX gives them (`TensorProto.DataType`)."""

    FLOAT = 1
    UINT8 = 2
    INT8 = 3
    UINT16 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    STRING = 8
    BOOL = 9
    FLOAT16 = 10
    DOUBLE = 11
    UINT32 = 12
    UINT64 = 13
    COMPLEX64 = 14
    COMPLEX128 = 15
    BFLOAT16 = 16
    OTHER = 0
    """Anything without a numpy counterpart of its own (float8, int4, sequences, optionals, maps): never split; it travels packed."""

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype of the same name.

        Raises:
            ModelError: for a type that numpy does not have.
        """
        try:
            return _NUMPY[self]
        except KeyError:
            raise ModelError(f"element type {self.name}: it has no numpy counterpart, so it cannot leave its machine") from None

    @property
    def itemsize(self) -> int:
        """Bytes per element; 0 where elements have no fixed size."""
        return _ITEMSIZE.get(self, 0)

    @classmethod
    def of(cls, dtype: np.dtype[Any]) -> DType:
        """Return the element type of a numpy dtype (any string dtype is `STRING`)."""
        if dtype.kind in "OUST":
            return cls.STRING
        return _FROM_NUMPY.get(dtype.newbyteorder("="), cls.OTHER)


_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.FLOAT: np.dtype(np.float32),
    DType.UINT8: np.dtype(np.uint8),
    DType.INT8: np.dtype(np.int8),
    DType.UINT16: np.dtype(np.uint16),
    DType.INT16: np.dtype(np.int16),
    DType.INT32: np.dtype(np.int32),
    DType.INT64: np.dtype(np.int64),
    DType.STRING: np.dtype(object),
    DType.BOOL: np.dtype(np.bool_),
    DType.FLOAT16: np.dtype(np.float16),
    DType.DOUBLE: np.dtype(np.float64),
    DType.UINT32: np.dtype(np.uint32),
    DType.UINT64: np.dtype(np.uint64),
    DType.COMPLEX64: np.dtype(np.complex64),
    DType.COMPLEX128: np.dtype(np.complex128),
}
_ITEMSIZE: dict[DType, int] = {code: dtype.itemsize for code, dtype in _NUMPY.items() if code is not DType.STRING}
_ITEMSIZE[DType.BFLOAT16] = 2
STORABLE = frozenset(_NUMPY)
"""Element types that numpy arrays hold: only these can be weights of ours or cross machines."""

_FROM_NUMPY = {dtype: code for code, dtype in _NUMPY.items()}


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and concrete shape of a value; `shape=None` where only the run will tell.

    A value that no numpy array holds is `DType.OTHER` without a shape; `onnx` is its ONNX type (a serialized `TypeProto`), if it is known.
    """

    dtype: DType
    shape: tuple[int, ...] | None
    onnx: bytes = b""

    @property
    def known_shape(self) -> tuple[int, ...]:
        """The shape of a value that has one.

        Raises:
            ModelError: if the shape is not known before the run.
        """
        if self.shape is None:
            raise ModelError("value: its shape is only known when the model runs")
        return self.shape

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor; 0 where the shape is unknown."""
        return 0 if self.shape is None else prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        """Write as `float[1, 64, 56, 56]`."""
        shape = "?" if self.shape is None else ", ".join(map(str, self.shape))
        return f"{self.dtype.name.lower()}[{shape}]"


@dataclass(frozen=True, slots=True)
class Subgraph:
    """The body of a control-flow node: kept as the bytes of its `GraphProto`, never looked into.

    `captured` are the outer values that the body reads; they count as further inputs of the node.
    """

    serialized: bytes
    captured: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LongList:
    """An attribute that is a list of many numbers, as an array [K] of int64 or float32: in a tuple each takes 36 bytes.

    Two are equal if they have the same type and numbers.
    """

    array: Array

    def __len__(self) -> int:
        """How many numbers there are."""
        return len(self.array)

    def __eq__(self, other: object) -> bool:
        """Compare types and numbers, bit by bit."""
        return isinstance(other, LongList) and self.array.dtype == other.array.dtype and self.array.tobytes() == other.array.tobytes()

    def __hash__(self) -> int:
        """Agree with equality."""
        return hash(self.array.tobytes())


LONG = 4096
"""From so many numbers on a list is a `LongList`."""

Attribute = (
    int | float | str | bytes | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | Subgraph | tuple[Subgraph, ...] | Array | LongList
)
"""An attribute's value; a tensor attribute is a numpy array, a string attribute is `str` where it decodes and `bytes` where not."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operator call.

    Invariants: `name` is unique in its graph; an absent optional input or output is the empty name; trailing ones are cut off.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    domain: str = ""

    @property
    def first_output(self) -> str:
        """The first output that is present: the one that tiles speak of, and along whose axes directions carry on."""
        return next(name for name in self.outputs if name)

    @property
    def captured(self) -> tuple[str, ...]:
        """Outer values that the node's subgraphs read, in a fixed order, without repeats."""
        # The members of a tuple are of one type, and trees have tuples of millions of numbers.
        values = [value if isinstance(value, tuple) else (value,) for value in self.attributes.values()]
        bodies = [body for value in values if value and isinstance(value[0], Subgraph) for body in value]
        return tuple(dict.fromkeys(name for body in bodies if isinstance(body, Subgraph) for name in body.captured))

    @property
    def reads(self) -> tuple[str, ...]:
        """Every value the node reads, each once: its present inputs, then what its subgraphs capture."""
        return tuple(dict.fromkeys(name for name in (*self.inputs, *self.captured) if name))


@dataclass(frozen=True, slots=True)
class Weight:
    """A constant of the model, by reference.

    `digest` is the SHA-256 (hex) of element type, shape and little-endian bytes: equal content, equal digest, whatever its name.
    `array` is read-only, may be memory-mapped, and is not compared.
    """

    name: str
    type: TensorType
    digest: str
    array: Array = field(compare=False, repr=False)


@dataclass(frozen=True)
class Graph:
    """A model with concrete shapes.

    Invariants: checked by `check_graph`; see the laws of this module.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    """Values given by the caller, in order; weights are not among them."""
    outputs: tuple[str, ...]
    """Values returned to the caller, in order; may name a node's output, an input or a weight."""
    weights: Mapping[str, Weight]
    types: Mapping[str, TensorType]
    """Of every value: inputs, weights and all node outputs."""
    opsets: Mapping[str, int]
    """Domain ('' is ai.onnx) to version."""
    ir_version: int = 8
    hides_sizes: bool = False
    """Whether onnxruntime refuses the bodies of its control flow when it is told the sizes of inputs: then models with bodies do not
    declare them."""
    moving: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Of values, the axes whose size follows from a free dimension of the model's inputs: other shapes of these have others."""
    state: Mapping[str, str] = field(default_factory=dict)
    """Inputs that are outputs of the request before (`bbgrap.graph.state`), and which ones: they stay where they are computed. One that
    is listed as itself stays as the first request of a sequence had it."""
    ranks: Mapping[str, int] = field(default_factory=dict)
    """Of values without a shape, how many axes they have, where onnxruntime tells."""

    @cached_property
    def given(self) -> tuple[str, ...]:
        """Inputs that come with every request, in order: all but state."""
        return tuple(name for name in self.inputs if name not in self.state)

    @cached_property
    def answered(self) -> tuple[str, ...]:
        """Outputs that go back to the caller, in order: all but state."""
        kept = set(self.state.values())
        return tuple(name for name in self.outputs if name not in kept)

    @cached_property
    def node_by_name(self) -> Mapping[str, Node]:
        """Nodes by their unique names."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """The node that computes each value; inputs and weights have none."""
        return {output: node for node in self.nodes for output in node.outputs if output}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes that read each value, in topological order; a node once even if it reads the value twice."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.reads:
                found.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    def constant(self, name: str) -> Array | None:
        """Return the content of a weight, or None if the value is not a weight."""
        weight = self.weights.get(name)
        return None if weight is None else weight.array


def check_graph(graph: Graph) -> tuple[str, ...]:
    """List every way in which a graph breaks the laws of this module; empty if it keeps them.

    Checked: unique node names; each value defined once and before it is read; outputs defined; a type for every value;
    weights whose arrays have their type.
    """
    faults: list[str] = []
    defined = set(graph.inputs) | set(graph.weights)
    names: set[str] = set()
    for node in graph.nodes:
        if node.name in names:
            faults.append(f"node '{node.name}': the name is used twice")
        names.add(node.name)
        faults += [f"node '{node.name}': reads '{name}', which nothing before it defines" for name in node.reads if name not in defined]
        for output in node.outputs:
            if output and output in defined:
                faults.append(f"node '{node.name}': defines '{output}' a second time")
            defined.add(output)
    faults += [f"graph output '{name}': nothing defines it" for name in graph.outputs if name not in defined]
    faults += [f"value '{name}': it has no type" for name in sorted(defined - {""}) if name not in graph.types]
    faults += [
        f"weight '{w.name}': its type says {w.type}, its array is {w.array.dtype} {w.array.shape}"
        for w in graph.weights.values()
        if w.type.shape != w.array.shape
    ]
    return tuple(faults)
