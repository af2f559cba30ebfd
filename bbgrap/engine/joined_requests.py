"""Whether a model takes several steps of a sequence at once, found out by trying: the state must be what the steps leave one by one.

What an input is follows from the symbols that the file declares: one named like the axis that grows, or `total...`, is of all words so
far; any other free axis is of the words of a step. Whether that is so, and no word looks at later ones, the trial shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bbgrap.engine.quantized import is_quantized
from bbgrap.graph.onnx_io import ModelInput, OnnxModel
from bbgrap.graph.state import counts_words
from bbgrap.graph.types import Array, DType
from bbgrap.runtime.joined_requests import JoinedInput

STEPS = (2, 1, 2)
"""Words of the requests of the trial."""
RELATIVE, ABSOLUTE = 1e-3, 1e-4
"""How far states may be apart, the second in parts of the largest element: sums have another order. What looks ahead is off by far more."""

RunByName = Callable[[Sequence[str], Mapping[str, Array]], Sequence[Array]]
"""Runs the model: outputs by name, inputs."""


def joinings_of(model: OnnxModel, dtypes: Mapping[str, DType], state: Sequence[tuple[str, str]], run: RunByName) -> dict[str, JoinedInput]:
    """Return how inputs that are no state are joined, by name; nothing if the state does not grow, or steps cannot be joined.

    Those of quantized models never are: what integers are rounded to depends on how much is computed at once, by up to a fifth of a state.
    """
    if is_quantized(model):
        return {}
    inputs, outputs = {item.name: item for item in model.inputs}, {item.name: item for item in model.outputs}
    changing = [(name, output) for name, output in state if name != output]
    symbols = [(inputs[name].shape or (), outputs[output].shape or ()) for name, output in changing]
    pairs = [pair for before, after in symbols for pair in zip(before, after, strict=False)]
    growing = {before for before, after in pairs if isinstance(before, str) and before != after}
    fixed = {before for before, after in pairs if isinstance(before, str) and before == after}
    held = {name for name, _ in state}
    joinings = {name: _joining(item, growing, fixed) for name, item in inputs.items() if name not in held}
    found = {name: joining for name, joining in joinings.items() if joining is not None}
    if not growing or len(found) < len(joinings) or not any(joining.kind == "row" for joining in found.values()):
        return {}

    def feed(start: int, count: int) -> dict[str, Array]:
        return {name: _made(inputs[name], dtypes[name], joining, start, count) for name, joining in found.items()}

    def left(steps: Sequence[int]) -> Sequence[Array]:
        held = {name: _nothing(inputs[name], dtypes[name], growing) for name, _ in state}
        for number, count in enumerate(steps):
            after = run([output for _, output in changing], {**feed(sum(steps[:number]), count), **held})
            held |= {name: array for (name, _), array in zip(changing, after, strict=True)}
        return list(held.values())

    try:
        one_by_one, at_once = left(STEPS), left((sum(STEPS),))
    except Exception:  # onnxruntime's have no common base; whatever it refuses is run step by step, as it came
        return {}
    return found if all(map(_is_close, one_by_one, at_once)) else {}


def _joining(item: ModelInput, growing: set[str], fixed: set[str]) -> JoinedInput | None:
    """Return what an input is by its symbols; None if they do not say."""
    if item.shape is None or None in item.shape or item.dtype in {DType.OTHER, DType.STRING}:
        return None
    free = [axis for axis, size in enumerate(item.shape) if isinstance(size, str) and size not in fixed]
    if len(free) > 1:
        return None
    if not free:
        return JoinedInput("same")
    symbol = str(item.shape[free[0]])
    is_whole = counts_words(symbol) or any(name in symbol for name in growing)
    return JoinedInput("whole" if is_whole else "row", free[0])


def _made(item: ModelInput, dtype: DType, joining: JoinedInput, start: int, count: int) -> Array:
    """Return an input of a step after `start` words: words are numbers from 0 on, and nothing is masked."""
    length = {"row": count, "whole": start + count, "same": 1}[joining.kind]
    shape = tuple(size if isinstance(size, int) else 1 for size in item.shape or ())
    if joining.kind != "row":
        wide = tuple(length if axis == joining.axis and joining.kind == "whole" else size for axis, size in enumerate(shape))
        return np.ones(wide, dtype.numpy)
    along = tuple(-1 if axis == joining.axis else 1 for axis in range(len(shape)))
    numbers = np.arange(start, start + count).reshape(along)
    others = np.random.default_rng(0).random(tuple(1 if axis == joining.axis else size for axis, size in enumerate(shape)))
    values = (
        np.sin(numbers + others) if dtype.numpy.kind == "f" else np.broadcast_to(numbers, np.broadcast_shapes(numbers.shape, others.shape))
    )
    return np.ascontiguousarray(values).astype(dtype.numpy)


def _nothing(item: ModelInput, dtype: DType, growing: set[str]) -> Array:
    shape = tuple(size if isinstance(size, int) else 0 if size in growing else 1 for size in item.shape or ())
    return np.zeros(shape, dtype.numpy)


def _is_close(one: Array, other: Array) -> bool:
    if one.shape != other.shape or one.dtype.kind not in "fiub":
        return False
    scale = float(np.abs(one.astype(np.float64)).max(initial=0.0))
    return bool(np.allclose(one, other, rtol=RELATIVE, atol=ABSOLUTE * scale))
