from dataclasses import replace

import pytest

from bbgrap.observing.rates import rates_between
from bbgrap.observing.text import age_text, memory_text, status_text, top_text
from bbgrap.protocol.status_messages import ClusterEvent, LinkStatus
from tests.bbgrap.observing.statuses import NOW, STATUS, later


@pytest.mark.parametrize("width", [60, 140])
def test_status_says_what_serves_and_why_within_the_width(width):
    text = status_text(STATUS, width)
    assert max(map(len, text.splitlines())) <= width
    joined = " ".join(text.split())
    for part in (
        "bbgrap 0.1.0, up 2 h 13 min, 2 nodes, 1 model",
        "resnet50 (01234567)",
        "12 done, 1 failed, 2 refused; 3 waiting, 1 running",
        "auto serves on left, right (42.0 ms lately, 40.0 ms predicted)",
        "why: timed in turns: auto 42.1 ms, planner 'single' 77.0 ms",
        "weights: left 51.10 MB, right 50.00 MB",
        "left -> right 940 Mbit/s",
        "right -> coordinator DOWN",
        "agent 'left' joined",
        "lost",
    ):
        assert part in joined, part


def test_a_variant_that_names_its_node_names_it_once():
    (model,) = STATUS.models
    alone = replace(model.plans[0], variant="single on left", nodes=("left",))
    text = status_text(replace(STATUS, models=(replace(model, plans=(alone,)),)), 140)
    assert "single on left serves (42.0 ms lately" in text


def test_of_a_decoders_inputs_the_first_are_shown():
    """GPT-2 has 27: its past filled the screen."""
    (model,) = STATUS.models
    shapes = {"ids": (1, 1), **{f"past.{layer}.key": (1, 12, 0, 64) for layer in range(24)}}
    text = status_text(replace(STATUS, models=(replace(model, plans=(replace(model.plans[0], shapes=shapes),)),)), 140)
    assert "  ids 1x1, past.0.key 1x12x0x64, past.1.key 1x12x0x64, past.2.key 1x12x0x64, 21 more inputs: auto serves" in text


def test_other_versions_are_said():
    nodes = (replace(STATUS.nodes[0], version="0.2.0"), *STATUS.nodes[1:])
    assert "different versions run: 0.1.0, 0.2.0" in status_text(replace(STATUS, nodes=nodes), 80)


def test_little_memory_is_not_none():
    """A container that leaves plans 50 MiB had `0.0 GiB`, while an error said what was needed and had in MB."""
    nodes = (replace(STATUS.nodes[0], free_bytes=50 << 20), *STATUS.nodes[1:])
    assert "50 MiB" in status_text(replace(STATUS, nodes=nodes), 140)
    assert [memory_text(count) for count in (1 << 20, 1000 << 20, 3 << 29)] == ["1 MiB", "1,000 MiB", "1.5 GiB"]


def test_an_empty_cluster_says_what_to_do():
    text = status_text(replace(STATUS, nodes=(), links=(), models=(), exchanges=(), events=()), 80)
    assert "no agents yet" in text
    assert "no model was brought yet" in text


def test_what_peers_chose_cannot_steer_a_terminal():
    event = ClusterEvent(2, NOW, "refused", "refused '\x1b[2J\nroot'")
    text = status_text(replace(STATUS, events=(event,)), 80)
    assert "\x1b" not in text
    assert "refused '\ufffd[2J\ufffdroot'" in text


def test_top_shows_rates_and_fits_the_terminal():
    now = later(1.0, *[0.04] * 20)
    text = top_text(now, rates_between(STATUS, now), 60)
    assert max(map(len, text.splitlines())) <= 60
    assert " ".join(text.split()).count("resnet50 20.0") == 1
    assert len(top_text(now, rates_between(STATUS, now), 60, 5).splitlines()) == 5


def test_ages():
    assert [age_text(seconds) for seconds in (5, 65, 3700, 90000)] == ["5 s", "1 min 5 s", "1 h 1 min", "1 d 1 h"]


def test_of_twenty_nodes_links_only_those_that_are_down_or_slow_are_shown():
    names = [f"node{number}" for number in range(20)]
    pairs = [(source, destination) for source in names for destination in (*names, "coordinator") if source != destination]
    links = [LinkStatus(source, destination, 1e8 + number, 1e-3, is_up=True) for number, (source, destination) in enumerate(pairs)]
    links[200] = replace(links[200], is_up=False)
    links[300] = replace(links[300], bandwidth_bytes_per_s=1e6)
    lines = status_text(replace(STATUS, links=tuple(links)), 80).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("link "))
    assert "DOWN" in lines[first + 1]
    assert "8 Mbit/s" in lines[first + 2]
    assert "and 376 links that are no slower (--json has them)" in lines
    assert len(lines) < 60
