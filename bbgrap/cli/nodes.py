"""`bbgrap nodes`: the agents of a cluster."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from bbgrap.cli.options import Json, Where, takes, where_is
from bbgrap.cli.output import print_json, print_result, print_table, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bbgrap.protocol.status_messages import NodeStatus

_TABLE_WIDTH = 130
"""Columns that the table takes; a narrower terminal gets some lines for each node."""


@takes(where=where_is)
def nodes(where: Where, as_json: Json = False) -> None:
    """List the agents, their memory, versions and profiles, who was lost, and who does not reach whom.

    `memory` is what plans may fill, `used` is the memory that the agent's worker takes, `standby` the part of it that models take which it
    has whole, to answer at once. With `bbgrap-coordinator --verify-fraction`, `verified` of its requests were compared with runs on other
    nodes; in those that `differed` it may be what answered wrongly.

    Example:
        bbgrap nodes --coordinator tcp://head:7070
    """
    import shutil
    import sys

    from bbgrap.cluster import NodeProfile
    from bbgrap.cluster.speeds import shares_of
    from bbgrap.observing.text import age_text

    with where.open() as cluster:
        found, lost = cluster.nodes(), cluster.status().lost_for_s
    if as_json:
        print_json([asdict(node) for node in found])
        return
    for name, seconds in lost.items():
        say(f"'{name}' is lost: it has said nothing for {age_text(seconds)}")
    if not found:
        say(f"no agents yet; on each machine: bbgrap-agent --join {where.coordinator}")
        return
    shares = shares_of([node.profile or NodeProfile(node.name) for node in found])
    verifies = any(node.verified for node in found)
    listed = [_columns(node, share, verifies=verifies) for node, share in zip(found, shares, strict=True)]
    if sys.stdout.isatty() and shutil.get_terminal_size().columns < _TABLE_WIDTH:
        for number, columns in enumerate(listed):
            _print_lines(columns, shutil.get_terminal_size().columns, is_first=number == 0)
    else:
        print_table(tuple(listed[0]), [tuple(columns.values()) for columns in listed])
    for node in found:
        if node.unreachable:
            others = ", ".join(f"'{name}'" for name in node.unreachable)
            say(f"'{node.name}' at {node.address} and {others} do not reach each other: is the data port open, --advertise right, the MTU?")


def _columns(node: NodeStatus, share: float, *, verifies: bool) -> Mapping[str, object]:
    """Return what is shown of a node, by what it is called."""
    from bbgrap.observing.text import memory_text  # not for `--help`

    columns: dict[str, object] = {
        "name": node.name,
        "state": node.condition,
        "address": node.address,
        "threads": node.threads,
        "cores": node.cores,
        "memory": memory_text(node.memory_bytes),
        "used": memory_text(node.used_bytes),
        "standby": memory_text(node.standby_bytes),
        "bbgrap": node.version,
        "onnxruntime": node.onnxruntime,
        "share": f"{share:g}",
        "profile": f"speeds: {len(node.profile.work)}, links: {len(node.profile.links)}" if node.profile else "not measured",
    }
    return {**columns, "verified": node.verified, "differed": node.differed} if verifies else columns


def _print_lines(columns: Mapping[str, object], width: int, *, is_first: bool) -> None:
    """Print one node in a few lines, for a narrow terminal."""
    name, state, address, *others = columns
    print_result(f"{'' if is_first else chr(10)}{columns[name]}  {columns[state]}  {columns[address]}")
    line = ""
    for told in (f"  {key} {columns[key]}" for key in others):
        if line and len(line) + len(told) > width:
            print_result(line)
            line = ""
        line += told
    print_result(line)
