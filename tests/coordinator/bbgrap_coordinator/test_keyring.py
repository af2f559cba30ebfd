"""Keys as a coordinator keeps them: who may say what, enrolling, taking back, replacing, and what is on the disk."""

import json
import os
import ssl
from dataclasses import replace
from queue import SimpleQueue
from threading import Event
from typing import get_args

import pytest
from bbgrap_coordinator import keyring
from bbgrap_coordinator.key_file import read_keys
from bbgrap_coordinator.key_questions import KeyQuestions
from bbgrap_coordinator.key_refusals import SHUT_OUT, refused
from bbgrap_coordinator.keyring import JOIN, LOCAL, MAX_ENTRIES, KeyRing
from bbgrap_coordinator.no_keys import NoKeys

from bbgrap.cluster.types import COORDINATOR
from bbgrap.errors import UsageError
from bbgrap.protocol.client_messages import ClientMessage, Failed
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.key_messages import (
    MAX_KEY_NAME_BYTES,
    CreateToken,
    Enrol,
    Enrolled,
    KeyMessage,
    ListTokens,
    RevokeToken,
    RotateToken,
    TokenMade,
)
from bbgrap.protocol.messages import AgentMessage, Refused
from bbgrap.protocol.roles import MAY, NODE
from bbgrap.protocol.tokens import Role, Token
from bbgrap.transport.certificates import make_request
from bbgrap.transport.control_sockets import SESSION_BYTES
from bbgrap.transport.locks import KeyPair
from bbgrap.transport.tls import fingerprint_of
from tests.messages import AGENT, CLIENT, KEYS

_, REQUEST = make_request("x")


class House:
    """A key ring on a clock that stands still, and what has keys in it."""

    def __init__(self, folder):
        self.path, self.now, self.connected = folder / "keys.json", 1000.0, set()
        self.open()

    def open(self):
        self.ring = KeyRing(self.path, clock=lambda: self.now)
        self.written = SimpleQueue()
        self.questions = KeyQuestions(self.ring, lambda key: int(key in self.connected), self.written.put)

    def peer(self, token):
        return KeyPair.of(token.secret).public + bytes(SESSION_BYTES)

    @property
    def admin(self):
        return self.peer(self.ring.local)

    def do(self, message, who=None):
        """Say something that may be said; return the answer, and whose connections end."""
        who = who or self.admin
        assert self.ring.refusal(who, message) == ""
        (answered,) = self.questions.ask(who, message) or self.questions.written(self.written.get(timeout=30))
        return answered.answer, self.ring.ended()

    def token(self, role, name, lasts_s=0.0):
        answer, ended = self.do(CreateToken(1, role, name, lasts_s))
        assert isinstance(answer, TokenMade), answer
        assert not ended
        return Token.parse(answer.token, "a test")

    def enrol(self, name, token=None):
        pair = KeyPair.make()
        answer, ended = self.do(Enrol(name, pair.public.hex(), REQUEST), self.peer(token or self.token("agent", f"for {name}")))
        return pair.public + bytes(SESSION_BYTES), answer, ended


@pytest.fixture
def house(tmp_path):
    return House(tmp_path)


def test_every_message_of_the_protocol_may_be_said_by_the_roles_of_the_table_and_by_no_others(house):
    kinds = {role.value: house.peer(house.token(role.value, role.value)) for role in Role}
    kinds[NODE], answer, _ = house.enrol("left")
    assert isinstance(answer, Enrolled)
    examples = [*AGENT, *CLIENT, *KEYS]
    assert {type(message) for message in examples} >= {*get_args(AgentMessage), *get_args(ClientMessage), *get_args(KeyMessage)}
    allowed = {kind: set() for kind in kinds}
    for message in examples:
        for kind, peer in kinds.items():
            why = house.ring.refusal(peer, message)
            if "cannot join as" in why:  # the examples are of node 'a'
                assert kind == NODE
                why = ""
            if not why:
                allowed[kind].add(type(message))
            else:
                assert f"{kind} '" in why
                assert type(message).__name__ in why
                told = refused(message, why)
                assert told is None or (isinstance(told, Refused) and not told.retry) or told.fault is Fault.ACCESS
    assert allowed == {kind: set(MAY[kind]) for kind in kinds}
    stranger = KeyPair.make().public + bytes(SESSION_BYTES)
    assert all("was revoked" in house.ring.refusal(stranger, message) for message in examples)


