from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bbgrap.observing.metrics import exposition
from tests.bbgrap.observing.statuses import MODEL, STATUS

MODEL_LABELS = {"model": "resnet50", "digest": "0123456789ab"}


def read(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What a scraper reads; a series that is there twice is an error."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(found) == len(samples)
    return found


def value(found, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def test_a_scraper_reads_what_the_status_tells():
    found = read(exposition(STATUS))
    for outcome, count in MODEL.requests.items():
        assert value(found, "bbgrap_requests_total", **MODEL_LABELS, outcome=outcome) == count
    assert value(found, "bbgrap_request_duration_seconds_count", **MODEL_LABELS) == 12
    assert value(found, "bbgrap_request_duration_seconds_sum", **MODEL_LABELS) == pytest.approx(0.84)
    assert value(found, "bbgrap_request_duration_seconds_bucket", **MODEL_LABELS, le="0.04") == 6
    assert value(found, "bbgrap_request_duration_seconds_bucket", **MODEL_LABELS, le="+Inf") == 12
    assert value(found, "bbgrap_queue_depth", **MODEL_LABELS) == 3
    assert value(found, "bbgrap_exchange_bytes_total", src="left", dst="right") == 305_152
    assert value(found, "bbgrap_prediction_ratio", **MODEL_LABELS, plan="fe" * 6) == pytest.approx(1.05)
    assert value(found, "bbgrap_segment_duration_seconds", **MODEL_LABELS, plan="fe" * 6, node="left", segment="0") == 0.02
    assert value(found, "bbgrap_coordinator_up") == 1


def test_who_was_lost_is_down_and_who_left_is_not_there():
    found = read(exposition(STATUS))
    assert {dict(labels)["node"]: up for (name, labels), up in found.items() if name == "bbgrap_node_up"} == {
        "left": 1,
        "right": 1,
        "gone": 0,
    }


def test_a_coordinator_that_is_away_is_down():
    assert read(exposition(None)) == {("bbgrap_coordinator_up", frozenset()): 0}


def test_names_that_peers_chose_cannot_break_a_line():
    odd = replace(STATUS, models=(replace(MODEL, name='a"\n\\b{}'),))
    assert value(read(exposition(odd)), "bbgrap_queue_depth", model='a"\n\\b{}', digest="0123456789ab") == 3
