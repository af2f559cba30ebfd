"""Strangers' web pages do not reach a server through a browser: not by a name of theirs, and not from their own."""

import asyncio
import json
import socket
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import Response

from bbgrap.serving.host_check import ANY, HostCheck
from tests.serving.conftest import serving

ADDRESSES = st.ip_addresses().map(lambda address: f"[{address}]" if address.version == 6 else str(address))
PORTS = st.one_of(st.just(""), st.integers(1, 65535).map(":{}".format))
DOMAINS = st.from_regex(r"[a-zA-Z0-9-]{1,20}(\.[a-zA-Z0-9-]{1,20}){0,3}\.(com|example|onion)\.?", fullmatch=True)


def status(names=(), **headers):
    """What becomes of a request with these headers, by the application itself."""
    sent = []

    async def send(message):
        sent.append(message)

    async def ask():
        scope = {"type": "http", "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]}
        await HostCheck(Response(b""), names)(scope, None, send)

    asyncio.run(ask())
    return sent[0]["status"]


@given(ADDRESSES, PORTS)
def test_addresses_are_nobodys_to_point_elsewhere(address, port):
    assert status(host=address + port) == 200


@given(DOMAINS, PORTS, ADDRESSES)
def test_names_are_known_or_refused(domain, port, address):
    assert status(host=domain + port) == 421
    assert status(host=f"{address}.{domain}{port}") == 421
    assert status([domain], host=domain + port) == 200
    assert status([domain.upper()], host=domain.rstrip(".").lower() + port) == 200
    assert status([domain], host=f"evil.{domain}{port}") == 421
    assert status([ANY], host=domain) == 200


@given(st.text(st.characters(max_codepoint=255)))
def test_whatever_else_host_says_is_refused(text):
    assert status(host=f"evil{text}.example") == 421


@given(DOMAINS, ADDRESSES, PORTS)
def test_other_pages_requests_are_refused(domain, address, port):
    own = address + port
    assert status(host=own, origin=f"http://{own}") == 200
    assert status(host=own) == 200
    for other in (f"http://{domain}", f"http://{domain}{port}", "null", "file://", f"http://{address}1{port}", f"http://{own}.{domain}"):
        assert status(host=own, origin=other) == 421
    assert status([domain], host=own, origin=f"https://{domain}") == 200
    assert status(host="localhost:8000", origin="http://localhost:3000") == 421


@pytest.mark.cluster
def test_a_server_refuses_them_on_every_route(cluster, models, tmp_path):
    asked = [("GET", path) for path in ("/", "/live", "/metrics", "/v2", "/v2/models/rows")]
    asked += [("POST", path) for path in ("/v2/models/rows/infer", "/v2/repository/models/rows/unload")]
    with serving(cluster.address, models, tmp_path / "log", "--host", "models.example") as server, server.http() as http:
        for method, path in asked:
            answered, content = http.ask(method, path, b"{}" if method == "POST" else None, {"Host": "evil.example"})
            assert (answered, "--host NAME" in json.loads(content)["error"]) == (421, True), path
        for name in ("evil.example", "localhost:1", "127.0.0.1:1", f"{socket.gethostname()}:1"):  # other ports are other people's
            assert http.ask("POST", "/v2/repository/models/rows/unload", b"{}", {"Origin": f"http://{name}"})[0] == 421, name
        for name in (urlsplit(server.url).netloc, "models.example", "models.example:1"):
            assert http.ask("POST", "/v2/repository/models/rows/load", b"{}", {"Origin": f"http://{name}"})[0] == 200, name
        for name in ("models.example", "MODELS.example:80", "localhost", socket.gethostname(), "127.0.0.1:1", "[::1]"):
            assert http.ask("GET", "/v2/models/rows", headers={"Host": name})[0] == 200, name
