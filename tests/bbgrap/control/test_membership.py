"""What is known of the agents that are there."""

from dataclasses import replace

import numpy as np

from bbgrap.cluster.types import AGENT_BYTES, COORDINATOR, LOCAL, Link, LinkProfile, NodeProfile
from bbgrap.control.coordinator_settings import Settings
from bbgrap.control.membership import Members
from bbgrap.control.saved_state import SavedState
from bbgrap.control.weight_feed import WeightFeed
from bbgrap.graph.types import DType, TensorType
from bbgrap.protocol import messages as m
from tests.bbgrap.control.wire import introduction, joined_wire

SETTINGS = Settings("0.1.0", "tcp://head:1")


def test_agents_at_one_address_share_a_machine():
    members = Members(SETTINGS, SavedState())
    addresses = {"a": "tcp://head:5", "b": "tcp://10.0.0.2:5", "c": "tcp://10.0.0.2:6", "d": "tcp://10.0.0.3:5"}
    for name, address in addresses.items():
        members.join(name.encode(), replace(introduction(name), data_address=address), 0.0)
    cluster = members.cluster(members.alive())
    assert [cluster.machine(device) for device in range(5)] == [0, 1, 1, 3, 0]
    members.overrides["b"] = NodeProfile("b", links=(LinkProfile("c", 1e6, 1e-3),))
    assert [members.cluster(members.alive()).machine(device) for device in range(3)] == [0, 1, 2], (
        "whoever says what a link is knows better"
    )


def test_the_memory_that_an_agent_may_take_outlives_measuring():
    members = Members(SETTINGS, SavedState())
    members.join(b"a", replace(introduction("a"), profile=NodeProfile("a", memory_bytes=5)), 0.0)
    members.measured["a"] = NodeProfile("a", cores=2, memory_bytes=1000)
    (node,) = members.cluster(members.alive()).nodes
    assert (node.memory_bytes, node.cores) == (5, 2)


def planned_memory(members: Members) -> list[int]:
    return [node.memory_bytes >> 20 for node in members.cluster(members.alive()).nodes]


def test_agents_of_one_machine_share_its_memory_unless_told_otherwise():
    members = Members(SETTINGS, SavedState())
    for name, address in {"a": "tcp://10.0.0.2:5", "b": "tcp://10.0.0.2:6", "c": "tcp://10.0.0.3:5"}.items():
        members.join(name.encode(), replace(introduction(name), data_address=address, memory_bytes=1000 << 20), 0.0)
        members.measured[name] = NodeProfile(name, memory_bytes=2000 << 20)
    half = 500 - (AGENT_BYTES >> 21)
    assert [members.memory_of(name) >> 20 for name in "abc"] == planned_memory(members) == [half, half, 1000]
    members.overrides["a"] = NodeProfile("a", memory_bytes=700 << 20)
    members.overrides["b"] = NodeProfile("b", cores=3)
    assert [members.memory_of(name) >> 20 for name in "abc"] == planned_memory(members) == [700, half, 1000]
    members.remove(members.by_name["a"])
    assert members.memory_of("b") >> 20 == 1000
    assert members.memory_of("a") > 1 << 60


def test_no_more_memory_is_planned_with_than_an_agent_has_whatever_was_given_for_it():
    members = Members(SETTINGS, SavedState())
    given = NodeProfile("a", memory_bytes=700 << 20)
    for name, profile, has in (("a", given, 108 << 20), ("b", replace(given, name="b"), 0), ("c", None, 108 << 20)):
        join = replace(introduction(name), data_address=f"tcp://{name}:5", memory_bytes=has, profile=profile)
        members.join(name.encode(), join, 0.0)
    assert planned_memory(members) == [members.known_memory_of(member) >> 20 for member in members.alive()] == [108, 700, 108]
    said = [log.text for member in members.alive() for log in members.overstated_memory(member)]
    assert said == ["agent 'a' is given 700 MiB of memory, its machine or container leaves it 108 MiB: plans fill no more than that"]
    members.overrides["c"] = NodeProfile("c", memory_bytes=1 << 30)
    assert members.memory_of("c") == 108 << 20


def test_agents_of_one_machine_that_are_limited_by_themselves_share_no_memory():
    members = Members(SETTINGS, SavedState())
    for name, group in {"a": "1:5", "b": "1:6", "c": "1:6", "d": ""}.items():
        join = replace(introduction(name), data_address=f"tcp://head:{ord(name)}", memory_bytes=1000 << 20, memory_group=group)
        members.join(name.encode(), join, 0.0)
    half = 500 - (AGENT_BYTES >> 21)
    assert planned_memory(members) == [1000, half, half, 1000]
    rest = tuple(member for member in members.alive() if member.name != "c")
    assert [node.memory_bytes >> 20 for node in members.cluster(rest).nodes] == [1000] * 3, "so it is planned for when 'c' is lost"