def test_what_the_roles_are_for():
    names = {kind: {message.__name__ for message in allowed} for kind, allowed in MAY.items()}
    assert names["reader"] == {"Hello", "ListNodes", "ListProfiles", "InspectNodes", "ReadStatus", "ReadPlan", "Cancel", "Ask"}
    runs = {"OfferModel", "ModelChunk", "PrepareModel", "RunModel", "MeasureUnknown", "ForkSequence", "EndSequence"}
    assert names["client"] - names["reader"] == runs
    assert names["agent"] == {"Enrol"}
    assert names["admin"] > names["client"] | names["agent"]
    assert names["node"] == {message.__name__ for message in get_args(AgentMessage)} | {"Enrol"}
    assert not names["node"] & names["client"]


def test_keys_outlive_the_coordinator_and_only_its_user_can_read_them(house):
    token = house.token("client", "laptop")
    peer, answer, _ = house.enrol("left")
    fingerprint = fingerprint_of(ssl.PEM_cert_to_DER_cert(answer.certificate.decode()))
    shown = house.ring.data_identity
    local, server = house.ring.local, house.ring.lock.own
    house.open()
    assert house.ring.lock.own == server
    assert house.ring.local == local
    assert not house.ring.is_new
    assert house.ring.admits(KeyPair.of(token.secret).public)
    assert house.ring.name_of(peer) == "node 'left'"
    assert house.ring.data_identity == shown
    assert shown.authority == answer.authority
    join = replace(AGENT[0], name="left")
    assert "was not made for it" in house.ring.refusal(peer, join)
    assert house.ring.refusal(peer, replace(join, fingerprint=fingerprint)) == ""
    assert "cannot join as 'right'" in house.ring.refusal(peer, replace(join, name="right", fingerprint=fingerprint))
    for file in (house.path, house.ring.token_file(LOCAL), house.ring.token_file(JOIN)):
        assert file.stat().st_mode & 0o777 == 0o600
    assert token.secret.hex() not in house.path.read_text()
    assert Token.parse(house.ring.token_file(JOIN).read_text(), "a test").role is Role.AGENT


def test_a_damaged_file_is_an_error_and_stays(house):
    for content in ("", "{}", "[]", json.dumps({"version": 2}), house.path.read_text().replace('"kind": "admin"', '"kind": "king"')):
        house.path.write_text(content)
        with pytest.raises(UsageError, match="expected the keys of this cluster"):
            read_keys(house.path)
        assert house.path.read_text() == content


def test_what_is_taken_back_is_worth_nothing_at_once_and_after_a_restart(house):
    token = house.token("client", "laptop")
    answer, ended = house.do(RevokeToken(1, "laptop"))
    key = KeyPair.of(token.secret).public
    assert ended == [key]
    assert [status.revoked for status in answer.keys if status.name == "laptop"] == [1000.0]
    for _ in range(2):
        assert not house.ring.admits(key)
        assert "was revoked" in house.ring.refusal(house.peer(token), ListTokens(1))
        house.open()
    answer, _ = house.do(RevokeToken(2, "laptop"))
    assert "no valid token or node is called 'laptop'" in answer.reason


def test_a_token_that_expires_says_so_once(house):
    token = house.token("client", "guest", 60.0)
    key = KeyPair.of(token.secret).public
    house.now += 59
    assert house.ring.ended() == []
    house.now += 2
    assert house.ring.ended() == [key]
    assert house.ring.ended() == []
    assert not house.ring.admits(key)


def test_a_clock_that_was_ahead_shuts_nobody_out_for_good(house):
    key = KeyPair.of(house.token("client", "guest", 60.0).secret).public
    house.now += 61
    assert house.ring.ended() == [key]
    house.now -= 31
    assert house.ring.ended() == []
    assert house.ring.admits(key)


