"""What goes over the network: recorded by a relay, or captured on the loopback interface, and searched for tensors."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

WINDOW = 16
"""Bytes in a row that are no accident."""
_HALF = 8
_MOST_BYTES = 256 << 20
"""Of a capture: other programs use the interface, too."""
_PLAIN = 6
"""Different bytes that a window has at least: rows of zeros are everywhere."""


class Relay:
    """A port that passes everything on to another one, and keeps it."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.recorded: list[tuple[bytearray, bytearray]] = []
        """Of every connection: what was said to the target, and by it."""
        self._stop, self._stopping = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopping.send(b"x")
        self._thread.join()
        for each in (self._listener, self._stop, self._stopping):
            each.close()

    def _run(self) -> None:
        ways: dict[socket.socket, tuple[socket.socket, bytearray]] = {}
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._stop, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    end = key.fileobj
                    if end is self._stop:
                        for each in ways:
                            each.close()
                        return
                    if end is self._listener:
                        caller, other = self._listener.accept()[0], socket.create_connection(self._target)
                        said, heard = bytearray(), bytearray()
                        self.recorded.append((said, heard))
                        ways[caller], ways[other] = (other, said), (caller, heard)
                        selector.register(caller, selectors.EVENT_READ)
                        selector.register(other, selectors.EVENT_READ)
                    elif isinstance(end, socket.socket) and end in ways:
                        self._pass_on(end, ways, selector)

    @staticmethod
    def _pass_on(end: socket.socket, ways: dict[socket.socket, tuple[socket.socket, bytearray]], selector: selectors.BaseSelector) -> None:
        other, kept = ways[end]
        try:
            content = end.recv(1 << 16)
            kept += content
            if content:
                other.sendall(content)
                return
        except OSError:
            pass
        for each in (end, other):
            del ways[each]
            selector.unregister(each)
            each.close()


class Capture:
    """What goes over the loopback interface, of whomever."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
        self._socket.bind(("lo", 0))
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 256 << 20)  # SO_RCVBUFFORCE
        self._socket.settimeout(0.1)
        self._parts: dict[tuple[int, int], dict[int, bytes]] = defaultdict(dict)
        self._kept = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopping = True
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        packet = bytearray(1 << 17)
        while not self._stopping:
            try:
                count = self._socket.recv_into(packet)
            except TimeoutError:
                continue
            if packet[12:14] != b"\x08\x00" or packet[23] != 6:  # IP version 4, TCP
                continue
            tcp = 14 + 4 * (packet[14] & 15)
            source, target, sequence = struct.unpack_from(">HHI", packet, tcp)
            content = bytes(packet[tcp + 4 * (packet[tcp + 12] >> 4) : count])
            if content and self._kept < _MOST_BYTES:
                self._kept += len(content)
                self._parts[source, target].setdefault(sequence, content)

    def streams(self, among: set[int]) -> dict[tuple[int, int], bytes]:
        """Return what was said, from one port to another, one of them among those."""
        found = {ports: parts for ports, parts in self._parts.items() if among.intersection(ports)}
        return {ports: b"".join(parts[sequence] for sequence in sorted(parts)) for ports, parts in found.items()}


def tensors_of(model: Path, x: np.ndarray) -> list[bytes]:
    """Return all tensors of a model: weights, the input, and every map that it makes of it."""
    proto = onnx.load(str(model))
    made = [name for node in proto.graph.node for name in node.output if name]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made if name not in {o.name for o in proto.graph.output})
    maps = ort.InferenceSession(proto.SerializeToString()).run(made, {"input": x})
    weights = [numpy_helper.to_array(tensor) for tensor in proto.graph.initializer]
    return [np.ascontiguousarray(each).tobytes() for each in (x, *maps, *weights)]


def found_in(stream: bytes | bytearray, tensors: list[bytes]) -> bytes | None:
    """Return a window of a tensor that is in a stream, wherever it begins in it."""
    windows = {tensor[at : at + WINDOW] for tensor in tensors for at in range(0, len(tensor) - WINDOW + 1, 4)}
    windows = {window for window in windows if len(set(window)) >= _PLAIN}
    halves = np.unique(np.frombuffer(b"".join(window[:_HALF] for window in windows), np.uint64))
    content = bytes(stream)
    for shift in range(_HALF):
        words = np.frombuffer(content[shift : shift + (len(content) - shift) // _HALF * _HALF], np.uint64)
        for place in np.flatnonzero(np.isin(words, halves)):
            at = shift + _HALF * int(place)
            if content[at : at + WINDOW] in windows:
                return content[at : at + WINDOW]
    return None
