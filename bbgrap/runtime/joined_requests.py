"""Requests of a sequence that one request can stand for: the words of several steps, given at once, leave the state that the steps leave.

steps      [a b] mask 11 | [c] mask 111 | [d] mask 1111        at once      [a b c d] mask 1111
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class JoinedInput:
    """What an input is, where requests are joined.

    `row`: those of the requests follow each other along `axis`. `whole`: the last one, which has those before it in front along `axis`, as
    a mask of all words so far. `same`: it is the same in all; `axis` says nothing.
    """

    kind: Literal["row", "whole", "same"]
    axis: int = 0
