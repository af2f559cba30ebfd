"""What a model takes and gives, and whether a feed fits it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any

import numpy as np

from bbgrap.errors import InputError
from bbgrap.graph.onnx_read import ModelInput, OnnxModel, declared_shape
from bbgrap.graph.onnx_types import TensorOf, kind_of, text_of
from bbgrap.graph.types import Array, DType
from bbgrap.session.ort_errors import as_also
from bbgrap.session.values import packed_input

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output, with the attributes onnxruntime gives it; `shape` holds numbers, symbols and None.

    What no array holds has `DType.OTHER`, and its ONNX type in `onnx`.
    """

    name: str
    dtype: DType
    shape: list[int | str | None]
    has_rank: bool
    onnx: bytes = b""

    @property
    def type(self) -> str:
        """The type as onnxruntime writes it: `tensor(float)`, `seq(tensor(int64))`."""
        return text_of(self.onnx) if self.dtype is DType.OTHER else f"tensor({self.dtype.name.lower()})"

    @property
    def is_packed(self) -> bool:
        """Whether it travels packed, as one array of bytes."""
        return self.dtype is DType.OTHER and bool(self.onnx)

    @property
    def code(self) -> int | None:
        """ONNX's code of numbers that numpy lacks, as bfloat16; None of all others, and of what is no tensor."""
        kind = kind_of(self.onnx) if self.is_packed else None
        return kind.code if isinstance(kind, TensorOf) else None

    @classmethod
    def of(cls, declared: ModelInput) -> NodeArg:
        """Make one of what the file declares."""
        shape = declared_shape(declared)
        return cls(declared.name, declared.dtype, list(shape or ()), shape is not None, declared.onnx)

    def __str__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"

    @property
    def declared(self) -> str:
        """The type and shape as our messages write them: `float[N, 3]`."""
        if self.is_packed:
            return self.type
        dims = ", ".join("?" if dim is None else str(dim) for dim in self.shape) if self.has_rank else "..."
        return f"{self.dtype.name.lower()}[{dims}]"

    @property
    def example(self) -> str:
        """What makes an array that fits, in Python; sizes that are free are 1."""
        shape = tuple(dim if isinstance(dim, int) else 1 for dim in self.shape)
        kind = "str" if self.dtype is DType.STRING else f"np.{self.dtype.numpy.name}"
        return f"np.zeros({shape}, {kind})"


def how_to_fit(expected: Sequence[int | str | None], got: Sequence[int]) -> list[str]:
    """Return what would make an array fit, in Python: one more axis, or colours elsewhere. Empty if nothing simple does."""
    ways = {"[np.newaxis] adds the first axis": (1, *got)}
    if len(got) == 4:
        orders = (0, 3, 1, 2), (0, 2, 3, 1)
        ways = {f".transpose{order} moves the colours": tuple(got[axis] for axis in order) for order in orders}
    return [text for text, shape in ways.items() if _agree(expected, shape)][:1]