def test_links_that_nobody_gave_by_hand_are_local_if_all_are_on_one_machine():
    members = Members(SETTINGS, SavedState())
    for number, name in enumerate("ab"):
        members.join(name.encode(), replace(introduction(name), data_address=f"tcp://head:{5 + number}"), 0.0)
    members.overrides["b"] = NodeProfile("b", links=(LinkProfile(COORDINATOR, 1e6, 2e-3),))
    cluster = members.cluster(members.alive())
    assert cluster.link(0, 1) == LOCAL
    assert cluster.link(1, cluster.host) == Link(1e6, 1e-3)


def test_what_an_agent_found_of_where_another_was_says_nothing_of_where_it_is():
    """One whose machine got another address was apart from the others, for they had just looked for it at the old one."""
    wire = joined_wire("a", "b")
    links, (a, b) = wire.coordinator.links, wire.coordinator.members.alive()
    *_, asked = links.suspect(a, "b", wire.now)
    (peer,) = asked.message.peers
    found = m.LinksTried(asked.message.trial, (peer.device,))
    b.join = replace(b.join, data_address="tcp://elsewhere:1")
    assert links.tried(a, found, wire.now) == (False, [])
    *_, asked = links.suspect(a, "b", wire.now)
    assert links.tried(a, replace(found, trial=asked.message.trial), wire.now)[0]


def test_an_address_is_one_members_alone():
    members = Members(SETTINGS, SavedState())
    members.join(b"a", introduction("a"), 0.0)
    for address, whose in ((introduction("a").data_address, "a"), (SETTINGS.data_address, COORDINATOR)):
        refused = members.join(b"b", replace(introduction("b"), data_address=address), 0.0)
        assert isinstance(refused, m.Refused)
        assert (refused.retry, f"that of '{whose}'" in refused.reason) == (True, True)  # it may have gone, and has not been missed yet
    members.remove(members.by_name["a"])
    assert not isinstance(members.join(b"b", replace(introduction("b"), data_address=introduction("a").data_address), 0.0), m.Refused)


def test_the_version_that_plans_are_made_with_counts_as_one_that_is_there():
    """Agents that all had an older onnxruntime than their coordinator refused what it had made, and nobody was warned."""
    members = Members(replace(SETTINGS, onnxruntime="1.99.0"), SavedState())
    (told,) = members.other_versions(introduction("a"))
    assert told.text == f"agent 'a' has onnxruntime {introduction('a').onnxruntime}, others have 1.99.0: install one version"
    assert not Members(replace(SETTINGS, onnxruntime=introduction("a").onnxruntime), SavedState()).other_versions(introduction("a"))
    assert not Members(SETTINGS, SavedState()).other_versions(introduction("a"))


def test_what_an_onnxruntime_refuses_that_others_may_know_is_said_with_what_to_do():
    members = Members(SETTINGS, SavedState())
    for name, version in {"a": "1.28.0", "b": "1.32.0"}.items():
        members.join(name.encode(), replace(introduction(name), onnxruntime=version, data_address=f"tcp://{name}:1"), 0.0)
    refused = "segment 's': onnxruntime 1.28.0 cannot load the model: LinearAttentionGate is not a registered function"
    said = f"agent 'a' cannot run the deployment: {refused}"
    assert members.cannot_load(members.by_name["a"], refused) == f"{said}; others have onnxruntime 1.32.0: install one version"
    assert members.cannot_load(members.by_name["a"], "out of memory") == "agent 'a' cannot run the deployment: out of memory"
    members.remove(members.by_name["b"])
    assert members.cannot_load(members.by_name["a"], refused) == said


def test_a_weight_that_is_sent_again_counts_once():
    """An agent asks again for all it lacks when its worker has ended: people are told how much of how much has come."""
    feed, weight = WeightFeed(b"a"), np.zeros(1000, np.float32)
    for _ in range(2):
        feed.send(["digest"], {"digest": weight}, {"digest": TensorType(DType.FLOAT, weight.shape)}, 0.0)
        assert (feed.fed, feed.to_feed) == (0, weight.nbytes)
        feed.acknowledge("digest", 100, 0.0, 0.0)
        assert (feed.fed, feed.to_feed) == (100, weight.nbytes)