def test_a_replaced_token_goes_on_for_a_while(house):
    old = house.token("client", "laptop")
    answer, ended = house.do(RotateToken(1, "laptop", 30.0))
    new = Token.parse(answer.token, "a test")
    assert not ended
    assert new != old
    both = [KeyPair.of(token.secret).public for token in (old, new)]
    assert all(map(house.ring.admits, both))
    house.now += 31
    assert house.ring.ended() == both[:1]
    assert list(map(house.ring.admits, both)) == [False, True]
    before = Token.parse(house.ring.token_file(JOIN).read_text(), "a test")
    answer, ended = house.do(RotateToken(2, JOIN, 0.0))
    assert house.ring.token_file(JOIN).read_text() == answer.token
    assert ended == [KeyPair.of(before.secret).public]


def test_a_token_that_expires_when_something_else_changes_is_told_of(house):
    key = KeyPair.of(house.token("client", "guest", 60.0).secret).public
    house.now += 61
    _, ended = house.do(CreateToken(1, "client", "laptop", 0.0))
    assert not house.ring.admits(key)
    assert ended == [key]


def test_whether_a_key_is_valid_is_told_by_the_clock_that_decides(house):
    house.token("client", "guest", 60.0)

    def valid():
        return [status.valid for status in house.do(ListTokens(1))[0].keys if status.name == "guest"]

    before = valid()
    house.now += 61
    after = valid()
    house.now -= 61
    house.do(RevokeToken(2, "guest"))
    assert (before, after, valid()) == ([True], [False], [False])


