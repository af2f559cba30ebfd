from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.cluster import Cluster, LinkProfile, NodeProfile
from bbgrap.cluster.files import cluster_text, has_wires, profile_text, read_cluster, read_profile, read_profiles
from bbgrap.cluster.types import COORDINATOR, ETHERNET, LOCAL, Link, Network, Speed
from bbgrap.cluster.wires import NO_WIRES, Wire, Wiring
from bbgrap.errors import ClusterFileError
from bbgrap.work import KINDS

EXAMPLES = Path(__file__).parents[3] / "deploy" / "clusters"

names = st.text(min_size=1, max_size=8).filter(lambda name: name != COORDINATOR)
positive = st.floats(1e-6, 1e15)


@st.composite
def clusters(draw):
    called = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    groups = draw(st.lists(names, max_size=2, unique=True))
    found = tuple(draw(nodes(name, [*called, COORDINATOR], ["", *groups])) for name in called)
    used = dict.fromkeys(node.group for node in found if node.group)
    within = tuple((group, draw(links())) for group in used if draw(st.booleans()))
    hosted = draw(st.sampled_from(["", *called]))
    points = [*called, *(["the switch"] if len(called) > 1 else [])]
    ends = [(points[-1], name) for name in points[:-1]] + draw(st.lists(st.permutations(points).map(lambda p: (p[0], p[-1])), max_size=2))
    wires = tuple(Wire(f"wire {number}", pair, draw(links())) for number, pair in enumerate(ends) if pair[0] != pair[1])
    return Cluster(found, Network(draw(st.just(ETHERNET) | links()), within, hosted, draw(st.sampled_from([NO_WIRES, Wiring(wires)]))))


@st.composite
def links(draw):
    return Link(draw(positive), draw(st.floats(0, 10, allow_subnormal=False)))


@st.composite
def speeds(draw):
    terms = draw(st.tuples(*[st.just(0.0) | positive] * 4).filter(any))
    return [Speed(kind, *terms) for kind in draw(st.lists(st.sampled_from(list(KINDS)), max_size=3, unique=True))]


