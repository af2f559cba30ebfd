"""`bbgrap profile`: what nodes and links can do, measured or by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bbgrap.cli.options import Coordinator, Json
from bbgrap.cli.output import print_json, print_result, say, step

app = typer.Typer(rich_markup_mode="rich")


@app.callback(invoke_without_command=True)
def profile(
    context: typer.Context,
    node: Annotated[str, typer.Option(help="Only this node; default: all, one after the other.", show_default=False)] = "",
    output: Annotated[
        Path | None, typer.Option(help="Write a file instead: one node's profile, or a cluster file.", show_default=False)
    ] = None,
    coordinator: Coordinator = "",
    as_json: Json = False,
) -> None:
    """Measure nodes and their links, or set a profile by hand ('bbgrap profile add FILE').

    Examples:
        bbgrap profile --coordinator tcp://head:7070

        bbgrap profile --output cluster.yaml        # then: bbgrap plan MODEL --cluster cluster.yaml

        bbgrap profile --node big --output big.yaml
    """
    if context.invoked_subcommand is not None:
        return
    from dataclasses import asdict

    from bbgrap.cli.clusters import open_cluster
    from bbgrap.cluster import Cluster
    from bbgrap.cluster.files import cluster_text, profile_text
    from bbgrap.errors import ClusterUnavailableError

    with open_cluster(coordinator) as cluster, step(f"measuring {node or 'all nodes'}") as progress:
        found = cluster.profile(node, lambda now: progress.update(f"{now.stage} {now.done} of {now.total}"))
    if not found:
        raise ClusterUnavailableError("there are no agents to measure; start one: bbgrap-agent --join ADDRESS")
    text = profile_text(found[0]) if node else cluster_text(Cluster(found))
    if output is not None:
        output.write_text(text, encoding="utf-8")
        say(f"written: {output}")
    if as_json:
        print_json([asdict(item) for item in found])
    elif output is None:
        print_result(text.rstrip())


@app.command()
def add(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="A profile file, or a cluster file with several.")],
    coordinator: Coordinator = "",
) -> None:
    """Use the profiles of a file from now on, whatever is measured.

    Example:
        bbgrap profile add big.yaml --coordinator tcp://head:7070
    """
    from bbgrap.cli.clusters import open_cluster
    from bbgrap.cluster.files import read_profiles

    profiles = read_profiles(file)
    before_command = context.parent.params["coordinator"] if context.parent else ""
    with open_cluster(coordinator or before_command) as cluster:
        for item in profiles:
            cluster.add_profile(item)
            say(f"profile of '{item.name}': set")
