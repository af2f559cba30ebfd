"""`bbgrap profile`: what nodes and links can do, measured or by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bbgrap.cli.completion import nodes
from bbgrap.cli.options import Coordinator, Insecure, Json, TokenFile, Where, takes, where_is
from bbgrap.cli.output import check_writable, print_json, print_result, print_table, say, step
from bbgrap.cluster.names import name_order

if TYPE_CHECKING:
    from bbgrap.cluster import NodeProfile

app = typer.Typer(rich_markup_mode="rich")


@app.callback(invoke_without_command=True)
def profile(
    context: typer.Context,
    node: Annotated[str, typer.Option(help="Only this node; default: all.", show_default=False, autocompletion=nodes)] = "",
    output: Annotated[
        Path | None, typer.Option(help="Also write a file: one node's profile, or a cluster file.", show_default=False)
    ] = None,
    coordinator: Coordinator = "",
    token_file: TokenFile = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Measure nodes and their links; 'bbgrap profile list, show, add, remove' are about what is known of them.

    Every kind of work gets a speed: time = overhead + operations / flops + weight bytes / weights + map bytes / maps. So half of the
    rows cost more than half of the time. Nodes are measured at once, as they will work, in some 7 seconds, and then
    their links, one node after the other: best while nothing runs.

    Examples:
        bbgrap profile --coordinator tcp://head:7070

        bbgrap profile --output cluster.yaml        # then: bbgrap plan MODEL --cluster cluster.yaml

        bbgrap profile --node big --output big.yaml
    """
    if context.invoked_subcommand is not None:
        return
    check_writable(output)
    from dataclasses import asdict

    from bbgrap.cluster import Cluster
    from bbgrap.cluster.files import cluster_text, profile_text
    from bbgrap.errors import ClusterUnavailableError

    with (
        where_is(context, coordinator, token_file, insecure).open() as cluster,
        step(f"measuring {node or 'all nodes'}") as progress,
    ):
        found = cluster.profile(node, progress.report)
    if not found:
        raise ClusterUnavailableError("there are no agents to measure; start one: bbgrap-agent --join ADDRESS")
    if output is not None:
        output.write_text(profile_text(found[0]) if node else cluster_text(Cluster(found)), encoding="utf-8")
        say(f"written: {output}")
    if as_json:
        print_json([asdict(item) for item in found])
    else:
        print_profiles(found)


def print_profiles(profiles: Sequence[NodeProfile]) -> None:
    """Print what was measured: times of typical pieces of work, node by node, the speeds behind them, and links."""
    from bbgrap.cluster.speeds import PIECES, TYPICAL, shares_of
    from bbgrap.work import KINDS

    names = [item.name for item in profiles]
    speeds = [{speed.kind: speed for speed in item.work} for item in profiles]
    known = [kind for kind in KINDS if any(kind in of for of in speeds)]
    rows = [
        (kind, KINDS[kind], PIECES[kind], *(of[kind].seconds_of(TYPICAL[kind]) * 1e6 if kind in of else None for of in speeds))
        for kind in known
    ]
    machine = [(item.name, item.threads, item.cores, _giga(item.memory_bytes)) for item in profiles]
    columns = ("node", "threads", "cores", "memory, GB", "share of the work")
    print_table(columns, [(*row, share) for row, share in zip(machine, shares_of(profiles), strict=True)], title="Machines")
    print_table(("kind", "is", "typical piece", *names), rows, title="\nMicroseconds for a typical piece of every kind of work")
    terms = ("node", "kind", "GFLOP/s", "weights, GB/s", "maps, GB/s", "overhead, us")
    print_table(
        terms,
        [
            (
                name,
                kind,
                *map(_giga, (of[kind].flops_per_s, of[kind].weight_bytes_per_s, of[kind].map_bytes_per_s)),
                of[kind].overhead_s * 1e6,
            )
            for name, of in zip(names, speeds, strict=True)
            for kind in known
            if kind in of
        ],
        title="\nSpeeds (-: costs nothing that could be told)",
    )
    links = [(item.name, link.peer, link.bandwidth_bytes_per_s * 8e-6, link.round_trip_s * 1e3) for item in profiles for link in item.links]
    if links:
        print_table(("from", "to", "Mbit/s", "round trip, ms"), links, title="\nLinks")
    print_result("\n'bbgrap profile --output FILE' writes this down; what is changed there counts after 'bbgrap profile add FILE'.")