@st.composite
def nodes(draw, name, peers, groups):
    linked = draw(st.lists(st.sampled_from(peers), max_size=3, unique=True))
    return NodeProfile(
        name,
        draw(positive),
        draw(st.integers(0, 512)),
        draw(st.integers(0, 512)),
        draw(st.just(0) | st.integers(64 << 10, 1 << 50)),
        tuple(LinkProfile(peer, draw(positive), draw(st.floats(0, 10, allow_subnormal=False))) for peer in linked),
        draw(st.sampled_from(groups)),
        tuple(draw(speeds())),
        draw(st.sampled_from(["", "box"])),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("clusters")


@given(cluster=clusters())
def test_what_is_written_reads_back(cluster, folder):
    path = folder / "cluster.yaml"
    path.write_text(cluster_text(cluster), encoding="utf-8")
    assert read_cluster(path) == cluster
    assert read_profiles(path) == cluster.profiles()
    path.write_text(profile_text(cluster.nodes[0]), encoding="utf-8")
    assert read_profile(path) == cluster.nodes[0]
    assert read_profiles(path) == cluster.nodes[:1]


def test_a_file_by_hand(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "nodes:\n"
        "  - name: big\n"
        "    share: 2\n"
        "    memory: 16GiB\n"
        "    links: {7: {bandwidth: 1Gbit/s, round_trip: 0.3ms}, coordinator: {bandwidth: 10Gbit/s, round_trip: 0}}\n"
        "  - name: 7\n"
    )
    big, seven = read_cluster(path).nodes
    links = (LinkProfile("7", 1.25e8, 0.0003), LinkProfile("coordinator", 1.25e9, 0.0))
    assert big == NodeProfile("big", 2.0, memory_bytes=16 << 30, links=links)
    assert seven == NodeProfile("7")


def test_a_cluster_of_groups_by_hand(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "nodes:\n"
        "  - {name: a, group: rack1, work: {conv3x3: 85 GFLOP/s, matvec: {weights: 20GB/s, overhead: 10us}}}\n"
        "  - {name: b, group: rack1}\n"
        "  - name: c\n"
        "    group: rack2\n"
        "    work: {message: {maps: 1e9, overhead: 1e-5}}\n"
        "network: {bandwidth: 1Gbit/s, round_trip: 1ms}\n"
        "groups:\n"
        "  rack1: {bandwidth: 10Gbit/s, round_trip: 0.1ms}\n"
        "  rack2: {}\n"
        "coordinator_on: c\n"
    )
    cluster = read_cluster(path)
    assert cluster.nodes[0].work == (Speed("conv3x3", 85e9), Speed("matvec", weight_bytes_per_s=20e9, overhead_s=1e-5))
    assert cluster.nodes[2].work == (Speed("message", map_bytes_per_s=1e9, overhead_s=1e-5),)
    assert cluster.link(0, 1) == Link(1.25e9, 5e-5)
    assert cluster.link(0, 2) == cluster.link(1, cluster.host) == Link(1.25e8, 5e-4)
    assert cluster_text(cluster).endswith(
        "network: {bandwidth: 125MB/s, round_trip: 1ms}\n"
        "groups:\n  rack1: {bandwidth: 1250MB/s, round_trip: 0.1ms}\n  rack2: {}\ncoordinator_on: c\n"
    )


def test_a_tree_a_torus_and_wires_by_hand(tmp_path):
    path = tmp_path / "c.yaml"
    nodes = "nodes: [{name: a}, {name: b}, {name: c}, {name: d}]\n"
    path.write_text(
        nodes + "topology:\n"
        "  tree:\n"
        "    - {ways: 2, bandwidth: 1Gbit/s, round_trip: 1ms}\n"
        "    - {ways: 2, bandwidth: 10Gbit/s, round_trip: 0.1ms}\n"
        "wires:\n"
        "  head: {ends: [coordinator, switch], bandwidth: 1MB/s, round_trip: 0}\n"
    )
    cluster = read_cluster(path)
    assert [way.wire.name for way in cluster.route(0, 2)] == ["switch.0-a", "switch-switch.0", "switch-switch.1", "switch.1-c"]
    assert cluster.link(0, 1) == Link(1.25e9, pytest.approx(1e-4))
    assert cluster.link(0, 2) == Link(1.25e8, pytest.approx(1.1e-3))
    assert cluster.link(cluster.host, 3) == Link(1e6, pytest.approx(5.5e-4))
    path.write_text(nodes + "topology: {torus: {sides: [2, 2], bandwidth: 1Gbit/s, round_trip: 1ms}}\ncoordinator_on: d")
    cluster = read_cluster(path)
    assert sorted(wire.name for wire in cluster.network.wiring.wires) == ["a-b", "a-c", "b-d", "c-d"]
    assert [way.to for way in cluster.route(0, cluster.host)] == ["c", "d"]


@pytest.mark.parametrize(
    ("said", "content"),
    [
        ("line 2: wire 'x': 'nod' is no node, and no switch", "wires: {x: {ends: [a, nod], LINK}, y: {ends: [a, b], LINK}}"),
        ("line 1: node 'b': no wires lead to it from 'a'", "wires: {x: {ends: [a, s], LINK}, y: {ends: [a, s], LINK}}"),
        ("line 2: wire 'x': 'ends': expected the names of two different nodes or switches, got a, a", "wires: {x: {ends: [a, a], LINK}}"),
        ("line 2: wire 'x': expected the key 'ends'", "wires: {x: {LINK}}"),
        ("line 2: wire 'x': expected the key 'bandwidth'", "wires: {x: {ends: [a, b], round_trip: 0}}"),
        ("line 2: 'torus': expected as many places as there are nodes, 2, got 2 x 2", "topology: {torus: {sides: [2, 2], LINK}}"),
        ("line 2: 'torus': 'sides': expected a list, got '2'", "topology: {torus: {sides: 2, LINK}}"),
        ("line 2: 'tree': expected as many places as there are nodes, 2, got 0", "topology: {tree: [{ways: 0, LINK}]}"),
        ("line 2: a level of 'tree': expected the key 'ways'", "topology: {tree: [{LINK}]}"),
        ("line 2: 'tree': its levels, from the root down: expected a list, got a mapping", "topology: {tree: {}}"),
        ("line 2: 'topology': expected one of tree, torus, got 0 of them", "topology: {}"),
        ("'topology': unknown key 'ring', expected tree, torus", "topology: {ring: 1}"),
        ("the topology already has one of this name", "topology: {tree: [{ways: 2, LINK}]}\nwires: {switch-a: {ends: [a, b], LINK}}"),
        (
            "the coordinator is where 'coordinator_on' says",
            "coordinator_on: a\nwires: {x: {ends: [a, b], LINK}, y: {ends: [coordinator, b], LINK}}",
        ),
    ],
)
def test_what_is_no_wiring(tmp_path, said, content):
    path = tmp_path / "c.yaml"
    path.write_text("nodes: [{name: a}, {name: b}]\n" + content.replace("LINK", "bandwidth: 1Gbit/s, round_trip: 1ms"))
    with pytest.raises(ClusterFileError) as caught:
        read_cluster(path)
    assert said in str(caught.value)


def test_profiles_cannot_say_what_links_share(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(profile_text(NodeProfile("a")))
    assert not has_wires(path)
    assert has_wires(EXAMPLES / "two-switches.yaml")
    assert not has_wires(EXAMPLES / "two-racks.yaml")


def test_a_switch_of_a_tree_may_have_one_way(tmp_path):
    path = tmp_path / "c.yaml"
    level = "bandwidth: 1Gbit/s, round_trip: 1ms}"
    path.write_text(f"nodes: [{{name: a}}, {{name: b}}]\ntopology: {{tree: [{{ways: 1, {level}, {{ways: 2, {level}]}}")
    assert [way.to for way in read_cluster(path).route(0, 1)] == ["switch.0", "b"]


def test_a_node_is_not_called_as_a_switch_of_the_tree(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("nodes: [{name: switch.0}]\ntopology: {tree: [{ways: 1, bandwidth: 1, round_trip: 0}]}")
    with pytest.raises(ClusterFileError, match=r"line 1: node 'switch.0': a switch of the tree is called so"):
        read_cluster(path)


def test_faults_of_work_groups_and_network_at_once(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "nodes:\n"
        "  - name: a\n"
        "    group: rack9\n"
        "    work:\n"
        "      conv3x3: 85 GB/s\n"
        "      conv9x9: 85 GFLOP/s\n"
        "      matmul: {flops: -1, weights: 20GB/s}\n"
        "      pool: {maps: 10us, speed: 3}\n"
        "      other: {overhead: -1us}\n"
        "      move: [1]\n"
        "    links:\n"
        "      b: {bandwidth: 1Gbit/s, round_trip: 1m}\n"
        "network: {bandwidth: 0}\n"
        "groups:\n"
        "  rack1: {bandwidth: 10Gbit/s, round_trip: 0.1ms}\n"
        "coordinator_on: z\n"
    )
    with pytest.raises(ClusterFileError) as caught:
        read_cluster(path)
    faults = str(caught.value).partition(": ")[2].split("; line ")
    lines = [int(fault.removeprefix("line ").partition(":")[0]) for fault in faults]
    assert lines == [3, 5, 6, 7, 8, 8, 9, 10, 12, 12, 13, 13, 15, 16]
    told = dict(zip(lines, faults, strict=True))
    assert "expected a group that 'groups' declares (rack1), got 'rack9'" in told[3]
    assert "expected a number, or one with a unit (FLOP/s, kFLOP/s, MFLOP/s, GFLOP/s, TFLOP/s), got '85 GB/s'" in told[5]
    assert "unknown kind of work 'conv9x9', expected conv1x1, conv3x3" in told[6]
    assert "'flops': expected a number above 0, got '-1'" in told[7]
    assert "'overhead': expected a number that is not negative, got '-1us'" in told[9]
    assert "group 'rack1': no node is in it" in told[15]
    assert "expected one of the nodes, a, got 'z'" in told[16]


def test_all_faults_at_once_each_with_its_line(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "nodes:\n"
        "  - name: big\n"
        "    share: 0\n"
        "    colour: red\n"
        "    memory: 16Gib\n"
        "    links:\n"
        "      smal: {bandwidth: 1Gbit/s}\n"
        "  - share: 2\n"
        "    cores: -1\n"
        "  - name: big\n"
        "    work: {matmul: .inf}\n"
        "    cores: 3\n"
        "    cores: 4\n"
        "  - 7\n"
    )
    with pytest.raises(ClusterFileError) as caught:
        read_cluster(path)
    _, _, text = str(caught.value).partition(": ")
    faults = text.split("; ")
    assert [fault.partition(":")[0] for fault in faults] == [f"line {n}" for n in (3, 4, 5, 7, 7, 8, 9, 10, 11, 13, 14)]
    assert "expected a number above 0, got '0'" in faults[0]
    assert "unknown key 'colour', expected name, share" in faults[1]
    assert "its link leads to 'smal', which is no node" in faults[4]
    assert "there is already one of this name" in faults[7]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "it is empty"),
        ("nodes: []", "at least one"),
        ("node: []", "unknown key 'node'"),
        ("nodes: {a: b}", "expected a list of nodes"),
        ("- name: a", "expected a mapping with the keys nodes, network, groups, coordinator_on, topology, wires, got a list"),
        ("nodes:\n  - name: [", "line 2: it is not YAML"),
        ("nodes:\n\t- name: a", "line 2: it is not YAML"),
        ("nodes: [{name: a, links: {b: 1 Gbps}}]", "line 1: node 'a': link to 'b': expected a mapping with the keys bandwidth, round_trip"),
        ("nodes: [{name: a, links: [b]}]", "'links': expected a mapping, got a list"),
        ("nodes: [{name: }]", "name: expected a text"),
        ("nodes: [{name: ~}]", "name: expected a text"),
        ("[" * 1500, "it is nested too deep"),
        ("&a [*a]", "expected a mapping"),
        ("nodes: [{name: coordinator}]", "a node cannot be called 'coordinator'"),
        ("nodes: [{name: a, work: {}}]\ngroups: 7", "line 2: 'groups': expected a mapping, got '7'"),
        ("nodes: [{name: a, work: {conv3x3: {}}}]", "expected at least one of flops, weights, maps, overhead"),
        ("nodes: [{name: a, group: }]", "'group': expected a text, got nothing"),
        ("nodes: [{name: a}]\ncoordinator_on: {}", "line 2: 'coordinator_on': expected a text, got a mapping"),
    ],
)
def test_what_is_no_cluster(tmp_path, content, said):
    path = tmp_path / "c.yaml"
    path.write_text(content)
    with pytest.raises(ClusterFileError) as caught:
        read_cluster(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [read_cluster, read_profile, read_profiles])
