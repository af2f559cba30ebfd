"""Early messages, whatever comes: bounded in bytes, and fair."""

import numpy as np
import pytest
from bbgrap_agent import early_messages
from bbgrap_agent.early_messages import EarlyMessages

A, B = ("10.0.0.1", 0), ("10.0.0.2", 1)


def parts(nbytes):
    return [np.zeros(nbytes, np.uint8)]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(early_messages, "MAX_SENDER_BYTES", 100_000)
    monkeypatch.setattr(early_messages, "MAX_LARGE_MESSAGES", 2)
    monkeypatch.setattr(early_messages, "MAX_BYTES", 250_000)


def test_what_is_kept_is_given_once_and_in_order(small):
    messages = EarlyMessages()
    for message, sender in ((1, A), (2, B), (3, A)):
        assert messages.keep((7, 1), sender, message, parts(10), 10) == ()
    assert [message for message, _ in messages.take((7, 1))] == [1, 3, 2]
    assert messages.take((7, 1)) == []
    assert (messages.nbytes, messages._shares) == (0, {})


def test_the_oldest_of_the_same_sender_makes_room(small):
    messages = EarlyMessages()
    assert messages.keep((7, 1), B, 1, parts(40_000), 40_000) == ()
    assert [messages.keep((7, number), A, 1, parts(40_000), 40_000) for number in range(1, 5)] == [(), (), ((7, 1),), ((7, 2),)]
    assert [len(messages.take((7, number))) for number in range(1, 5)] == [1, 0, 1, 1]


def test_a_few_messages_may_be_as_large_as_they_like(small):
    messages = EarlyMessages()
    for number in (1, 2):
        assert messages.keep((7, number), A, 1, parts(120_000), 120_000) == ()


def test_in_all_whoever_has_brought_most_makes_room(small):
    messages = EarlyMessages()
    assert messages.keep((7, 1), A, 1, parts(90_000), 90_000) == ()
    assert messages.keep((7, 2), B, 1, parts(80_000), 80_000) == ()
    assert messages.keep((7, 3), ("10.0.0.3", 2), 1, parts(85_000), 85_000) == ((7, 1),)


def test_many_empty_messages_take_room_too(small):
    messages = EarlyMessages()
    for number in range(1000):
        messages.keep((7, number), A, 1, [], 0)
    assert messages._shares[A].count < 100


def test_a_deployment_that_has_ended_leaves_nothing(small):
    messages = EarlyMessages()
    messages.keep((7, 1), A, 1, parts(10), 10)
    messages.keep((8, 1), A, 1, parts(10), 10)
    messages.drop_all(7)
    assert messages.take((7, 1)) == []
    assert len(messages.take((8, 1))) == 1
    assert messages.nbytes == 0