def _agree(declared: Sequence[int | str | None], shape: Sequence[int]) -> bool:
    sizes = zip(declared, shape, strict=False)
    return len(declared) == len(shape) and all(dim == size or not isinstance(dim, int) for dim, size in sizes)


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a model, in its order."""

    inputs: tuple[NodeArg, ...]
    outputs: tuple[NodeArg, ...]
    overridable: tuple[NodeArg, ...] = ()
    """Weights instead of which a caller may give others."""
    defaults: Mapping[str, Array] = field(default_factory=dict, compare=False)
    """What state is before the first request, if the file says it."""
    windows: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Symbols of the lengths of caches that keep the last words only, and for how many words they have room at least."""

    @classmethod
    def of(cls, model: OnnxModel) -> Signature:
        """Return the signature of a model."""
        inputs, outputs, overridable = (tuple(map(NodeArg.of, side)) for side in (model.inputs, model.outputs, model.overridable))
        return cls(inputs, outputs, overridable, windows=model.windows)

    def overriding(self, names: Collection[str]) -> Signature:
        """Return the signature of the model of which weights of these names are inputs, after all others."""
        chosen = tuple(arg for arg in self.overridable if arg.name in names)
        return replace(self, inputs=(*self.inputs, *chosen), overridable=()) if chosen else self

    def shapes_of(self, feeds: Sequence[Array]) -> Shapes:
        """Return the shapes that a plan is made for; none of a packed input: its bytes may be as many as they like."""
        return tuple(() if arg.is_packed else array.shape for arg, array in zip(self.inputs, feeds, strict=True))

    def choose_outputs(self, names: Sequence[str] | None) -> list[int]:
        """Return the places of the named outputs; of all if there are no names.

        Raises:
            InputError: if the model has no such output.
        """
        if isinstance(names, str):
            raise TypeError(f"output_names: expected a list of names or None, got '{names}'")
        if not names:
            return list(range(len(self.outputs)))
        names = list(names)  # a generator is read only once
        places = {arg.name: place for place, arg in enumerate(self.outputs)}
        for name in names:
            if name not in places:
                raise InputError(f"output '{name}': the model has {', '.join(places)}")
        return [places[name] for name in names]

    def check_feed(self, feed: Mapping[str, Any]) -> list[Array]:
        """Return the inputs as arrays in the model's order; what is no array is packed.

        Raises:
            InputError: if a name is unknown or missing, or a dtype or shape does not fit.
        """
        known = {arg.name for arg in self.inputs}
        missing = [arg.name for arg in self.inputs if arg.name not in feed and not arg.type.startswith("optional")]
        if missing or not feed.keys() <= known:
            expected = ", ".join(f"'{arg.name}' {arg.declared}" for arg in self.inputs)
            got = ", ".join(f"'{name}'" for name in feed) or "none"
            examples = [f"'{arg.name}': {arg.example}" for arg in self.inputs if arg.name in missing and arg.dtype is not DType.OTHER]
            example = [f"for example {{{', '.join(examples[:3])}}}"] if examples else []
            fault = InputError(f"inputs: expected {expected}, got {got}", *example)
            raise as_also(fault, ValueError) if missing else fault
        sizes: dict[str, int] = {}
        return [
            packed_input(arg.name, arg.onnx, feed.get(arg.name)) if arg.is_packed else _checked(arg, feed[arg.name], sizes)
            for arg in self.inputs
        ]

    def check_shapes(self, shapes: Mapping[str, Sequence[int]]) -> Shapes:
        """Return the shapes that a plan is made for, in the model's order.

        Raises:
            InputError: if one is missing, does not fit, or is no shape.
        """
        return tuple(() if arg.is_packed else _checked_shape(arg, shapes.get(arg.name)) for arg in self.inputs)

    def declared_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes the model declares.

        Raises:
            InputError: if one of them is not concrete.
        """
        shapes = {arg.name: tuple(dim for dim in arg.shape if isinstance(dim, int)) for arg in self.inputs}
        for arg in self.inputs:
            if not arg.is_packed and (not arg.has_rank or len(shapes[arg.name]) != len(arg.shape)):
                raise InputError(
                    f"input '{arg.name}': its declared shape {arg.declared} is not concrete; run the model once or give the shapes"
                )
        return shapes


def _checked_shape(arg: NodeArg, given: Sequence[int] | None) -> tuple[int, ...]:
    try:
        shape = None if given is None else tuple(map(index, given))
    except TypeError:
        shape = None
    if shape is None or min(shape, default=0) < 0 or not _fits(arg, shape):
        of_array = getattr(given, "shape", None)
        got = str(given) if of_array is None else f"an array of {of_array}"
        raise InputError(f"input '{arg.name}': expected a shape of {arg.declared}, got {got}")
    return shape


def _fits(arg: NodeArg, shape: Sequence[int]) -> bool:
    """Whether an input may be given in a shape; of a scalar any will do, as for onnxruntime: exporters' examples give [1]."""
    return not arg.shape or _agree(arg.shape, shape)


def _checked(arg: NodeArg, value: Any, sizes: dict[str, int]) -> Array:  # noqa: ANN401 - whatever numpy makes an array of
    expected = arg.dtype.numpy
    if value is None:  # of which numpy makes a NaN
        raise InputError(f"input '{arg.name}': expected {arg.declared}, got None")
    # Lists have no element type of their own: they get the declared one, as in onnxruntime.
    array: Array = np.asarray(value) if isinstance(value, np.ndarray | np.generic) else _of_list(arg, value)
    if not array.dtype.isnative and array.dtype.newbyteorder("=") == expected:
        array = array.astype(expected)
    if array.dtype != expected and not (arg.dtype is DType.STRING and array.dtype.kind in "OUST"):
        kind = "object" if arg.dtype is DType.STRING else f"np.{expected}"
        raise InputError(
            f"input '{arg.name}': expected {arg.declared}, got {array.dtype}{list(array.shape)}", f"convert it with .astype({kind})"
        )
    sizes.update({dim: size for dim, size in zip(arg.shape, array.shape, strict=False) if isinstance(dim, str) and dim not in sizes})
    if not _fits(arg, array.shape):
        also = "".join(f" with {name} = {size}" for name, size in sizes.items() if name in arg.shape)
        raise InputError(
            f"input '{arg.name}': expected {arg.declared}{also}, got {array.dtype}{list(array.shape)}",
            *how_to_fit(arg.shape, array.shape),
        )
    return array


def _of_list(arg: NodeArg, value: Any) -> Array:  # noqa: ANN401 - whatever numpy makes an array of
    try:
        array: Array = np.asarray(value, None if arg.dtype is DType.STRING else arg.dtype.numpy)
        if array.ndim and array.dtype.kind in "SU":
            array = np.asarray(value, object)  # numpy's own texts end before their last NULs
        # What is empty has no type of its own.
        return array if array.size else array.astype(arg.dtype.numpy)
    except (TypeError, ValueError, OverflowError) as error:
        fault = InputError(f"input '{arg.name}': expected {arg.declared}, got a {type(value).__name__}: {error}")
        raise as_also(fault, RuntimeError) from None
