"""`bbgrap status`: what serves each model and why, nodes, links."""

from __future__ import annotations

from dataclasses import asdict

from bbgrap.cli.options import Coordinator, Insecure, Json, TokenFile
from bbgrap.cli.output import columns, print_json, print_result


def status(coordinator: Coordinator = "", token_file: TokenFile = None, insecure: Insecure = False, as_json: Json = False) -> None:
    """Show what serves each model and why, what became of requests, the nodes with their versions, the links, and what happened lately.

    Example:
        bbgrap status --coordinator tcp://head:7070
    """
    from bbgrap.cli.clusters import open_cluster
    from bbgrap.observing.text import status_text

    with open_cluster(coordinator, token_file=token_file, insecure=insecure) as cluster:
        found = cluster.status()
    if as_json:
        print_json({"uptime_s": found.uptime_s, **asdict(found)})
    else:
        print_result(status_text(found, columns()))
