"""Several requests of a sequence as one that does their work: what a state is made anew by, where the model takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from bbgrap.control.sequence import RequestInputs
from bbgrap.errors import RemoteProtocolError
from bbgrap.graph.types import Array
from bbgrap.protocol.messages import TensorHeader
from bbgrap.protocol.tensors import decode_array, encode_array
from bbgrap.runtime.joined_requests import JoinedInput

MAX_WORDS = 256
"""Of one request. Chosen: scores of attention take memory by their square, and 50,000 logits a word come back."""


def joined(requests: Sequence[RequestInputs], joinings: Mapping[str, JoinedInput]) -> tuple[RequestInputs, int]:
    """Return the inputs of a request that stands for as many of these as can be, from the first one on, and how many these are.

    The first one may have inputs of its own, its state. Whatever is not told in `joinings`, or does not go on from what was before it,
    is not joined: then it is the first one as it came.
    """
    if not joinings or len(requests) == 1:
        return requests[0], 1
    try:
        steps = [_Step.of(requests[0], joinings)]
        words = steps[0].words
        for request in requests[1:]:
            step = _Step.of(request, joinings)
            words += step.words
            if words > MAX_WORDS or not step.follows(steps[-1], joinings):
                break
            steps.append(step)
    except (KeyError, IndexError, RemoteProtocolError):  # inputs that the model does not have; it will say so
        return requests[0], 1
    return _together(requests[0], steps, joinings), len(steps)


@dataclass(frozen=True, slots=True)
class _Step:
    """The inputs of a request that are no state, and how many words it brings; 0: that is not clear."""

    arrays: Mapping[str, Array]
    words: int

    @classmethod
    def of(cls, given: RequestInputs, joinings: Mapping[str, JoinedInput]) -> Self:
        """Return the step of a request."""
        arrays = {
            header.name: decode_array(header.dtype, header.shape, content)
            for header, content in zip(given.inputs, given.payload, strict=True)
            if header.name in joinings
        }
        words = {arrays[name].shape[joining.axis] for name, joining in joinings.items() if joining.kind == "row"}
        return cls(arrays, words.pop() if len(words) == 1 else 0)

    def follows(self, before: _Step, joinings: Mapping[str, JoinedInput]) -> bool:
        """Whether this can be joined to the step before it."""
        if not self.words or not before.words:
            return False
        for name, joining in joinings.items():
            mine, other = self.arrays[name], before.arrays[name]
            if mine.dtype != other.dtype or not _goes_on(joining, mine, other, self.words):
                return False
        return True


def _goes_on(joining: JoinedInput, mine: Array, other: Array, words: int) -> bool:
    """Whether an input is that of the step after another one's, which brings so many words."""
    match joining.kind:
        case "row":
            return _without(mine, joining.axis) == _without(other, joining.axis)
        case "whole":
            length = other.shape[joining.axis]
            goes_on = mine.shape[joining.axis] == length + words and _without(mine, joining.axis) == _without(other, joining.axis)
            # Nothing is masked, as in the trial: a model may put words elsewhere, for a mask has fewer.
            return goes_on and bool((mine == 1).all() and (other == 1).all())
        case "same":
            return np.array_equal(mine, other)


def _without(array: Array, axis: int) -> tuple[int, ...]:
    return (*array.shape[:axis], *array.shape[axis + 1 :])


def _together(first: RequestInputs, steps: Sequence[_Step], joinings: Mapping[str, JoinedInput]) -> RequestInputs:
    headers, payload = [], []
    for header, content in zip(first.inputs, first.payload, strict=True):
        joining = joinings.get(header.name)
        if joining is None:
            headers.append(header)
            payload.append(content)
            continue
        arrays = [step.arrays[header.name] for step in steps]
        array = np.concatenate(arrays, joining.axis) if joining.kind == "row" else arrays[-1]
        headers.append(TensorHeader(header.name, header.dtype, array.shape))
        payload.append(encode_array(np.ascontiguousarray(array)))
    return RequestInputs(tuple(headers), tuple(payload))
