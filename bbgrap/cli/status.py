"""`bbgrap status`: what serves each model and why, nodes, links."""

from __future__ import annotations

from dataclasses import asdict

from bbgrap.cli.options import Json, Where, takes, where_is
from bbgrap.cli.output import columns, print_json, print_result


@takes(where=where_is)
def status(where: Where, as_json: Json = False) -> None:
    """Show what serves each model and why, what became of requests, the nodes with their versions, the links, and what happened lately.

    Example:
        bbgrap status --coordinator tcp://head:7070
    """
    from bbgrap.observing.text import status_text

    with where.open() as cluster:
        found = cluster.status()
    if as_json:
        print_json({"uptime_s": found.uptime_s, **asdict(found)})
    else:
        print_result(status_text(found, columns()))
