"""Timelines as plain values: what is written is read again, and nothing else is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.costmodel.timeline import LANES, Span, Timeline, plain_timeline, read_timeline
from bbgrap.errors import RemoteProtocolError

SPANS = st.builds(
    lambda device, lane, label, start, lasts, message, peer, size, segment: Span(
        device, lane, label, start / 10, (start + lasts) / 10, message, peer, size, segment
    ),
    st.integers(0, 2),
    st.sampled_from(LANES),
    st.text(max_size=5),
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.none() | st.integers(0, 9),
    st.none() | st.integers(0, 2),
    st.integers(0, 1 << 40),
    st.none() | st.integers(0, 9),
)


@given(st.lists(SPANS, max_size=5))
def test_read_as_written(spans: list[Span]) -> None:
    timeline = Timeline(("a", "b", "host"), tuple(spans))
    again = read_timeline(json.loads(json.dumps(plain_timeline(timeline))))
    assert again.devices == timeline.devices
    for left, right in zip(again.spans, spans, strict=True):
        assert (left.device, left.lane, left.label, left.message, left.peer, left.bytes, left.segment) == (
            right.device,
            right.lane,
            right.label,
            right.message,
            right.peer,
            right.bytes,
            right.segment,
        )
        assert left.start_s == pytest.approx(right.start_s, abs=1e-6)


@pytest.mark.parametrize(
    "plain",
    [
        None,
        {},
        {"devices": ["a"], "spans": [[]]},
        {"devices": ["a"], "spans": [[1, "send", "x", 0, 1, None, None, 0, None]]},
        {"devices": ["a"], "spans": [[0, "dance", "x", 0, 1, None, None, 0, None]]},
        {"devices": ["a"], "spans": [[0, "send", "x", 2, 1, None, None, 0, None]]},
        {"devices": ["a"], "spans": [[0, "send", "x", 0, 1, "one", None, 0, None]]},
        {"devices": ["a"], "spans": [[0, "send", "x", 0, float("nan"), None, None, 0, None]]},
    ],
)
def test_anything_else_is_refused(plain: object) -> None:
    with pytest.raises(RemoteProtocolError, match="its timeline cannot be read"):
        read_timeline(plain)
