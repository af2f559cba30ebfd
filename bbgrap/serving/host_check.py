"""By which names a server may be called: strangers' web pages must not use it through the browser of somebody who reaches it.

Such a page may have a name that its owner points at this server (DNS rebinding): then `Host` is that name. Or it sends requests across,
whose answers it cannot read: then `Origin` is its own. Nobody can point addresses and `localhost` elsewhere; programs send no `Origin`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from ipaddress import ip_address

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

ANY = "*"
"""Instead of a name: whatever it is called, because somebody before it looks."""

_MISDIRECTED = 421
_AUTHORITY = re.compile(r"(\[[^\]]*\]|[^:]*)(?::\d*)?")


class HostCheck:
    """An application that answers only to addresses, `localhost` and its names, and to pages from where it was called.

    All else is refused before it is read.
    """

    def __init__(self, app: ASGIApp, names: Collection[str], own: Collection[str] = ()) -> None:
        """Answer to `names`, and to their pages; to `own` names of the machine, whose other ports may have pages of anybody."""
        self._app = app
        self._names = {name.lower().rstrip(".") for name in names}
        self._own = self._names | {name.lower().rstrip(".") for name in own} | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or say that it is for somebody else."""
        why = "" if scope["type"] != "http" else self.why_not(scope["headers"])
        if not why:
            await self._app(scope, receive, send)
            return
        body = json.dumps({"error": why}).encode()
        await Response(body, _MISDIRECTED, {"content-type": "application/json"})(scope, receive, send)

    def why_not(self, headers: Collection[tuple[bytes, bytes]]) -> str:
        """Return what is wrong with the headers of a request; empty if nothing is."""
        if ANY in self._names:
            return ""
        hosts = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
        for host in hosts:
            if not self._is_own(host):
                return (
                    f"Host: expected an address, localhost or a name of --host, got {host[:100]!r}; serve with --host NAME to be called so"
                )
        for origin in (value.decode("latin-1").lower() for name, value in headers if name == b"origin"):
            asked_by = origin.partition("://")[2]
            if asked_by not in hosts and _host_of(asked_by) not in self._names:
                return (
                    f"Origin: web pages of others may not use this server, got {origin[:100]!r}; serve with --host NAME for pages of NAME"
                )
        return ""

    def _is_own(self, authority: str) -> bool:
        host = _host_of(authority)
        try:
            return host in self._own or bool(ip_address(host.strip("[]")))
        except ValueError:
            return False


def _host_of(authority: str) -> str:
    """Return the host of `HOST[:PORT]`, without a dot at its end; empty if it is none."""
    found = _AUTHORITY.fullmatch(authority)
    return found[1].rstrip(".") if found else ""
