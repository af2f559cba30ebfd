"""Which inputs of a model are its outputs in the next request, or stay as they are, and what they are before the first one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np

from bbgrap.errors import UsageError
from bbgrap.graph.onnx_types import array_of_content
from bbgrap.graph.state import OF_ENCODER, counts_words, of_batch
from bbgrap.graph.types import Array, DType
from bbgrap.session.signature import NodeArg, Shapes, Signature

StateOption = Mapping[str, str] | Literal["auto"]
"""Inputs and the outputs that they are in the next request, or inputs and themselves: these are *lasting*, they come with the first request
and stay. `auto`: by their names, else by their types."""

_NAMES = (
    (r"past_key_values", "present"),
    (r"(^|(?<=[._]))past", "present"),
    (r"_in\Z", "_out"),
    (r"(?<=\d)i\Z", "o"),
    *((r"0\Z", end) for end in ("n", "N")),
    *((r"\Z", end) for end in ("_out", "_output", "n", "N", ".next", "_next", "_new")),
    *((r"^(in|input)(?=[_.])", begin) for begin in ("out", "output")),
    *((r"^(prev_)?", begin) for begin in ("next_", "new_", "r_")),
)
"""How exporters call the output that an input becomes: transformers, Optimum, torch, Silero, ours; NeMo, icefall and WeNet, whose models
hear speech chunk by chunk; and filters of sound and of films (`cache_in`, `r1i`)."""


@dataclass(frozen=True, slots=True)
class StateText:
    """What a command line says of a model's state: which it is, and the shapes that its file leaves open, before the first request."""

    state: StateOption
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `auto`, or `IN:OUT[:SHAPE],...`.

        Raises:
            UsageError: if it is neither.
        """
        if text == "auto":
            return cls("auto", {})
        pairs, shapes = dict[str, str](), dict[str, tuple[int, ...]]()
        for said in text.split(","):
            parts = said.split(":")
            sizes = parts[2].split("x") if len(parts) == 3 else []
            if len(parts) not in (2, 3) or not all(parts) or not all(size.isdecimal() for size in sizes):
                raise UsageError(f"state '{text}': expected auto, or INPUT:OUTPUT,..., like state:stateN, or state:stateN:2x1x128")
            pairs[parts[0]] = parts[1]
            shapes |= {parts[0]: tuple(map(int, sizes))} if sizes else {}
        return cls(pairs, shapes)


def pairs_of(state: StateOption, signature: Signature, model: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs of inputs and outputs that are a model's state, in the order of its inputs, weights that are inputs too after them.

    Raises:
        UsageError: if a name is none of the model's, a pair differs in type, or `auto` finds none.
    """
    outputs = {arg.name: arg for arg in signature.outputs}
    found = _found(signature) if state == "auto" else dict(state)
    inputs = {arg.name: arg for arg in (*signature.inputs, *signature.overridable)}
    for name, output in found.items():
        if name not in inputs or output not in (*outputs, name):
            known = f"inputs {', '.join(inputs)}; outputs {', '.join(outputs)}"
            raise UsageError(f"state '{name}': '{output}' of model '{model}': expected an input and an output, of {known}")
        after = inputs[name] if output == name else outputs[output]
        if (kept := inputs[name]).type == after.type and not _is_of_numbers(kept):
            raise UsageError(f"state '{name}' of model '{model}': expected a tensor of numbers, which agents keep, got {kept.type}")
        if not _is_like(inputs[name], after):
            raise UsageError(
                f"state '{name}' of model '{model}': expected tensors of one type and rank, got {inputs[name].declared} as input "
                f"and {after.declared} as '{output}'"
            )
    if not found:
        raise UsageError(
            f"state 'auto': no output of model '{model}' is called, or alone has the type, of an input; name them: {{in: out}}"
        )
    if len(set(found.values())) != len(found):
        raise UsageError(f"state of model '{model}': an output is listed twice")
    return tuple((name, found[name]) for name in inputs if name in found)


def _found(signature: Signature) -> dict[str, str]:
    outputs = {arg.name: arg for arg in signature.outputs}
    found: dict[str, str] = {}
    for arg in (*signature.inputs, *signature.overridable):
        names = (re.sub(pattern, new, arg.name, count=1) for pattern, new in _NAMES)
        if name := next((n for n in names if n in outputs and n != arg.name and _is_like(arg, outputs[n])), None):
            found[arg.name] = name
    if found:
        return found | {arg.name: arg.name for arg in signature.inputs if arg.name not in found and _is_of_encoder(arg)}
    # `state` and `stateN` are among the names; what is left has to be the only one of its type on either side.
    for arg in signature.inputs:
        twins = [other for other in signature.inputs if _key(other) == _key(arg)]
        matches = [other for other in signature.outputs if _key(other) == _key(arg)]
        if len(twins) == len(matches) == 1 and arg.shape:
            found[arg.name] = matches[0].name
    # A model to which nothing comes is none: one of them is no state, and which one nobody says.
    return found if len(found) < len(signature.inputs) else {}


def _is_of_encoder(arg: NodeArg) -> bool:
    """Whether a decoder is told by it what an encoder made: one thing for all words."""
    return (OF_ENCODER in arg.name or arg.name.startswith("encoder_")) and arg.has_rank and _is_of_numbers(arg)


def _key(arg: NodeArg) -> tuple[str, tuple[int | str | None, ...]]:
    return arg.type, tuple(arg.shape)


def _is_of_numbers(arg: NodeArg) -> bool:
    """Whether it is a tensor, and of no texts."""
    return arg.dtype is not DType.STRING and (arg.dtype is not DType.OTHER or arg.code is not None)


