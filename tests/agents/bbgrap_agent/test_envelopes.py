"""What is written in place are the bytes that packing anew gives, request after request."""

import numpy as np
import pytest
from bbgrap_agent.prepared_messages import Envelope, envelopes_of
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.errors import ModelError
from bbgrap.graph.types import DType
from bbgrap.protocol.data import Frame, Headers, Kind
from bbgrap.protocol.message_layout import letters_sent, pack
from bbgrap.runtime.blocked import BlockedCopies, blocked
from bbgrap.runtime.schedule import BufferSpec, Part, Schedule, Send
from bbgrap.transport.framing import SMALL_BYTES, frame_head

BLOCK = 4
MAP = (1, 2 * BLOCK, 5, 3)
OTHER = (3, 7)


@st.composite
def boxes(draw, shape):
    """Any region, often of one range per axis; or all."""
    most = draw(st.sampled_from([2, 2, 4]))
    cuts = [sorted(draw(st.sets(st.integers(0, extent), min_size=2, max_size=most))) for extent in shape]
    return draw(st.sampled_from([None, tuple(tuple(zip(c[::2], c[1::2], strict=False)) for c in cuts)]))


def envelope_of(schedule, copies):
    letters = letters_sent(schedule)
    (step,) = schedule.steps
    headers = Headers(1, 9, [step.message])
    return envelopes_of({step.message: step}, letters, headers, copies).get(step.message), letters[step.message], step


@given(
    st.lists(boxes(MAP), max_size=3),
    st.lists(boxes(OTHER), max_size=2),
    st.booleans(),
    st.lists(st.integers(0, 2**63), min_size=1, max_size=3),
)
def test_the_bytes_are_those_of_pack(of_map, of_other, is_blocked, requests):
    parts = (*(Part(0, box) for box in of_map), *(Part(1, box) for box in of_other), Part(1, ((((0, 1), (2, 3)), ((0, 7),)))))
    step = Send(3, 0, parts)
    schedule = Schedule(1, 2, (BufferSpec("map", DType.FLOAT, MAP), BufferSpec("other", DType.INT64, OTHER)), (step,))
    copies = BlockedCopies(schedule, BLOCK, {0} if is_blocked else ())
    envelope, letter, _ = envelope_of(schedule, copies)
    assert envelope is not None
    for turn, request in enumerate(requests):
        random = np.random.default_rng(turn)
        numbers = random.standard_normal(MAP).astype(np.float32)
        arrays = {0: blocked(numbers, BLOCK) if is_blocked else numbers, 1: random.integers(0, 99, OTHER)}
        payload = b"".join(bytes(piece) for piece in pack(letter, copies.sent(step, arrays)))
        header = Frame(Kind.DATA, 1, 9, request, 3).to_bytes()
        assert bytes(envelope.filled(request, arrays)) == frame_head(header, len(payload)) + payload


@pytest.mark.parametrize(
    ("dtype", "shape", "wire"),
    [
        pytest.param(DType.FLOAT, (SMALL_BYTES // 4 + 1,), "exact", id="large"),
        pytest.param(DType.FLOAT, None, "exact", id="of unknown size"),
        pytest.param(DType.STRING, (2,), "exact", id="of strings"),
        pytest.param(DType.FLOAT, (8,), "float16", id="rounded"),
        pytest.param(DType.FLOAT, (0,), "exact", id="empty"),
    ],
)
def test_other_messages_have_none(dtype, shape, wire):
    schedule = Schedule(1, 2, (BufferSpec("x", dtype, shape),), (Send(3, 0, (Part(0, None),), wire),))
    envelope, letter, _ = envelope_of(schedule, BlockedCopies(schedule, BLOCK, ()))
    assert envelope is None
    assert not Envelope.fits(letter)


@pytest.mark.parametrize("wrong", [np.zeros((1, 7), np.float32), np.zeros(7, np.float64), np.zeros(8, np.float32)])
def test_what_the_schedule_does_not_say_is_not_sent(wrong):
    schedule = Schedule(1, 2, (BufferSpec("x", DType.FLOAT, (7,)),), (Send(3, 0, (Part(0, None),)),))
    envelope, _, _ = envelope_of(schedule, BlockedCopies(schedule, BLOCK, ()))
    with pytest.raises(ModelError, match=r"the plan says float\[7\], the kernel gave"):
        envelope.filled(1, {0: wrong})
