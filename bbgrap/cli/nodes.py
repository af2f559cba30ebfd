"""`bbgrap nodes`: the agents of a cluster."""

from __future__ import annotations

from dataclasses import asdict

from bbgrap.cli.options import Coordinator, Json
from bbgrap.cli.output import print_json, print_table, say


def nodes(coordinator: Coordinator = "", as_json: Json = False) -> None:
    """List the agents, their state, versions and profiles.

    Example:
        bbgrap nodes --coordinator tcp://head:7070
    """
    from bbgrap.cli.clusters import open_cluster

    with open_cluster(coordinator) as cluster:
        found = cluster.nodes()
    if as_json:
        print_json([asdict(node) for node in found])
        return
    if not found:
        say(f"no agents yet; on each machine: bbgrap-agent --join {coordinator}")
        return
    columns = ("name", "state", "address", "threads", "cores", "memory", "onnxruntime", "max opset", "share", "profile")
    rows = [
        (
            node.name,
            node.state,
            node.address,
            node.threads,
            node.cores,
            f"{node.memory_bytes / (1 << 30):.1f} GiB",
            node.onnxruntime,
            node.max_opset,
            f"{node.profile.share:g}" if node.profile else "-",
            f"{len(node.profile.kernels)} kernels, {len(node.profile.links)} links" if node.profile else "not measured",
        )
        for node in found
    ]
    print_table(columns, rows)
