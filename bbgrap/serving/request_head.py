"""Heads of HTTP requests: which are plain requests for inference. All others are uvicorn's, whatever they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

import httptools

from bbgrap.serving.datatypes import BodyBytes

END = b"\r\n\r\n"
MOST_BYTES = 64 << 10
"""Of a head."""

_BEGIN = b"POST /v2/models/"
_INFER = re.compile(rb"/v2/models/([^/?#%]+)(?:/versions/([^/?#%]+))?/infer")
_NOT_PLAIN = frozenset({b"transfer-encoding", b"content-encoding", b"expect", b"upgrade", b"trailer"})
"""Headers that change how a body comes, or what becomes of the connection."""
_OFFER = re.compile(rb"\r\nupgrade[ \t]*:[^\r\n]*(?=\r\n[^ \t])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A plain request for inference: HTTP/1.1, its body of a known length and as it is, and the connection goes on."""

    model: str
    version: str
    length: int
    headers: tuple[tuple[bytes, bytes], ...]
    """In order; names are lower-case."""
    by_name: Mapping[str, str]
    """The first of each name."""


def without_offer(begun: bytes) -> bytes:
    """Return what a request begins with, without its offer to go on in another protocol.

    None is spoken here, and who offers one wants an answer, too: Java's client does so with HTTP/2, unless it is told not to. The parser
    would take the body for the beginning of that protocol. A head that is not whole stays as it is.
    """
    end = begun.find(END, 0, MOST_BYTES)
    head = begun[: end + len(END)] if end >= 0 else b""
    kept, offers = _OFFER.subn(b"", head)
    return kept + begun[len(head) :] if offers else begun


def may_be_inference(begun: BodyBytes) -> bool:
    """Return whether what a request begins with may become a plain request for inference."""
    return bytes(begun[: len(_BEGIN)]) == _BEGIN


def plain_head(head: bytes) -> RequestHead | None:
    """Return what a head says, up to the empty line and with it; None if it is not that of a plain request for inference.

    It is read by the parser that uvicorn has, too: both take and refuse the same.
    """
    url, headers = bytearray(), list[tuple[bytes, bytes]]()
    parser = httptools.HttpRequestParser(
        SimpleNamespace(on_url=url.extend, on_header=lambda name, value: headers.append((name.lower(), value)))
    )
    try:
        parser.feed_data(head)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    place = _INFER.fullmatch(url)
    by_name: dict[bytes, bytes] = {}
    for name, value in headers:
        by_name.setdefault(name, value)
    length = by_name.get(b"content-length", b"")
    if place is None or parser.get_method() != b"POST" or parser.get_http_version() != "1.1" or not parser.should_keep_alive():
        return None
    if not length.isdigit() or len(length) > 18 or not _NOT_PLAIN.isdisjoint(by_name):
        return None
    model, version = (part.decode("latin-1") if part else "" for part in place.groups())
    texts = {name.decode("latin-1"): value.decode("latin-1") for name, value in by_name.items()}
    return RequestHead(model, version, int(length), tuple(headers), texts)
