"""What a coordinator is started with."""

import socket
from contextlib import closing

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