def test_tokens_that_were_replaced_have_names_of_their_own_that_can_be_told(house):
    for name in ("laptop", "\N{EURO SIGN}" * (MAX_KEY_NAME_BYTES // 3)):
        house.token("client", name)
        for _ in range(2):
            house.do(RotateToken(1, name, 60.0))
    answer, _ = house.do(ListTokens(2))
    names = [status.name for status in answer.keys]
    assert len(set(names)) == len(names) == 8
    assert {"laptop", "laptop (rotated)", "laptop (rotated 2)"} < set(names)
    assert max(len(name.encode()) for name in names) <= MAX_KEY_NAME_BYTES


def test_a_token_and_the_one_that_replaces_it_are_written_together(house, monkeypatch):
    house.token("client", "laptop")
    written = []
    monkeypatch.setattr(keyring, "write_keys", lambda _, kept, beside: written.append([entry.name for entry in kept.entries]))
    house.do(RotateToken(1, "laptop", 30.0))
    assert written == [[LOCAL, JOIN, "laptop (rotated)", "laptop"]]


def test_who_asks_again_before_the_answer_came_gets_the_same_certificate(house):
    peer, first, _ = house.enrol("left")
    assert (house.ring.key_of_node("left"), house.ring.key_of_node("right")) == (peer[:32].hex(), "")
    again, _ = house.do(Enrol("left", peer[:32].hex(), REQUEST), peer)
    assert again.certificate == first.certificate


def test_who_asks_again_does_not_wait_for_the_disk(house, monkeypatch):
    """A node asks every second until it hears the answer: with a slow disk, each would have made all others wait the longer."""
    token = house.token("agent", "hall")
    peer, first, _ = house.enrol("left", token)
    monkeypatch.setattr(keyring, "write_keys", lambda *_: pytest.fail("written again"))
    for who in (house.peer(token), peer):
        house.now += 1
        again, _ = house.do(Enrol("left", peer[:32].hex(), REQUEST), who)
        assert again == first


def test_a_node_renews_its_own_certificate_and_enrols_nobody(house):
    peer, _, _ = house.enrol("left")
    answer, _ = house.do(Enrol("left", peer[:32].hex(), make_request("y")[1]), peer)
    assert answer.certificate
    answer, _ = house.do(Enrol("left", peer[:32].hex(), b"no request"), peer)
    assert "expected a request of `make_request`" in answer.reason
    for message in (Enrol("left", KeyPair.make().public.hex(), b""), Enrol("right", peer[:32].hex(), b"")):
        answer, _ = house.do(message, peer)
        assert "may renew its own certificate only" in answer.reason


def test_a_name_belongs_to_the_machine_that_lives(house):
    token = house.token("agent", "hall")
    first, _, _ = house.enrol("left", token)
    house.ring.refusal(first, AGENT[0])  # it has spoken
    house.connected.add(first[:32])
    _, answer, _ = house.enrol("left", token)
    assert answer == Refused("the name 'left' is taken by a live agent; choose another with --name", retry=True)
    assert house.ring.admits(first[:32])
    house.connected.clear()
    answer, ended = house.do(Enrol("left", KeyPair.make().public.hex(), b"no request"), house.peer(token))
    assert (type(answer), ended) == (Refused, [])
    assert house.ring.admits(first[:32])
    second, answer, ended = house.enrol("left", token)
    assert isinstance(answer, Enrolled)
    assert ended == [first[:32]]
    assert house.ring.admits(second[:32])
    assert not house.ring.admits(first[:32])
    for name in (COORDINATOR, LOCAL, "hall", "", " x", "a\nb"):
        _, answer, _ = house.enrol(name, token)
        assert isinstance(answer, Refused), name
    answer, _ = house.do(Enrol("third", second[:32].hex(), b""), house.peer(token))
    assert "this key is known already" in answer.reason


def test_the_name_of_a_node_that_is_starting_is_its_own_until_it_speaks_and_not_for_long(house):
    """Of two machines with one host name, the second took the first one's key, and the first was told that its key had been revoked."""
    token = house.token("agent", "hall")
    first, _, _ = house.enrol("host", token)
    _, answer, ended = house.enrol("host", token)
    taken = "the name 'host' is taken by another agent, which has just enrolled and is starting; choose another with --name"
    assert (answer, ended) == (Refused(taken, retry=True), [])
    assert house.ring.admits(first[:32])
    _, answer, _ = house.enrol("host-2", token)
    assert isinstance(answer, Enrolled)
    answer, _ = house.do(Enrol("host", first[:32].hex(), REQUEST), house.peer(token))
    assert isinstance(answer, Enrolled)  # said again
    house.now += keyring.HELD_S
    second, answer, ended = house.enrol("host", token)
    assert (type(answer), ended) == (Enrolled, [first[:32]])
    house.ring.refusal(second, AGENT[0])
    third, answer, _ = house.enrol("host", token)  # it has spoken, and is gone
    assert isinstance(answer, Enrolled)
    house.now -= 3600
    _, answer, ended = house.enrol("host", token)
    assert (type(answer), ended) == (Enrolled, [third[:32]])


def test_names_and_roles_that_are_none_are_wrong_usage(house):
    made = (CreateToken(1, "king", "x", 0.0), CreateToken(1, "client", JOIN, 0.0), CreateToken(1, "client", "", 0.0))
    for message in (*made, RevokeToken(1, "nobody"), RotateToken(1, "nobody", 0.0)):
        answer, _ = house.do(message)
        assert isinstance(answer, Failed)
        assert answer.fault is Fault.USAGE


def test_there_are_only_so_many_keys_and_those_taken_back_go_first(house, monkeypatch):
    monkeypatch.setattr("bbgrap_coordinator.keyring.MAX_ENTRIES", 5)
    assert MAX_ENTRIES > 5
    for number in range(3):
        house.token("client", str(number))
    answer, _ = house.do(CreateToken(1, "client", "more", 0.0))
    assert "the most there may be" in answer.reason
    house.do(RevokeToken(1, "1"))
    house.token("client", "more")
    assert {status.name for status in house.do(ListTokens(1))[0].keys} == {LOCAL, JOIN, "0", "2", "more"}


def test_machines_with_a_new_name_at_each_start_do_not_keep_others_out(house, monkeypatch):
    monkeypatch.setattr("bbgrap_coordinator.keyring.MAX_ENTRIES", 6)
    token = house.token("agent", "for all")
    stays, _, _ = house.enrol("stays", token)
    house.connected.add(stays[:32])
    for number in range(20):
        house.now += 1 + keyring.HELD_S / 2  # one more is still starting
        peer, answer, ended = house.enrol(f"pod-{number}", token)
        assert isinstance(answer, Enrolled), answer
        assert len(ended) == (number > 1)
    assert {status.name for status in house.do(ListTokens(1))[0].keys} == {LOCAL, JOIN, "for all", "stays", "pod-18", "pod-19"}
    assert house.ring.refusal(peer, AGENT[0]) != SHUT_OUT
    house.open()  # and after a restart
    house.now += keyring.HELD_S
    assert isinstance(house.enrol("pod-0", token)[1], Enrolled)  # one that was forgotten comes back


def test_of_few_keys_it_is_counted_how_often_they_enrol(house, monkeypatch):
    monkeypatch.setattr("bbgrap_coordinator.key_questions.MAX_RATES", 4)
    for number in range(9):
        house.enrol(f"pod-{number}")
    assert len(house.questions._enrolments) <= 4


def test_what_cannot_be_written_changes_nothing(house, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    node = house.token("agent", "hall")
    before = house.path.read_text()
    monkeypatch.setattr(os, "fsync", full)
    _, answer, _ = house.enrol("left", node)
    assert answer.retry
    assert answer.unable  # the disk may have room again: it is waited for
    answer, _ = house.do(CreateToken(1, "client", "x", 0.0))
    assert f"nothing has changed, for they cannot be written: '{house.path}' on the coordinator's machine: No space" in answer.reason
    assert house.path.read_text() == before
    assert list(house.path.parent.glob(".*")) == []
    assert all(status.name != "x" for status in house.do(ListTokens(1))[0].keys)


def test_a_token_file_without_room_leaves_the_keys_as_they_were(house, monkeypatch):
    """Keys of a new token without the file that holds it would shut out whoever enrols with the old file."""
    before = {path.name: path.read_bytes() for path in house.path.parent.iterdir()}
    written = []

    def full(descriptor):
        written.append(descriptor)
        if len(written) > 1:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    answer, _ = house.do(RotateToken(1, JOIN, 0.0))
    assert len(written) == 2
    assert "nothing has changed" in answer.reason
    assert {path.name: path.read_bytes() for path in house.path.parent.iterdir()} == before


def test_what_is_asked_while_the_disk_writes_is_answered_in_turn_from_what_is_there_then(house, monkeypatch):
    join, guest = house.token("agent", "hall"), house.token("agent", "guest")
    key = KeyPair.make().public.hex()
    disk = Event()
    write = keyring.write_keys
    monkeypatch.setattr(keyring, "write_keys", lambda *kept: (disk.wait(30), write(*kept)))
    asked = [
        (house.peer(join), Enrol("left", key, REQUEST)),
        (house.peer(join), Enrol("left", KeyPair.make().public.hex(), REQUEST)),
        (house.peer(guest), Enrol("right", KeyPair.make().public.hex(), REQUEST)),
        (house.admin, CreateToken(1, "client", "laptop", 0.0)),
        (house.admin, RevokeToken(2, "guest")),
        (house.peer(guest), Enrol("late", KeyPair.make().public.hex(), REQUEST)),
        (house.admin, CreateToken(3, "reader", "laptop", 0.0)),
    ]
    for who, message in (*asked, *asked):  # who waits for long says it again
        assert house.questions.ask(who, message) == []
    assert house.questions.writing == {(house.admin, call) for call in (1, 2, 3)}
    assert house.ring.key_of_node("left") == ""
    disk.set()
    answers = []
    while house.questions.writing:
        answers += house.questions.written(house.written.get(timeout=30))
    assert [answered.question for answered in answers] == [message for _, message in asked if getattr(message, "name", "") != "late"]
    assert [answered.fault != "" for answered in answers] == [False, True, False, False, False, True]
    assert house.ring.key_of_node("left") == key
    house.open()
    assert house.ring.key_of_node("left") == key


def test_an_open_coordinator_lets_everybody_in_and_has_no_tokens():
    keys = NoKeys()
    assert keys.refusal(b"", ListTokens(1)) == ""
    answer, _ = keys.answer(b"", ListTokens(1), lambda _: 0)
    assert "runs with --insecure" in answer.reason
    answer, _ = keys.answer(b"", Enrol("a", "00" * 32, b""), lambda _: 0)
    assert answer.certificate == b""