def _is_like(one: NodeArg, other: NodeArg) -> bool:
    """Whether two tensors may be one state: of one type, and of sizes that differ along one axis at most, as far as they are known."""
    if one.type != other.type or not _is_of_numbers(one):
        return False
    if not one.has_rank or not other.has_rank:
        return True
    sizes = zip(one.shape, other.shape, strict=False)
    differ = sum(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes)
    return len(one.shape) == len(other.shape) and differ <= 1


def initial_state(
    pairs: Sequence[tuple[str, str]], signature: Signature, feed: Mapping[str, Any], initial: Mapping[str, Any]
) -> dict[str, Array]:
    """Return the state before a first request with this feed: what is given, else what the file says, else zeros or nothing.

    Along an axis that grows there is nothing; a cache that keeps the last words only has room for these. Lasting inputs are in the feed.

    Raises:
        UsageError: if what is given is no state, or a size cannot be known.
    """
    inputs, outputs = ({arg.name: arg for arg in side} for side in (signature.inputs, signature.outputs))
    if unknown := initial.keys() - {name for name, _ in pairs}:
        raise UsageError(f"initial: {', '.join(sorted(unknown))} is no state; the state is {', '.join(name for name, _ in pairs)}")
    sizes = dict(signature.windows)
    for arg in signature.inputs:
        if arg.name in feed and arg.has_rank and not arg.is_packed:
            sizes.update({d: n for d, n in zip(arg.shape, np.shape(feed[arg.name]), strict=False) if isinstance(d, str)})
    known = {**signature.defaults, **initial}
    return {
        name: np.asarray(known[name]) if name in known else _empty(inputs[name], outputs[output], sizes)
        for name, output in pairs
        if name in known or name != output
    }


def with_state_shapes(pairs: Sequence[tuple[str, str]], signature: Signature, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Return shapes and those of the state that they lack, as a first request of these shapes begins with it.

    Raises:
        InputError: if a shape of another input does not fit, or is no shape.
        UsageError: if a size of the state cannot be known.
    """
    missing = tuple((name, output) for name, output in pairs if name not in shapes and name != output)
    others = replace(signature, inputs=tuple(arg for arg in signature.inputs if arg.name not in dict(missing)))
    known = dict(zip((arg.name for arg in others.inputs), others.check_shapes(shapes), strict=True))
    feed = {name: np.broadcast_to(np.False_, shape) for name, shape in known.items()}
    return {**shapes, **{name: array.shape for name, array in initial_state(missing, signature, feed, {}).items()}}


def planned_shapes(pairs: Sequence[tuple[str, str]], signature: Signature, shapes: Shapes) -> Shapes:
    """Return the shapes to plan for: of a state that grows or is filled, those of one word after none, since a plan serves any of both."""
    inputs, outputs = ({arg.name: arg for arg in side} for side in (signature.inputs, signature.outputs))
    growing: dict[str, set[int]] = {name: set() for name, output in pairs if name != output}
    # Exporters that are told of inputs only call the batch otherwise in outputs.
    told = {symbol for arg in signature.inputs if arg.name not in growing for symbol in arg.shape}
    declared = {arg.name: arg.shape for arg in signature.inputs if arg.has_rank}
    sizes = {arg.name: shape for arg, shape in zip(signature.inputs, shapes, strict=True)}
    fixed: set[int | str | None] = set(of_batch(declared, sizes, growing))
    for name in growing:
        for axis, (before, after) in enumerate(zip(inputs[name].shape, outputs[dict(pairs)[name]].shape, strict=False)):
            if before != after and not isinstance(before, int) and before not in told and before not in signature.windows:
                growing[name].add(axis)
            else:
                fixed.add(before)
    fills = any(counts_words(symbol) for arg in signature.inputs for symbol in arg.shape)
    if not fills and not any(growing.values()):
        return shapes

    def size(arg: NodeArg, axis: int, given: int) -> int:
        if arg.name in growing:
            return 0 if axis in growing[arg.name] else given
        return 1 if isinstance(arg.shape[axis], str) and arg.shape[axis] not in fixed else given

    return tuple(
        tuple(size(arg, axis, given) for axis, given in enumerate(shape)) if arg.has_rank else shape
        for arg, shape in zip(signature.inputs, shapes, strict=True)
    )


def _empty(arg: NodeArg, output: NodeArg, sizes: Mapping[str, int]) -> Array:
    shape = []
    for axis, dim in enumerate(arg.shape):
        after = output.shape[axis] if output.has_rank and axis < len(output.shape) else None
        if isinstance(dim, int):
            shape.append(dim)
        elif isinstance(dim, str) and dim in sizes:
            shape.append(sizes[dim])
        elif isinstance(dim, str) and dim != after:
            shape.append(0)
        else:
            raise UsageError(
                f"state '{arg.name}' {arg.declared}: how long its axis {axis} is, nobody says (to a server: --state MODEL=IN:OUT:SHAPE)",
                f"give it: sequence(initial={{...}}), or prepare({{'{arg.name}': shape, ...}})",
            )
    if not arg.has_rank:
        raise UsageError(
            f"state '{arg.name}': the model does not say its shape (to a server: --state MODEL=IN:OUT:SHAPE)",
            f"give it: sequence(initial={{...}}), or prepare({{'{arg.name}': ...}})",
        )
    return np.zeros(shape, arg.dtype.numpy if arg.code is None else array_of_content(arg.code, (0,), b"").dtype)
