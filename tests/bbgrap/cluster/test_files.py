from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.cluster import Cluster, KernelRate, LinkProfile, NodeProfile
from bbgrap.cluster.files import cluster_text, profile_text, read_cluster, read_profile, read_profiles
from bbgrap.errors import ClusterFileError

EXAMPLES = Path(__file__).parents[3] / "deploy" / "clusters"

names = st.text(min_size=1, max_size=8)
positive = st.floats(1e-6, 1e15)


@st.composite
def clusters(draw):
    called = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    return Cluster(tuple(draw(nodes(name, called)) for name in called))


@st.composite
def nodes(draw, name, peers):
    kinds = draw(st.lists(names, max_size=3, unique=True))
    linked = draw(st.lists(st.sampled_from(peers), max_size=3, unique=True))
    return NodeProfile(
        name,
        draw(positive),
        draw(st.integers(0, 512)),
        draw(st.integers(0, 512)),
        draw(st.integers(0, 1 << 50)),
        draw(st.just(0.0) | positive),
        tuple(KernelRate(kind, draw(positive)) for kind in kinds),
        tuple(LinkProfile(peer, draw(positive), draw(st.floats(0, 10))) for peer in linked),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("clusters")


@given(cluster=clusters())
def test_what_is_written_reads_back(cluster, folder):
    path = folder / "cluster.yaml"
    path.write_text(cluster_text(cluster), encoding="utf-8")
    assert read_cluster(path) == cluster
    assert read_profiles(path) == cluster.nodes
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
        "    kernels: {conv3x3_64_56: 85.5}\n"
        "    links: {7: {bandwidth: 1Gbit/s, round_trip: 0.3ms}, coordinator: {bandwidth: 10Gbit/s, round_trip: 0}}\n"
        "  - name: 7\n"
    )
    big, seven = read_cluster(path).nodes
    links = (LinkProfile("7", 1.25e8, 0.0003), LinkProfile("coordinator", 1.25e9, 0.0))
    assert big == NodeProfile("big", 2.0, memory_bytes=16 << 30, kernels=(KernelRate("conv3x3_64_56", 85.5),), links=links)
    assert seven == NodeProfile("7")


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
        "    kernels: {a: .inf}\n"
        "    cores: 3\n"
        "    cores: 4\n"
        "  - 7\n"
    )
    with pytest.raises(ClusterFileError) as caught:
        read_cluster(path)
    _, _, text = str(caught.value).partition(": ")
    faults = text.split("; ")
    assert [fault.partition(":")[0] for fault in faults] == [f"line {n}" for n in (2, 3, 4, 5, 7, 8, 9, 10, 11, 13, 14)]
    assert "expected a number above 0, got '0'" in faults[1]
    assert "unknown key 'colour', expected name, share" in faults[2]
    assert "there is already one of this name" in faults[7]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "it is empty"),
        ("nodes: []", "at least one"),
        ("node: []", "unknown key 'node'"),
        ("nodes: {a: b}", "expected a list of nodes"),
        ("- name: a", "expected a mapping with the keys nodes, got a list"),
        ("nodes:\n  - name: [", "line 2: it is not YAML"),
        ("nodes:\n\t- name: a", "line 2: it is not YAML"),
        ("nodes: [{name: a, links: [b]}]", "'links': expected a mapping, got a list"),
        ("nodes: [{name: }]", "name: expected a text"),
        ("nodes: [{name: ~}]", "name: expected a text"),
        ("[" * 1500, "it is nested too deep"),
        ("&a [*a]", "expected a mapping"),
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
    assert read_profiles(path)
