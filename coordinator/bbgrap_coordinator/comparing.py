"""Comparing what several nodes answered to the same inputs, by the law for all comparisons (`bbgrap.comparison.rules`)."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from bbgrap.comparison.verdict import compare
from bbgrap.control.coordinator_events import Compared
from bbgrap.control.coordinator_instructions import Answer, Compare
from bbgrap.errors import RemoteProtocolError
from bbgrap.protocol.tensors import decode_array
from bbgrap.protocol.values import unpack_value

_log = logging.getLogger("bbgrap.coordinator")


def compared(task: Compare) -> Compared:
    """Compare the last of some answers with each of those before it; from any thread, without an error."""
    *before, last = task.answers
    try:
        with np.errstate(all="ignore"):  # whoever answers wrongly may answer anything
            return Compared(task.check, tuple(_fault(last, other, task) for other in before))
    except Exception:
        _log.exception("the answers to a request that is verified cannot be compared")
        return Compared(task.check, None)


def _fault(got: Answer, expected: Answer, task: Compare) -> str:
    names = [header.name for header in expected.outputs]
    if [header.name for header in got.outputs] != names:
        return f"outputs {[header.name for header in got.outputs]} instead of {names}"
    found = compare(_values(got), _values(expected), task.transfers)
    return found.fault or ("" if found.verified else "they differ")


def _values(answer: Answer) -> list[Any]:
    """Return the outputs as arrays; lists, maps and the like are unpacked, so that numbers inside are compared as numbers."""
    return [
        _unpacked(decode_array(header.dtype, header.shape, content)) for header, content in zip(answer.outputs, answer.payload, strict=True)
    ]


def _unpacked(array: np.ndarray[Any, Any]) -> Any:  # noqa: ANN401 - whatever a model gives
    if array.dtype != np.uint8 or array.ndim != 1:
        return array
    try:
        value = unpack_value(array)
    except RemoteProtocolError:
        return array
    return value if isinstance(value, list | dict) else array
