"""An agent's first contact with its coordinator."""

import socket
import threading

import pytest
import zmq
from bbgrap_agent import enrolment
from bbgrap_agent.enrolment import KeyFile, enrol

from bbgrap.errors import AccessError, ClusterUnavailableError, ExecutionError
from bbgrap.protocol.agent_directions import TO_AGENT
from bbgrap.protocol.key_messages import Enrolled
from bbgrap.protocol.messages import Refused
from bbgrap.protocol.tokens import Role, Token
from bbgrap.transport.control_server import ControlServer
from bbgrap.transport.credentials import Credentials
from bbgrap.transport.locks import KeyPair

ADDRESS = "tcp://127.0.0.1:9"


def test_a_token_that_was_replaced_after_it_had_been_read_is_read_again(tmp_path, monkeypatch):
    """An agent that was started while its token was rotated ended, and no unit starts such a one again."""
    server = KeyPair.make().public
    tokens = [Token(Role.AGENT, server, KeyPair.make().secret) for _ in range(3)]
    file, replaced, asked = tmp_path / "token", iter(tokens[1:]), []
    file.write_text(tokens[0].text)

    def ask(_, lock, message):
        asked.append(lock.own.secret)
        if asked[-1] != tokens[2].secret:
            file.write_text(next(replaced).text)
            raise AccessError("its key is not known")
        return Enrolled(b"", b"")

    monkeypatch.setattr(enrolment, "_ask", ask)
    enrol(ADDRESS, Credentials(token_file=file), "a", KeyFile(tmp_path, ADDRESS, "a"))
    assert asked == [token.secret for token in tokens]


def test_a_token_that_stays_as_it_is_and_opens_nothing_is_an_error(tmp_path, monkeypatch):
    def ask(*_):
        raise AccessError("its key is not known")

    file = tmp_path / "token"
    file.write_text(Token(Role.AGENT, KeyPair.make().public, KeyPair.make().secret).text)
    monkeypatch.setattr(enrolment, "_ask", ask)
    with pytest.raises(AccessError, match="its key is not known"):
        enrol(ADDRESS, Credentials(token_file=file), "b", KeyFile(tmp_path, ADDRESS, "b"))


def test_who_has_no_token_is_asked_for_one_only_where_a_coordinator_is(tmp_path, monkeypatch):
    """An agent that was started before its coordinator was told to get a token, and ended as one that no unit starts again."""
    for name in ("BBGRAP_TOKEN", "BBGRAP_TOKEN_FILE", "BBGRAP_INSECURE"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(AccessError, match="wants a token"):
            enrol(address, Credentials(), "c", KeyFile(tmp_path, address, "c"))
    with pytest.raises(ClusterUnavailableError, match=r"no coordinator answers at .*; start one with"):
        enrol(address, Credentials(), "c", KeyFile(tmp_path, address, "c"))


def enrol_at(answers, folder):
    """Enrol at a coordinator that gives these answers, one to each question, and no more."""
    with zmq.Context() as context:
        server, ended, left = ControlServer(context, "tcp://127.0.0.1:0"), threading.Event(), list(answers)

        def serve():
            while left and not ended.is_set():
                if (received := server.receive()) is None:
                    server.socket.poll(50)
                else:
                    server.send(received[0], TO_AGENT.encode(left.pop(0)))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            enrol(server.address, Credentials(insecure=True), "d", KeyFile(folder, server.address, "d"))
        finally:
            ended.set()
            thread.join()
            server.close()


def test_a_coordinator_that_cannot_enrol_now_is_waited_for(tmp_path, monkeypatch, caplog):
    """Its disk was full for 10 s, and all agents that were starting ended, as if their names were taken."""
    monkeypatch.setattr(enrolment, "AGAIN_S", 0.05)
    monkeypatch.setattr(enrolment, "REFUSED_S", 0.0)
    unable = Refused("keys: no room", retry=True, unable=True)
    enrol_at((unable, unable, unable, Enrolled(b"", b"")), tmp_path)
    assert [record.message.partition(" cannot ")[2] for record in caplog.records] == ["enrol now, and is asked until it can: keys: no room"]
    with pytest.raises(ExecutionError, match="taken"):
        enrol_at((unable, Refused("taken", retry=True)), tmp_path)
