"""Findings are made of facts: each fault is named, with who has it, and what to do."""

from dataclasses import replace

import pytest

from bbgrap.cluster.types import LinkProfile, NodeProfile, Speed
from bbgrap.doctor.checks import check_here, exit_code, in_order
from bbgrap.doctor.cluster_checks import ClusterFacts, check_cluster
from bbgrap.doctor.local_facts import Folder, LocalFacts, Package, ResolvedHost
from bbgrap.protocol.inspection import Inspection, MachineFacts, NodeFacts, RequestedPlan
from bbgrap.protocol.status_messages import NodeStatus

GIB = 1 << 30
MACHINE = MachineFacts(1e9, 4, 4, 0.0, 0.0, 0.0, 1.0, 1.0, 16 * GIB, 8 * GIB, "/cache", 50 * GIB, 1e9)
WELL = LocalFacts(
    (3, 12),
    "1.0",
    "1.0",
    (Package("numpy", ">=1.26", "2.4", True),),
    MACHINE,
    (Folder("state of a coordinator", "/state", "--state-dir", ""),),
    ResolvedHost("box", ("10.0.0.1",)),
    None,
    "tcp://127.0.0.1:7070",
    False,
    "utf-8",
)
HEAD = replace(WELL, coordinator=ResolvedHost("head", ("10.0.0.9",)), address="tcp://head:7070", is_listening=True)


def here(facts):
    return [(f.severity, f.about) for f in check_here(facts)]


def machine(**facts):
    return replace(WELL, machine=replace(MACHINE, **facts))


def test_a_machine_that_is_well_has_no_findings():
    assert here(WELL) == here(HEAD) == []


