"""Timelines as pictures: everything is there, inside, and text only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.costmodel.timeline import Span, Timeline
from bbgrap.report.gantt import LEFT, RIGHT, WIDTH, describe, tick, timeline_svg
from tests.bbgrap.report.timelines import HOSTILE, SVG, check_svg, timelines, two_devices, words_of


def spans_of(root):
    return [mark for mark in root.iter(f"{SVG}rect") if mark.get("class", "").startswith("span ")]


@given(timelines(), st.none() | st.floats(0, 5))
def test_every_timeline_is_drawn_inside(timeline, until_s):
    root = check_svg(timeline_svg(timeline, HOSTILE, until_s=until_s))
    assert len(spans_of(root)) == len(timeline.spans)
    assert not list(root.iter(f"{SVG}script"))


def test_what_is_where():
    root = check_svg(timeline_svg(two_devices(), "two"))
    texts = words_of(root)
    assert {"two", "compute", "send", "receive", "wait", "0 ms", "10 ms", "computes 30 %", "computes 54 %"} <= set(texts)
    assert {"a", "b", "coordinator"} <= set(texts)
    first = spans_of(root)[0]
    scale = (WIDTH - LEFT - RIGHT) / 10
    assert float(first.get("x")) == pytest.approx(LEFT + 1 * scale, abs=0.01)
    assert float(first.get("width")) == pytest.approx(3 * scale, abs=0.01)
    assert first.get("class") == "span compute"
    flows = list(root.iter(f"{SVG}path"))
    assert [path.get("data-message") for path in flows] == ["5", "6"]


def test_no_message_is_drawn_back_in_time():
    """A sender under a quota was stopped inside its step: the message had long been there when that ended."""
    sent, taken = Span(0, "send", "y", 0.001, 0.009, 5, 1, 64), Span(1, "receive", "y", 0.004, 0.005, 5, 0, 64)
    (flow,) = check_svg(timeline_svg(Timeline(("a", "b"), (sent, taken)), "")).iter(f"{SVG}path")
    x1, *_, x2, _ = (float(part) for part in flow.get("d").replace("M", "").replace("C", "").split())
    assert x1 == x2


def test_two_pictures_of_one_scale():
    half = float(spans_of(check_svg(timeline_svg(two_devices(), "", until_s=0.02)))[0].get("width"))
    full = float(spans_of(check_svg(timeline_svg(two_devices(), "")))[0].get("width"))
    assert half == pytest.approx(full / 2, abs=0.02)


def test_hover_texts_say_who_what_when_and_with_whom():
    timeline = two_devices()
    said = [describe(timeline, span) for span in timeline.spans]
    assert said[0] == "a: compute · s0: y[0:2] · 3.00 ms from 1.00 ms"
    assert said[1] == "a: send · y[1:2] · 0.200 ms from 4.00 ms · to b, message 5 · 64 B"
    assert said[3] == "b: wait · y[1:2] · 2.50 ms from 2.00 ms · from a, message 5"


def test_an_empty_timeline_is_a_picture():
    assert spans_of(check_svg(timeline_svg(Timeline((), ()), "nothing"))) == []


@given(st.floats(1e-9, 1e5))
def test_ticks_are_round_and_few(end_s):
    step = tick(end_s)
    assert 3 <= end_s / step <= 10.0001
    assert round(float(f"{step:e}".partition("e")[0]), 6) in {1, 2, 5}
