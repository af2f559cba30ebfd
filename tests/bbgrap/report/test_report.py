"""The report: one well-formed file that loads nothing, with everything in it and nothing but text in names."""

import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from hypothesis import given

from bbgrap.costmodel.timeline import Span, Timeline
from bbgrap.report.html import report_html
from bbgrap.report.tables import Exchange, exchanges_of, prediction_error, traffic
from bbgrap.report.trace import SegmentTime
from tests.bbgrap.report.timelines import HOSTILE, SVG, check_svg, layers, timelines, two_devices


class Seen(HTMLParser):
    """Collects tags, attributes and text as a browser's parser would, and checks that tags are closed."""

    VOID = ("meta", "br", "input")

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words, self.open = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def check_page(text):
    text.encode()
    ET.fromstring(text)  # noqa: S314 - our own output: well-formed even as XML
    seen = Seen(text)
    assert seen.tags.count("script") == 1
    assert seen.tags.count("style") == 1
    assert not {"link", "img", "iframe", "object", "a", "b"} & set(seen.tags)
    loading = [entry for entry in seen.attributes if entry[1] in {"src", "href", "srcset", "data"} or entry[1].startswith("on")]
    assert loading == []
    return seen


@given(timelines(), timelines())
def test_any_names_and_times(measured, other):
    predicted = Timeline(measured.devices, tuple(span for span in other.spans if span.device < len(measured.devices) and not span.peer))
    check_page(report_html(HOSTILE, measured=measured, predicted=predicted, layers=layers(), facts={HOSTILE: HOSTILE}))


def test_everything_is_there():
    measured = two_devices()
    predicted = Timeline(measured.devices, (Span(0, "compute", "s0: y[0:2]", 0.0, 0.0015, segment=0),))
    segments = (SegmentTime(0, 0, "s0: y[0:2]", 0.0045), SegmentTime(1, 0, "s0: y[2:4]", 0.001), SegmentTime(1, 1, "s1: z", 0.004))
    page = report_html("tiny", measured=measured, predicted=predicted, segments=segments, layers=layers(), facts={"planner": "auto"})
    seen = check_page(page)
    words = " ".join(seen.words)
    for said in ("tiny", "planner", "auto", "measured: 10.0 ms", "predicted: 1.50 ms", "coordinator", "conv", "64 B", "4.50 ms", "3.00"):
        assert said in words
    assert seen.tags.count("svg") == 3
    assert "off by a factor of 3.00" in words
    for name in measured.devices:
        assert f">{name}<" in page


def test_a_prediction_alone_is_called_one():
    page = report_html("tiny", predicted=two_devices())
    check_page(page)
    assert "measured" not in page
    assert "predicted: 10.0 ms" in page


def test_pictures_in_the_page_keep_inside():
    root = ET.fromstring(report_html("tiny", measured=two_devices(), layers=layers()))  # noqa: S314
    pictures = list(root.iter(f"{SVG}svg"))
    assert len(pictures) == 2
    for picture in pictures:
        check_svg(ET.tostring(picture, encoding="unicode"))


def test_the_table_of_who_sends_to_whom_scrolls_by_itself():
    """Of twenty nodes it has twenty-one columns: the whole page moved sideways."""
    root = ET.fromstring(report_html("tiny", predicted=two_devices()))  # noqa: S314
    tables = [table for scrolled in root.iter() if scrolled.get("class") == "scroll" for table in scrolled]
    assert any("from \\ to" in "".join(table.itertext()) for table in tables)


@pytest.mark.parametrize("given", [{}, {"predicted": two_devices()}, {"layers": layers()}, {"measured": Timeline((), ())}])
def test_a_report_may_lack_anything(given):
    check_page(report_html("some", **given))


def test_exchanges_are_messages_of_the_same_values():
    spans = (
        Span(0, "send", "y[:,:,1:2,:], z[0:1]", 0.1, 0.2, message=1, peer=1, bytes=10),
        Span(1, "send", "y[:,:,2:3,:], z[1:2]#2", 0.05, 0.1, message=2, peer=0, bytes=20),
        Span(1, "wait", "y[:,:,1:2,:], z[0:1]", 0.1, 0.3, message=1, peer=0),
        Span(1, "receive", "y[:,:,1:2,:], z[0:1]", 0.3, 0.4, message=1, peer=0, bytes=10),
        Span(1, "send", "w", 0.5, 0.6, message=3, peer=0, bytes=1),
    )
    timeline = Timeline(("a", "b"), spans)
    assert exchanges_of(timeline) == (Exchange("y, z", 2, 30, 0.05, 0.4, pytest.approx(0.2)), Exchange("w", 1, 1, 0.5, 0.6, 0.0))
    assert traffic(timeline) == {(0, 1): 10, (1, 0): 21}


def test_prediction_error_counts_up_and_down_alike():
    measured = Timeline(("a",), tuple(Span(0, "compute", "s", n, n + took, segment=n) for n, took in enumerate((0.4, 0.1))))
    predicted = Timeline(("a",), tuple(Span(0, "compute", "s", n, n + 0.2, segment=n) for n in range(2)))
    assert prediction_error(measured, predicted, {}) == pytest.approx(2)
    assert prediction_error(measured, Timeline(("a",), ()), {}) is None
