"""Between the nanny and its worker: messages of the protocol's codec over a socket pair.

    count of frames | length of each frame | frames        (64-bit numbers, big end first)

The worker runs models of strangers, so what it says is read as if it came over a network. Laws: a frame is copied by the system only; an
end never waits for the other but in its own reading and writing threads.
"""

from __future__ import annotations

import logging
import queue
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Generic, TypeVar, get_args

from bbgrap.control.agent_events import FromWorker, ToWorker
from bbgrap.errors import LocalProtocolError, RemoteProtocolError
from bbgrap.protocol.codec import Codec
from bbgrap.protocol.limits import MAX_CHUNK_BYTES, MAX_HEADER_BYTES
from bbgrap.protocol.messages import BytesLike, WeightChunk
from bbgrap.transport.framing import rest_of

TO_WORKER: Codec[ToWorker] = Codec(*get_args(ToWorker))
FROM_WORKER: Codec[FromWorker] = Codec(*get_args(FromWorker))

MAX_FRAMES = 2
"""A header and, of a weight, a chunk."""
MAX_QUEUED_BYTES = 64 << 20
"""Of weights that wait for a worker; four times what a coordinator sends without an answer. More is dropped: it is asked for again."""

M = TypeVar("M")

_log = logging.getLogger("bbgrap.agent")
_NUMBER = struct.Struct("!Q")


class Pipe(Generic[M]):
    """One end.

    Invariants: `receive` is called by one thread; what is sent is encoded and goes out in order, by a thread of its own.
    """

    def __init__(self, connection: socket.socket, codec: Codec[M]) -> None:
        """Take over a connected stream socket; the codec is that of what is sent."""
        connection.setblocking(True)
        self._socket = connection
        self._codec = codec
        self._queue: queue.SimpleQueue[M | None] = queue.SimpleQueue()
        self._queued = 0
        self._lock = threading.Lock()
        self._writer = threading.Thread(target=self._write, name="pipe", daemon=True)
        self._writer.start()

    def send(self, message: M) -> None:
        """Send a message, soon; to an end that is closed it is lost, and so is a piece of a weight if too many wait already."""
        size = _size(message)
        with self._lock:
            if size > 0 and self._queued + size > MAX_QUEUED_BYTES:
                return
            self._queued += size
        self._queue.put(message)

    def receive(self) -> list[BytesLike] | None:
        """Wait for a message; None when the other end is closed.

        Raises:
            RemoteProtocolError: if it is none.
        """
        head = self._read(_NUMBER.size)
        if head is None:
            return None
        (count,) = _NUMBER.unpack(head)
        if not 1 <= count <= MAX_FRAMES:
            raise RemoteProtocolError(f"pipe: expected 1 to {MAX_FRAMES} frames, got {count}")
        frames: list[BytesLike] = []
        sizes = self._read(_NUMBER.size * count)
        for (size,) in () if sizes is None else _NUMBER.iter_unpack(sizes):
            limit = MAX_CHUNK_BYTES if frames else MAX_HEADER_BYTES
            if size > limit:
                raise RemoteProtocolError(f"pipe: a frame of {size} bytes, the limit is {limit}")
            frame = self._read(size)
            if frame is None:
                return None
            frames.append(frame)
        return frames or None

    def finish(self) -> None:
        """Send what waits, then the end; this end still receives."""
        self._queue.put(None)

    def close(self) -> None:
        """Close at once; a thread in `receive` gets None."""
        self.finish()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._writer.join()
        self._socket.close()

    def _read(self, size: int) -> memoryview | None:
        content = memoryview(bytearray(size))
        done = 0
        while done < size:
            try:
                count = self._socket.recv_into(content[done:])
            except OSError:
                return None
            if count == 0:
                return None
            done += count
        return content

    def _write(self) -> None:
        broken = False
        while (message := self._queue.get()) is not None:
            with self._lock:
                self._queued -= _size(message)
            try:
                if not broken:
                    self._write_all(self._codec.encode(message))
            except OSError:
                broken = True  # the reader learns of it; what is still sent is lost
            except LocalProtocolError as error:
                _log.warning("pipe: not sent: %s", error)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def _write_all(self, frames: Sequence[BytesLike]) -> None:
        head = b"".join(_NUMBER.pack(number) for number in (len(frames), *(len(frame) for frame in frames)))
        rest = [head, *frames]
        while rest:
            rest = rest_of(rest, self._socket.sendmsg(rest))


def _size(message: object) -> int:
    """Return how much of a weight is in a message."""
    return sum(len(piece) for piece in message.payload) if isinstance(message, WeightChunk) else 0