def _giga(value: float) -> float | None:
    return value / 1e9 if value else None


@app.command("list")
@takes(where=where_is)
def list_profiles(where: Where, as_json: Json = False) -> None:
    """List the profiles that the coordinator keeps, also of nodes that are not there: what was measured, and what was given by hand.

    Example:
        bbgrap profile list --coordinator tcp://head:7070
    """
    from dataclasses import asdict

    with where.open() as cluster:
        known, there = cluster.profiles(), {node.name for node in cluster.nodes()}
    if as_json:
        print_json({"measured": [asdict(item) for item in known.measured], "by_hand": [asdict(item) for item in known.by_hand]})
        return
    rows = [
        (item.name, item.name in there, how, len(item.work), len(item.links), item.share if item.share != 1 else None)
        for how, items in (("measured", known.measured), ("by hand", known.by_hand))
        for item in items
    ]
    if not rows:
        say("no profile is known; 'bbgrap profile' measures all nodes, 'bbgrap profile add FILE' sets one by hand")
        return
    rows.sort(key=lambda row: (name_order(row[0]), row[2]))
    print_table(("node", "is there", "profile", "speeds", "links", "share"), rows)


@app.command()
@takes(where=where_is)
def show(
    node: Annotated[str, typer.Argument(help="The node's name.")],
    *,
    where: Where,
    as_json: Json = False,
) -> None:
    """Show what is known of a node, as the YAML that 'bbgrap profile add' takes: what was given by hand goes over what was measured.

    Example:
        bbgrap profile show big --coordinator tcp://head:7070
    """
    from dataclasses import asdict

    from bbgrap.cluster.files import profile_text
    from bbgrap.errors import UsageError

    with where.open() as cluster:
        known = cluster.profiles()
    found = {how: item for how, items in (("measured", known.measured), ("by_hand", known.by_hand)) for item in items if item.name == node}
    if not found:
        names = ", ".join(sorted({item.name for item in (*known.measured, *known.by_hand)})) or "none"
        raise UsageError(f"node '{node}': nothing is known of it; profiles are there of: {names}")
    if as_json:
        print_json({how: asdict(item) for how, item in found.items()})
        return
    for how, item in found.items():
        print_result(f"# {how.replace('_', ' ')}\n{profile_text(item).rstrip()}")


@app.command()
@takes(where=where_is)
def remove(
    node: Annotated[str, typer.Argument(help="The node's name.")],
    measured: Annotated[bool, typer.Option("--measured", help="Forget what was measured, too; it is measured again when idle.")] = False,
    *,
    where: Where,
) -> None:
    """Forget what was given by hand of a node; what was measured counts again.

    Example:
        bbgrap profile remove big --coordinator tcp://head:7070
    """
    with where.open() as cluster:
        gone = cluster.forget_profile(node, measured=measured)
    for how, items in (("by hand", gone.by_hand), ("measured", gone.measured)):
        for item in items:
            say(f"profile of '{item.name}', {how}: removed")


@app.command()
@takes(where=where_is)
def add(
    file: Annotated[Path, typer.Argument(help="A profile file, or a cluster file with several.")],
    *,
    where: Where,
) -> None:
    """Use the profiles of a file from now on, whatever is measured.

    Only what the file has counts: a share by hand goes with speeds that are measured. Profiles are kept by name, also of machines that
    are not there yet.

    Example:
        bbgrap profile add big.yaml --coordinator tcp://head:7070
    """
    from bbgrap.cluster.files import doubts, has_wires, read_profiles

    profiles = read_profiles(file)
    if has_wires(file):
        say(f"'{file}': only the links are set; a running cluster does not know what they share")
    for item in profiles:
        for doubt in doubts(item):
            say(f"'{file}': {doubt}")
    with where.open() as cluster:
        there = {node.name for node in cluster.nodes()}
        for item in profiles:
            cluster.add_profile(item)
            say(f"profile of '{item.name}': set" + ("" if item.name in there else "; no such node yet, kept until it joins"))
