from bbgrap.protocol.data import Frame, Kind
from bbgrap.protocol.messages import Peer
from bbgrap.transport.pings import LONG_BYTES, MAX_PONG_BYTES, PingAnswers, question
from tests.inproc import InprocNetwork


def test_only_those_that_may_ask_are_answered():
    network = InprocNetwork()
    plane, friend, stranger = network.plane(), network.plane(), network.plane()
    answers = PingAnswers(plane)
    ping = Frame(Kind.PING, 0, 0, 7, 100)
    answers.answer(ping, friend.address.encode())
    answers.allow((Peer(0, "friend", friend.address),))
    for payload in (friend.address.encode(), stranger.address.encode(), b"\xff" * 1000, b""):
        answers.answer(ping, payload)
    answers.answer(Frame(Kind.PING, 0, 0, 8, 1 << 31), friend.address.encode())
    first, second = friend.receive(0), friend.receive(0)
    assert Frame.parse(first.header) == Frame(Kind.PONG, 0, 0, 7, 0)
    assert len(first.payload) == 100
    assert len(second.payload) == MAX_PONG_BYTES
    answers.allow(())
    answers.answer(ping, friend.address.encode())
    assert friend.receive(0) is stranger.receive(0) is None


def test_the_address_to_answer_to_is_that_of_who_asks():
    network = InprocNetwork()
    plane, friend, victim = network.plane(), network.plane(), network.plane()
    answers = PingAnswers(plane)
    answers.allow((Peer(0, "friend", friend.address, "friend's"), Peer(1, "victim", victim.address, "victim's")))
    ping = Frame(Kind.PING, 0, 0, 7, 100)
    answers.answer(ping, victim.address.encode(), "friend's")
    answers.answer(ping, friend.address.encode(), "")
    answers.answer(ping, b"tcp://nobody:1", "")
    assert victim.receive(0) is friend.receive(0) is None
    answers.answer(ping, friend.address.encode(), "friend's")
    assert friend.receive(0) is not None


def test_a_question_may_be_as_long_as_no_packet_is():
    network = InprocNetwork()
    plane, friend = network.plane(), network.plane()
    answers = PingAnswers(plane)
    answers.allow((Peer(0, "friend", friend.address),))
    payload = question(friend.address, LONG_BYTES)
    assert len(payload) == LONG_BYTES
    answers.answer(Frame(Kind.PING, 0, 0, 7, LONG_BYTES), payload)
    assert len(friend.receive(0).payload) == LONG_BYTES
