"""`bbgrap zoo`: the networks that the package builds itself."""

from __future__ import annotations

from bbgrap.cli.options import Json
from bbgrap.cli.output import print_json, print_result


def zoo(as_json: Json = False) -> None:
    """List the networks that MODEL can name as zoo:NAME.

    They are built here with seeded random weights, the same to the byte everywhere: for measuring and testing, nothing is downloaded.

    Example:
        bbgrap zoo
    """
    from bbgrap.zoo import names

    if as_json:
        print_json([f"zoo:{name}" for name in names()])
        return
    for name in names():
        print_result(f"zoo:{name}")
