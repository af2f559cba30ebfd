"""What an open page hears: the server-sent events of a server."""

from __future__ import annotations

import http.client
import json
from typing import Any, Self
from urllib.parse import urlsplit


class Page:
    """A page that is open, without a browser."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
        self._connection.request("GET", "/live")
        self.answer = self._connection.getresponse()

    def next(self, name: str) -> Any:  # noqa: ANN401 - whatever JSON holds
        """Return the next event of a name; None: the server has ended the stream."""
        kind = ""
        while line := self.answer.readline().decode().rstrip("\n"):
            kind = line.removeprefix("event: ") if line.startswith("event: ") else kind
            if line.startswith("data: ") and kind == name:
                self.answer.readline()
                return json.loads(line.removeprefix("data: "))
            if line.startswith(("data: ", "retry: ")):
                assert self.answer.readline() == b"\n"
        return None

    def until(self, name: str, wanted: Any) -> Any:  # noqa: ANN401
        """Return the first event of a name for which `wanted(event)` is true."""
        for _ in range(30):
            event = self.next(name)
            if wanted(event):
                return event
        raise AssertionError(f"no such {name}, the last one is {event}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.answer.close()
        self._connection.close()
