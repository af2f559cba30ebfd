"""Size limits of the protocol, and the markers by which a field states its own.

A limit bounds what a broken or hostile peer can make this process hold; it is far above what real models need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated
from unicodedata import category

MAX_HEADER_BYTES = 64 << 20
"""A control message without payload. Chosen: the skeletons of a model with 50,000 nodes take about 10 MB."""
MAX_CHUNK_BYTES = 1 << 20
"""A piece of a model or weight: short enough (9 ms at 1 Gb/s) for heartbeats between two of them, and one piece on the wire."""
MAX_MODEL_BYTES = 64 << 30
"""All files of a model together. Chosen: above any model that fits the machines this is for."""
MAX_TENSOR_BYTES = 1 << 30
"""An input or output of a request, or a message of the data plane."""
MAX_PAYLOAD_FRAMES = 1024
"""Inputs or outputs of a request."""
MAX_MESSAGE_BYTES = 4 << 30
"""A control message with all its payload. Chosen: four of the largest tensors."""
MAX_TEXT_BYTES = 64 << 10
"""Any other string."""
MAX_REPORT_BYTES = 48 << 20
"""The JSON report of a plan: about 1 KB per node."""
MAX_ASKED = 4096
"""Calls that a client asks after at once."""
MAX_INTEGER = 2**63 - 1
MAX_FOLDERS = 8
"""Folders in each other in which a file of a model lies. Chosen: exporters make one; a coordinator makes them all for every plan."""
MAX_FILE_NAME_BYTES = 255
"""The name of a file of a model, folders included: as long as that of any file."""


@dataclass(frozen=True, slots=True)
class Length:
    """The field's UTF-8 text or bytes are at most this long, or its list has at most so many entries."""

    most: int


@dataclass(frozen=True, slots=True)
class TextForm:
    """The field's text is of a form that `holds` tells, and `expected` names."""

    holds: Callable[[str], bool]
    expected: str


@dataclass(frozen=True, slots=True)
class Payload:
    """The field travels in frames of its own: at most so many, each of at most so many bytes."""

    frames: int
    frame_bytes: int


def is_digest(text: str) -> bool:
    """Whether a text is a SHA-256 in lower-case hex: safe as a file name."""
    return len(text) == 64 and not text.strip("0123456789abcdef")


def is_plain_name(text: str) -> bool:
    """Whether a text names a file in the folder at hand: no separator, no `.` or `..`, no control character; any kind of space."""
    return (
        text not in {"", ".", ".."} and "/" not in text and "\\" not in text and all(c.isprintable() or category(c) == "Zs" for c in text)
    )


def is_inner_name(text: str) -> bool:
    """Whether a text names a file in the folder at hand or in folders inside of it: plain names with `/` between them."""
    return (
        text.count("/") <= MAX_FOLDERS
        and len(text.encode(errors="replace")) <= MAX_FILE_NAME_BYTES
        and all(map(is_plain_name, text.split("/")))
    )


Name = Annotated[str, Length(1024)]
Text = Annotated[str, Length(MAX_TEXT_BYTES)]
Digest = Annotated[str, TextForm(is_digest, "a SHA-256 in hex")]
FileName = Annotated[str, TextForm(is_inner_name, "a plain file name, or one in plain folders"), Length(MAX_FILE_NAME_BYTES)]

ROUND_TRIPS = 8
"""So often a first message goes there and back: a connection, its handshake, and twice as much of the message each time. Chosen."""
MOST_FAR_S = 8.0
"""How long that may take at most; who has missed its `Welcome` seems to be farther away. Chosen: a round trip of a second."""
