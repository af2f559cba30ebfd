"""`bbgrap nodes`: the agents of a cluster."""

from __future__ import annotations

from dataclasses import asdict

from bbgrap.cli.options import Coordinator, Insecure, Json, TokenFile
from bbgrap.cli.output import print_json, print_table, say


def nodes(coordinator: Coordinator = "", token_file: TokenFile = None, insecure: Insecure = False, as_json: Json = False) -> None:
    """List the agents, their state, memory, versions and profiles, and who does not reach whom.

    `used` is the memory that the agent's worker takes, `standby` the part of it that models take which it has whole, to answer at once.
    With `bbgrap-coordinator --verify-fraction`, `verified` of its requests were compared with runs on other nodes; in those that `differed`
    it may be what answered wrongly.

    Example:
        bbgrap nodes --coordinator tcp://head:7070
    """
    from bbgrap.cli.clusters import open_cluster
    from bbgrap.cluster import NodeProfile
    from bbgrap.cluster.speeds import shares_of

    with open_cluster(coordinator, token_file=token_file, insecure=insecure) as cluster:
        found = cluster.nodes()
    if as_json:
        print_json([asdict(node) for node in found])
        return
    if not found:
        say(f"no agents yet; on each machine: bbgrap-agent --join {coordinator}")
        return
    shares = shares_of([node.profile or NodeProfile(node.name) for node in found])
    columns: tuple[str, ...] = (
        "name",
        "state",
        "address",
        "threads",
        "cores",
        "memory",
        "used",
        "standby",
        "onnxruntime",
        "max opset",
        "share",
        "profile",
    )
    rows: list[tuple[object, ...]] = [
        (
            node.name,
            node.state,
            node.address,
            node.threads,
            node.cores,
            f"{node.memory_bytes / (1 << 30):.1f} GiB",
            f"{node.used_bytes / (1 << 20):,.0f} MiB",
            f"{node.standby_bytes / (1 << 20):,.0f} MiB",
            node.onnxruntime,
            node.max_opset,
            f"{share:g}",
            f"speeds: {len(node.profile.work)}, links: {len(node.profile.links)}" if node.profile else "not measured",
        )
        for node, share in zip(found, shares, strict=True)
    ]
    if any(node.verified for node in found):
        columns = (*columns, "verified", "differed")
        rows = [(*row, node.verified, node.differed) for row, node in zip(rows, found, strict=True)]
    print_table(columns, rows)
    for node in found:
        if node.unreachable:
            others = ", ".join(f"'{name}'" for name in node.unreachable)
            say(f"'{node.name}' at {node.address} and {others} do not reach each other: is the data port open, and --advertise right?")