def test_files_that_cannot_be_read(tmp_path, read):
    with pytest.raises(ClusterFileError, match="cannot be read: No such file"):
        read(tmp_path / "nothing.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ClusterFileError, match="line 1: it is not"):
        read(tmp_path / "binary.yaml")


def test_a_cluster_is_no_profile(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("nodes: []")
    with pytest.raises(ClusterFileError, match=r"unknown key 'nodes'.*expected the key 'name'"):
        read_profile(path)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_the_examples_are_right(path):
    profiles = read_profiles(path)
    assert profiles
    if "profile" not in path.name:
        assert read_cluster(path).profiles() == profiles


def test_the_example_of_racks_is_a_cluster_of_two_speeds_and_two_links():
    cluster = read_cluster(EXAMPLES / "two-racks.yaml")
    assert cluster.shares[0] == cluster.shares[1] == 1.0
    assert 0.4 < cluster.shares[2] == cluster.shares[3] < 0.6
    assert cluster.link(0, 1) == cluster.link(2, 3) == Link(1.25e9, 5e-5)
    assert cluster.link(0, 2) == cluster.link(3, cluster.host) == Link(1.25e8, 2.5e-4)
    assert cluster.link(0, cluster.host) == LOCAL


@given(cluster=clusters())
def test_profiles_alone_keep_all_links(cluster):
    alone = Cluster(cluster.profiles())
    devices = range(cluster.host + 1)
    if cluster.network != Network():
        assert all(alone.link(a, b) == cluster.link(a, b) for a in range(cluster.host) for b in devices if a != b)
    assert [node.name for node in alone.nodes] == [node.name for node in cluster.nodes]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("name: a\ncores: " + "9" * 5000, "expected a whole number"),
        ("name: a\nmemory: 1e308TiB", "expected a number, or one with a unit"),
        ("name: a\nmemory: 1e400", "expected a number, or one with a unit"),
        ("name: a\nwork: {conv3x3: 1e-300}", "work 'conv3x3': expected a number from 1e-12 to 1e.18, got '1e-300'"),
        ("name: a\nshare: 1e308", "'share': expected a number from 1e-12 to 1e.18, got '1e308'"),
        ("name: " + "a" * (4 << 20), "expected at most 4194304 bytes"),
    ],
    ids=["digits", "infinite with its unit", "infinite", "next to nothing", "next to infinite", "size"],
)
def test_numbers_and_files_beyond_measure_are_faults(tmp_path, content, said):
    path = tmp_path / "node.yaml"
    path.write_text(content)
    with pytest.raises(ClusterFileError, match=said):
        read_profile(path)


@pytest.mark.parametrize("size", ["0", "0.4", "8", "16384", "1kB"])
def test_memory_that_nothing_fits_in_lacks_its_unit(tmp_path, size):
    path = tmp_path / "node.yaml"
    path.write_text(f"name: a\nmemory: {size}\n")
    with pytest.raises(
        ClusterFileError, match=f"line 2: node 'a': 'memory': expected at least 64KiB, with a unit, like 8GiB, got '{size}';"
    ):
        read_profile(path)


def test_a_file_of_many_nodes_is_compared_in_one_pass(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text("nodes: [" + ", ".join(f"{{name: n{k}}}" for k in range(3000)) + ", {name: n7}]")
    with pytest.raises(ClusterFileError, match="node 'n7': there is already one of this name"):
        read_cluster(path)
