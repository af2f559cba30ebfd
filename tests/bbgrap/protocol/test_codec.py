"""P7 of docs: what is encoded is decoded to the same; arbitrary bytes are a `RemoteProtocolError` and nothing else."""

import dataclasses
import tracemalloc
from typing import get_args

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.errors import LocalProtocolError, RemoteProtocolError
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as client
from bbgrap.protocol import key_messages as keys
from bbgrap.protocol import messages as m
from bbgrap.protocol.agent_directions import FROM_AGENT
from bbgrap.protocol.directions import TO_AGENT, TO_CLIENT, TO_COORDINATOR
from bbgrap.protocol.key_messages import MAX_CERTIFICATE_BYTES
from bbgrap.protocol.limits import MAX_ASKED, MAX_CHUNK_BYTES, is_inner_name, is_plain_name
from bbgrap.runtime.schedule import LocalPart, LocalReceive, LocalRun, LocalSend
from tests.messages import AGENT, ANSWERS, CLIENT, COMMANDS, DIGEST, KEYS, PEERS, PROFILE, RECORD, SCHEDULE, SEGMENT

CASES = [(TO_COORDINATOR, x) for x in (*AGENT, *CLIENT, *KEYS)] + [(TO_AGENT, x) for x in COMMANDS] + [(TO_CLIENT, x) for x in ANSWERS]
CODECS = (TO_COORDINATOR, TO_AGENT, TO_CLIENT)


@pytest.mark.parametrize(("codec", "message"), CASES, ids=lambda x: type(x).__name__)
def test_round_trip(codec, message):
    assert codec.decode(codec.encode(message)) == message
    assert codec.decode([memoryview(bytes(frame)) for frame in codec.encode(message)]) == message


def test_every_message_has_a_case():
    unions = (m.AgentMessage, client.ClientMessage, keys.KeyMessage, m.AgentCommand, client.ClientAnswer)
    assert {type(message) for _, message in CASES} == {kind for union in unions for kind in get_args(union)} | {keys.Enrolled}


def test_what_an_agent_says_is_said_to_the_coordinator():
    for message in (*AGENT, next(message for message in KEYS if isinstance(message, keys.Enrol))):
        assert TO_COORDINATOR.decode(FROM_AGENT.encode(message)) == message


@pytest.mark.parametrize(("codec", "message"), CASES, ids=lambda x: type(x).__name__)
def test_another_direction_is_refused(codec, message):
    for other in CODECS:
        if other is not codec:
            with pytest.raises(LocalProtocolError, match="never sent in this direction"):
                other.encode(message)
            with pytest.raises(RemoteProtocolError, match="no message of this direction"):
                other.decode(codec.encode(message))


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_arbitrary_frames(frames):
    for codec in CODECS:
        try:
            codec.decode(frames)
        except RemoteProtocolError:
            continue


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(st.sampled_from(CASES), st.data())
def test_any_damage_to_a_field_is_seen_or_harmless(case, data):
    codec, message = case
    header, *payload = codec.encode(message)
    version, name, fields = msgpack.unpackb(header)
    place = data.draw(st.integers(0, max(0, len(fields) - 1)))
    damaged = [*fields[:place], data.draw(PLAIN), *fields[place + 1 :]]
    try:
        decoded = codec.decode([msgpack.packb([version, name, damaged]), *payload])
    except RemoteProtocolError:
        return
    assert codec.decode(codec.encode(decoded)) == decoded


@given(st.sampled_from(CASES), st.data())
def test_cut_and_flipped_bytes(case, data):
    codec, message = case
    header, *payload = codec.encode(message)
    position = data.draw(st.integers(0, len(header) - 1))
    with pytest.raises(RemoteProtocolError):
        codec.decode([header[:position], *payload])
    flipped = header[:position] + bytes([header[position] ^ data.draw(st.integers(1, 255))]) + header[position + 1 :]
    try:
        decoded = codec.decode([flipped, *payload])
    except RemoteProtocolError:
        return
    assert codec.decode(codec.encode(decoded)) == decoded


def refuses(codec, message, text, **fields):
    with pytest.raises(RemoteProtocolError, match=text):
        codec.decode(codec.encode(dataclasses.replace(message, **fields)))


