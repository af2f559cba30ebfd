"""What a session returns of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bbgrap.costmodel.timeline import Timeline
from bbgrap.errors import InputError
from bbgrap.protocol.client_messages import RunResult
from bbgrap.protocol.tensors import decode_array
from bbgrap.report.trace import timeline_of
from bbgrap.session.signature import Signature
from bbgrap.session.values import unpacked_output


def outputs_of(result: RunResult, signature: Signature, chosen: Sequence[int], name: str) -> list[Any]:
    """Return the outputs at these places of a model's signature, as arrays that may be written to; lists and the like where it says so.

    Raises:
        InputError: if the answer has another number of outputs than the signature.
    """
    if len(result.outputs) != len(signature.outputs):
        raise InputError(f"model '{name}': expected {len(signature.outputs)} outputs, got {len(result.outputs)}")
    return [_output(result, index, signature) for index in chosen]


def _output(result: RunResult, index: int, signature: Signature) -> Any:  # noqa: ANN401 - a list, a dictionary or None where the model says so
    header = result.outputs[index]
    array = decode_array(header.dtype, header.shape, result.payload[index])
    if signature.outputs[index].is_packed:
        return unpacked_output(array)
    return array if array.flags.writeable else array.copy()


def recorded_timeline(result: RunResult) -> Timeline | None:
    """Return when every node did what for a recorded request; None if nobody told in time."""
    return timeline_of(result.records, result.devices) if result.devices else None