@pytest.mark.parametrize(
    ("facts", "severity", "about"),
    [
        (replace(WELL, python=(3, 10)), "error", "Python"),
        (replace(WELL, packages=(Package("numpy", ">=1.26", "1.2", False),)), "error", "package"),
        (replace(WELL, packages=(Package("numpy", ">=1.26", "", False),)), "error", "package"),
        (replace(WELL, installed="0.9"), "warning", "installation"),
        (replace(WELL, folders=(Folder("state", "/state", "--state-dir", "Read-only file system"),)), "error", "folder, state"),
        (replace(WELL, own_name=ResolvedHost("box", ("127.0.1.1",))), "warning", "own name"),
        (replace(WELL, own_name=ResolvedHost("box", (), "no such name")), "note", "own name"),
        (replace(WELL, is_listening=True), "warning", "port"),
        (replace(WELL, encoding="ascii"), "warning", "locale"),
        (replace(HEAD, is_listening=False), "error", "port"),
        (replace(HEAD, coordinator=ResolvedHost("head", (), "no such name")), "error", "name"),
        (replace(HEAD, coordinator=ResolvedHost("head", ("127.0.1.1",))), "warning", "name"),
        (machine(free_disk_bytes=GIB // 2), "error", "disk"),
        (machine(free_disk_bytes=2 * GIB), "warning", "disk"),
        (machine(free_memory_bytes=GIB // 8), "error", "memory"),
        (machine(free_memory_bytes=GIB // 2), "warning", "memory"),
        (machine(quota_cores=1.5), "warning", "CPU quota"),
        (machine(throttled=0.2), "warning", "throttled"),
        (machine(usable_cores=2), "note", "pinned"),
        (machine(stolen=0.1), "warning", "CPU steal"),
        (machine(busy_cores=3.5), "warning", "busy"),
    ],
)
def test_a_fault_of_this_machine_is_named(facts, severity, about):
    assert here(facts) == [(severity, about)]


def test_the_coordinator_on_this_machine_is_no_fault():
    for name in ("localhost", "127.0.0.1", "::1"):
        assert here(replace(HEAD, coordinator=ResolvedHost(name, ("127.0.0.1",)))) == []


# --- clusters ---------------------------------------------------------------------------------------------------------------------


def status(name, address, gflops=100.0, **more):
    links = tuple(LinkProfile(peer, 120e6, 1e-4) for peer in ("a", "b", "coordinator") if peer != name)
    known = NodeProfile(name, work=(Speed("conv3x3", gflops * 1e9),), links=links)
    return replace(NodeStatus(name, address, "alive", 2, 4, 16 * GIB, "1.0", "1.31.1", 26, known), **more)


A, B = status("a", "tcp://10.0.0.1:70"), status("b", "tcp://10.0.0.2:70")
INSPECTION = Inspection(1, MACHINE, (NodeFacts("a", MACHINE, 0.01, 0.1), NodeFacts("b", MACHINE, 0.0, 0.1)), (), ())
CLUSTER = ClusterFacts("1.0", "10.0.0.9", "1.0", (A, B), INSPECTION)


def found(facts):
    return [(f.severity, f.who, f.about) for f in check_cluster(facts)]


def inspected(name, **facts):
    nodes = tuple(replace(n, facts=replace(n.facts, **facts)) if n.name == name else n for n in INSPECTION.nodes)
    return replace(CLUSTER, inspection=replace(INSPECTION, nodes=nodes))


def with_links(bits):
    slow = replace(A.profile, links=(LinkProfile("b", bits / 8, 1e-4),))
    return replace(CLUSTER, nodes=(replace(A, profile=slow), B))


def with_inspection(**facts):
    return replace(CLUSTER, inspection=replace(INSPECTION, **facts))


def test_a_cluster_that_is_well_has_no_findings():
    assert found(CLUSTER) == []


@pytest.mark.parametrize(
    ("facts", "finding"),
    [
        (replace(CLUSTER, nodes=(), inspection=replace(INSPECTION, nodes=())), ("error", "coordinator", "agents")),
        (replace(CLUSTER, lost={"c": 12.0}), ("warning", "c", "lost")),
        (replace(CLUSTER, own_version="0.9"), ("warning", "coordinator", "version")),
        (replace(CLUSTER, nodes=(A, replace(B, version="0.9"))), ("warning", "b", "version")),
        (replace(CLUSTER, nodes=(A, replace(B, onnxruntime="1.22.0"))), ("warning", "agents", "onnxruntime")),
        (replace(CLUSTER, nodes=(replace(A, unreachable=("b",)), replace(B, unreachable=("a",)))), ("error", "a and b", "reachability")),
        (replace(CLUSTER, nodes=(A, replace(B, unreachable=("coordinator",)))), ("error", "b and coordinator", "reachability")),
        (replace(CLUSTER, nodes=(A, status("b", "tcp://127.0.1.1:70"))), ("error", "b", "address")),
        (with_inspection(silent=("b",)), ("error", "b", "silent")),
        (with_inspection(nodes=(INSPECTION.nodes[0], NodeFacts("b", MACHINE, -75.0, 0.1))), ("warning", "b", "clock")),
        (inspected("b", quota_cores=0.5), ("warning", "b", "CPU quota")),
        (inspected("b", free_disk_bytes=GIB // 2), ("error", "b", "disk")),
        (inspected("b", busy_cores=3.0), ("warning", "b", "busy")),
        (inspected("b", cores=1, usable_cores=1), ("warning", "b", "threads")),
        (replace(CLUSTER, nodes=(A, status("b", B.address, gflops=10))), ("warning", "b", "unequal")),
        (replace(CLUSTER, nodes=(A, replace(B, profile=None))), ("note", "agents", "profiles")),
        (with_links(300e6), ("warning", "a and b", "link")),
        (replace(CLUSTER, nodes=(A, replace(B, verified=9, differed=1))), ("warning", "b", "answers")),
        (
            with_inspection(models=(RequestedPlan("f" * 64, "x 1", ("a",), "a plan is slower", 0),)),
            ("note", "model ffffffff (x 1)", "served"),
        ),
        (with_inspection(models=(RequestedPlan("f" * 64, "x 1", (), "no room", 3),)), ("error", "model ffffffff (x 1)", "served")),
    ],
)
def test_a_fault_of_a_cluster_is_named(facts, finding):
    assert found(facts) == [finding]


def test_a_pair_that_is_far_apart_is_told_of_once():
    """Over 200 ms a user saw that one node answers, and nothing said why."""
    far = {name: tuple(LinkProfile(peer, 120e6, seconds) for peer, seconds in links) for name, links in FAR.items()}
    nodes = tuple(replace(node, profile=replace(node.profile, links=far[node.name])) for node in (A, B))
    facts = replace(CLUSTER, nodes=nodes)
    assert found(facts) == [("warning", "a and b", "round trip"), ("warning", "b and coordinator", "round trip")]
    assert "a link of 210 ms" in next(iter(check_cluster(facts))).found


FAR = {"a": (("b", 0.2), ("coordinator", 0.009)), "b": (("a", 0.21), ("coordinator", 0.2), ("gone", 0.2))}


def test_a_slow_link_is_one_without_a_card_too():
    silent = replace(MACHINE, card_bits_per_s=0.0)
    nodes = tuple(replace(node, facts=silent) for node in INSPECTION.nodes)
    unknown = replace(with_links(90e6), inspection=replace(INSPECTION, coordinator=silent, nodes=nodes))
    assert found(unknown) == [("warning", "a and b", "link")]
    assert found(replace(with_links(300e6), inspection=unknown.inspection)) == []


def test_what_agents_of_one_machine_use_is_not_others_work():
    busy = replace(MACHINE, busy_cores=4.0, own_cores=2.0)
    nodes = tuple(NodeFacts(name, busy, 0.0, 0.1) for name in "ab")
    together = replace(CLUSTER, nodes=(A, replace(B, address=A.address)), inspection=replace(INSPECTION, nodes=nodes))
    assert found(together) == []


def test_clocks_within_what_is_known_of_them_are_no_fault():
    assert found(with_inspection(nodes=(INSPECTION.nodes[0], NodeFacts("b", MACHINE, 3.0, 2.5)))) == []


def test_the_worst_comes_first_and_decides_the_exit_code():
    findings = in_order(list(check_here(replace(machine(usable_cores=2, stolen=0.1), encoding="ascii", python=(3, 9)))))
    assert [f.severity for f in findings] == ["error", "warning", "warning", "note"]
    assert (exit_code(findings), exit_code(findings[1:]), exit_code([])) == (1, 0, 0)
