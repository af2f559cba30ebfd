"""What a coordinator is started with."""

import logging
import socket
from contextlib import closing
from types import SimpleNamespace

import pytest
from bbgrap_coordinator import service

from bbgrap.protocol.addresses import split_address
from bbgrap.transport.local_tokens import find_token
from tests.waiting import until


def test_where_the_port_of_the_last_time_is_taken_there_is_another():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with closing(service._data_plane("127.0.0.1", 0, port, "")) as plane:
            assert split_address(plane.address)[1] not in {"0", str(port)}


def test_the_note_of_a_token_is_there_again_when_something_has_cleared_it(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(service, "NOTED_EVERY_S", 0.02)
    address, token = "tcp://127.0.0.1:59999", tmp_path / "local.token"
    token.write_text("a token")
    undo = service._note(address, token)
    for path in tmp_path.glob("bbgrap-*/*"):
        path.unlink()
    assert until(lambda: find_token(address)) == token
    undo()
    assert find_token(address) is None


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize(
    ("address", "advertise", "joined"),
    [
        ("tcp://192.168.1.10:7070", "", "tcp://192.168.1.10:7070"),
        ("tcp://192.168.1.10:7070", "head", "tcp://head:7070"),
        ("tcp://127.0.0.1:7070", "head", "tcp://head:7070"),
        ("tcp://0.0.0.0:7070", "", "tcp://HOST:7070"),
        ("tcp://[::]:7070", "", "tcp://HOST:7070"),
        ("tcp://*:7070", "head", "tcp://head:7070"),
        ("tcp://127.0.0.1:7070", "", ""),
        ("tcp://[::1]:7070", "", ""),
        ("tcp://localhost:7070", "", ""),
    ],
)
def test_the_line_to_paste_leads_from_other_machines_to_this_one(is_new, address, advertise, joined, tmp_path, monkeypatch, capsys, caplog):
    """It said to join 0.0.0.0 or 127.0.0.1, which are other machines' own."""
    caplog.set_level(logging.INFO)
    (tmp_path / "join.token").write_text("the-token")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    service._say_how_to_join(address, advertise, SimpleNamespace(is_new=is_new, token_file=lambda _: tmp_path / "join.token"))
    said = capsys.readouterr().out + caplog.text
    if joined:
        assert f"bbgrap-agent --join {joined}" in said
        assert ("HOST being an address of this one" in said) == ("HOST" in joined)
        assert ("the-token" in said) == is_new
    else:
        assert "bbgrap-agent" not in said
        assert f"no other machine reaches {address}; for agents elsewhere, give --bind tcp://HOST:7070" in said