def test_limits_and_laws_are_kept():
    deploy = COMMANDS[4]
    refuses(TO_AGENT, deploy, "Deploy: segment 0: there are 0", segments=())
    refuses(TO_AGENT, deploy, "peers: expected devices 0 to 2", peers=PEERS[:2])
    refuses(TO_AGENT, deploy, "a digest is no SHA-256", segments=(dataclasses.replace(SEGMENT, digest="../../etc/passwd"),))
    twice = dataclasses.replace(SCHEDULE, steps=(*SCHEDULE.steps, LocalRun(0, (0,), (1,))))
    refuses(TO_AGENT, deploy, "fills buffer 1 a second time", schedule=twice)
    for steps, fault in (
        (
            (LocalReceive(0, 1, (0,)), LocalSend(1, 2, (LocalPart(0, None),), "float16")),
            "message 1 goes to the host as float16, expected exact",
        ),
        ((LocalReceive(1, 2, (3,), "float8"),), "expected one of dictionary, exact, float16, int8, got float8"),
        ((LocalReceive(1, 1, (3,), "dictionary"),), "message 1 comes from device 1 as dictionary, expected that of the host only"),
    ):
        refuses(TO_AGENT, deploy, fault, schedule=dataclasses.replace(SCHEDULE, steps=steps))
    refuses(TO_COORDINATOR, AGENT[3], "expected a SHA-256 in hex", digests=("zz",))
    refuses(TO_COORDINATOR, CLIENT[2], "expected a plain file name", files=(client.ModelFile("../m", DIGEST, 5),))
    refuses(TO_COORDINATOR, client.Ask(()), "at most 4096 entries", calls=tuple(range(MAX_ASKED + 1)))
    refuses(TO_COORDINATOR, KEYS[0], "at most 8192 bytes", request=bytes(MAX_CERTIFICATE_BYTES + 1))
    refuses(TO_COORDINATOR, AGENT[0], "at most 1024 bytes", name="x" * 2000)
    refuses(TO_COORDINATOR, AGENT[2], "finite number", seconds=float("nan"))
    refuses(TO_COORDINATOR, AGENT[5], "integer from 0", epoch=-1)
    recorded = next(message for message in AGENT if isinstance(message, m.Recorded))
    for times, text in (
        (RECORD.times[:2], "as many labels as times"),
        (((5, 8, 9), (9, 9, 7), (12, 12, 13)), "do not follow each other"),
    ):
        refuses(TO_COORDINATOR, recorded, text, record=dataclasses.replace(RECORD, times=times))
    refuses(TO_COORDINATOR, CLIENT[4], "expected one of batch, channels", options=bad_options())


def test_what_the_other_side_would_refuse_for_its_size_is_not_sent():
    header, _ = TO_COORDINATOR.encode(CLIENT[3])
    with pytest.raises(RemoteProtocolError, match="at most 1 payload frames"):
        TO_COORDINATOR.decode([header, bytes(MAX_CHUNK_BYTES + 1)])
    with pytest.raises(LocalProtocolError, match="at most 1 payload frames"):
        TO_COORDINATOR.encode(dataclasses.replace(CLIENT[3], payload=(bytes(MAX_CHUNK_BYTES + 1),)))


def test_files_may_have_any_kind_of_space_in_their_names():
    assert all(
        map(is_plain_name, ("model\N{NO-BREAK SPACE}v2.onnx", "4\N{NARROW NO-BREAK SPACE}pm.onnx", "a b", "\N{GREEK SMALL LETTER ALPHA}"))
    )
    assert not any(
        map(is_plain_name, ("", ".", "..", "a/b", "a\\b", "a\nb", "a\x7f", "a\N{LINE SEPARATOR}b", "a\N{RIGHT-TO-LEFT OVERRIDE}b"))
    )


def test_files_of_models_may_lie_in_folders_but_nowhere_else():
    assert all(map(is_inner_name, ("w", "w/weights.bin", "a b/c/d", "/".join("abcdefghi"), "x" * 127 + "/" + "y" * 127)))
    outside = ("/w", "../w", "w/../../x", "w/..", "./w", "w/.", "w//x", "w/", "/", "", "w/a\\b", "w/a\nb")
    assert not any(map(is_inner_name, (*outside, "/".join("abcdefghij"), "x" * 128 + "/" + "y" * 127, "w/\udc80")))


def bad_options():
    options = PlanOptions()
    object.__setattr__(options, "split", "diagonal")
    return options


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ((5, 0, 1), 0.0),
        ((5, 0, 1), -1.0),
        ((5, 0, 2), -1.0),
        ((7, 0, 1), -1.0),
        ((7, 0, 4), -1.0),
    ],
)
def test_a_profile_that_cannot_be_is_refused(place, value):
    """It would be believed by every plan after it: an empty link divides by zero, a negative time is worth waiting for."""
    message = msgpack.unpackb(bytes(TO_COORDINATOR.encode(m.Measured(1, PROFILE, ""))[0]))
    assert TO_COORDINATOR.decode([msgpack.packb(message)]) == m.Measured(1, PROFILE, "")
    *way, last = place
    inner = message[2][1]
    for step in way:
        inner = inner[step]
    inner[last] = value
    with pytest.raises(RemoteProtocolError, match=r"expected .* at least 0"):
        TO_COORDINATOR.decode([msgpack.packb(message)])


def test_another_version_is_named():
    header = msgpack.packb([99, "Heartbeat", []])
    with pytest.raises(RemoteProtocolError, match=f"this side speaks protocol {m.PROTOCOL_VERSION}, the other 99"):
        TO_COORDINATOR.decode([header])


def test_depth_and_length_bombs():
    for header in (
        b"\x91" * 5000 + b"\xc0",
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x93\x01\xa9Heartbeat" + b"\xdd\x7f\xff\xff\xff",
    ):
        with pytest.raises(RemoteProtocolError):
            TO_COORDINATOR.decode([header])


def test_a_deployment_of_many_devices_is_refused_before_they_are_counted():
    schedule = dataclasses.replace(SCHEDULE, host=2**40)
    tracemalloc.start()
    refuses(TO_AGENT, COMMANDS[4], "peers: expected devices 0 to 1099511627776 in order", schedule=schedule)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
