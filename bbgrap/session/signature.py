"""What a model takes and gives, and whether a feed fits it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bbgrap.errors import InputError, ModelError
from bbgrap.graph.onnx_read import ModelFile, ModelInput
from bbgrap.graph.types import Array, DType

_TYPE_NAMES = {DType.FLOAT: "float", DType.OTHER: "unknown"}


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output, with the attributes onnxruntime gives it; `shape` holds numbers, symbols and None."""

    name: str
    dtype: DType
    shape: list[int | str | None]
    has_rank: bool

    @property
    def type(self) -> str:
        """The type as onnxruntime writes it: `tensor(float)`."""
        return f"tensor({_TYPE_NAMES.get(self.dtype, self.dtype.name.lower())})"

    @classmethod
    def of(cls, declared: ModelInput) -> NodeArg:
        """Make one of what the file declares."""
        return cls(declared.name, declared.dtype, list(declared.shape or ()), declared.shape is not None)

    def __str__(self) -> str:
        dims = ", ".join("?" if dim is None else str(dim) for dim in self.shape) if self.has_rank else "..."
        return f"{self.dtype.name.lower()}[{dims}]"


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a model, in its order."""

    inputs: tuple[NodeArg, ...]
    outputs: tuple[NodeArg, ...]

    @classmethod
    def of(cls, model: ModelFile) -> Signature:
        """Return the signature of a model."""
        return cls(tuple(map(NodeArg.of, model.inputs)), tuple(map(NodeArg.of, model.outputs)))

    @property
    def has_free_batch(self) -> bool:
        """Whether the first axis of every input may have any extent."""
        return all(arg.has_rank and arg.shape and not isinstance(arg.shape[0], int) for arg in self.inputs)

    def choose_outputs(self, names: Sequence[str] | None) -> list[int]:
        """Return the places of the named outputs; of all if there are no names.

        Raises:
            InputError: if the model has no such output.
        """
        if not names:
            return list(range(len(self.outputs)))
        places = {arg.name: place for place, arg in enumerate(self.outputs)}
        for name in names:
            if name not in places:
                raise InputError(f"output '{name}': the model has {', '.join(places)}")
        return [places[name] for name in names]

    def check_feed(self, feed: Mapping[str, Any]) -> list[Array]:
        """Return the inputs as arrays in the model's order.

        Raises:
            InputError: if a name is unknown or missing, or a dtype or shape does not fit.
        """
        known = {arg.name for arg in self.inputs}
        unknown, missing = [name for name in feed if name not in known], [arg.name for arg in self.inputs if arg.name not in feed]
        if unknown or missing:
            expected = ", ".join(f"'{arg.name}' {arg}" for arg in self.inputs)
            got = ", ".join(f"'{name}'" for name in feed) or "none"
            raise InputError(f"inputs: expected {expected}, got {got}")
        sizes: dict[str, int] = {}
        return [_checked(arg, feed[arg.name], sizes) for arg in self.inputs]

    def declared_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes the model declares.

        Raises:
            InputError: if one of them is not concrete.
        """
        shapes = {arg.name: tuple(dim for dim in arg.shape if isinstance(dim, int)) for arg in self.inputs}
        for arg in self.inputs:
            if not arg.has_rank or len(shapes[arg.name]) != len(arg.shape):
                raise InputError(f"input '{arg.name}': its declared shape {arg} is not concrete; run the model once or give the shapes")
        return shapes


def _checked(arg: NodeArg, value: Any, sizes: dict[str, int]) -> Array:  # noqa: ANN401 - whatever numpy makes an array of
    try:
        expected = arg.dtype.numpy
    except ModelError as error:
        raise InputError(f"input '{arg.name}': {error}") from error
    array: Array = np.asarray(value)
    if array.dtype != expected and not (arg.dtype is DType.STRING and array.dtype.kind in "OUST"):
        raise InputError(
            f"input '{arg.name}': expected {arg}, got {array.dtype}{list(array.shape)}; convert it with .astype(np.{expected})"
        )
    if not arg.has_rank:
        return array
    fits = len(arg.shape) == array.ndim
    for dim, size in zip(arg.shape, array.shape, strict=False):
        # A symbol stands for one number, wherever the inputs use it.
        fits = fits and (dim is None or size == (sizes.setdefault(dim, size) if isinstance(dim, str) else dim))
    if not fits:
        also = "".join(f" with {name} = {size}" for name, size in sizes.items() if name in arg.shape)
        raise InputError(f"input '{arg.name}': expected {arg}{also}, got {array.dtype}{list(array.shape)}")
    return array
