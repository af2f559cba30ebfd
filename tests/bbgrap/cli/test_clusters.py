"""What is said of a cluster before it is used."""

import contextlib
from dataclasses import replace

import pytest

from bbgrap.cli import clusters
from bbgrap.protocol.status_messages import NodeStatus
from bbgrap.transport.credentials import Credentials

NODE = NodeStatus("a", "tcp://a:1", "ready", 1, 1, 1 << 30, "0.1.0", "1.31.1", 26, None)
OTHERS = [replace(NODE, name="c"), replace(NODE, name="b", onnxruntime="1.30.0")]


def test_different_versions_are_named_with_who_runs_them():
    text = clusters.different_versions([*OTHERS, NODE])
    assert "(1.30.0: b; 1.31.1: a, c)" in text
    assert clusters.different_versions([]) == clusters.different_versions([NODE, OTHERS[0]]) == ""


@pytest.mark.parametrize("nodes", [[NODE], [NODE, *OTHERS]])
def test_they_are_said_on_stderr_when_a_cluster_is_opened(nodes, monkeypatch, capsys):
    class Connected:
        address, credentials = "tcp://a:1", Credentials()

        def nodes(self):
            return nodes

    monkeypatch.setattr(clusters, "connect", lambda address, **given: contextlib.nullcontext(Connected()))
    with clusters.open_cluster("tcp://head:7070") as connection:
        assert connection.nodes() == nodes
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (clusters.different_versions(nodes) + "\n" if len(nodes) > 1 else "")
