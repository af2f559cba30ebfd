"""Small messages of a deployment, as they go over the wire: framed and addressed once, written in place again for every request.

    | frame | header, last the request's number | payload |
                     ▲ written                     ▲ regions of buffers, copied from where they are

A halo costs two calls of numpy and one of the system this way. What is larger, of unknown size or not sent exactly is packed anew each
time (`bbgrap.protocol.message_layout`). Law: the bytes are those of `pack` with the same parts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bbgrap.errors import ModelError
from bbgrap.graph.types import Array, TensorType
from bbgrap.protocol.data import REQUEST_BYTES, Headers, put_request
from bbgrap.protocol.message_layout import Letter
from bbgrap.runtime.execution import Copies, Write
from bbgrap.runtime.schedule import Send
from bbgrap.transport.framing import SMALL_BYTES, framed


class Envelope:
    """One message of a deployment.

    Invariants: `_parts` has, per part, the buffer it is a region of, the type of this, for numpy too, and what copies the region.
    """

    def __init__(self, step: Send, letter: Letter, headers: Headers, copies: Copies) -> None:
        """Prepare a message for which `fits`."""
        assert letter.fields is not None
        assert letter.nbytes is not None
        self._message = framed(headers.of(step.message, 0), letter.nbytes)
        start = len(self._message) - letter.nbytes
        self._number_at = start - REQUEST_BYTES
        self._parts: list[tuple[int, TensorType, np.dtype[np.generic], Write]] = []
        for part, field in zip(step.parts, letter.fields, strict=True):
            spec = copies.schedule.buffers[part.buffer]
            target = np.ndarray(field.shape, field.dtype, self._message, start + field.start)
            self._parts.append((part.buffer, TensorType(spec.dtype, spec.shape), field.dtype, copies.writer(part, target)))

    @staticmethod
    def fits(letter: Letter) -> bool:
        """Whether a message is small, of known size, and sent exactly."""
        exact = letter.fields is not None and all(field.wire == "exact" for field in letter.fields)
        return exact and letter.nbytes is not None and 0 < letter.nbytes <= SMALL_BYTES

    def filled(self, request: int, arrays: Mapping[int, Array]) -> memoryview:
        """Return the message with the parts out of these arrays, which are those of the buffers by number.

        Raises:
            ModelError: if an array is not what the schedule says.
        """
        message = self._message
        put_request(message, self._number_at, request)
        for buffer, kind, dtype, write in self._parts:
            array = arrays[buffer]
            if array.dtype != dtype or (array.shape != kind.shape and kind.shape is not None):
                raise ModelError(f"tensor to send: the plan says {kind}, the kernel gave {array.dtype}{list(array.shape)}")
            write(array)
        return message


def envelopes_of(steps: Mapping[int, Send], letters: Mapping[int, Letter], headers: Headers, copies: Copies) -> dict[int, Envelope]:
    """Return the envelopes of the messages that fit into one, by number."""
    return {n: Envelope(step, letters[n], headers, copies) for n, step in steps.items() if Envelope.fits(letters[n])}
