"""bbgrap against what people would pick instead, two nodes of one core each: `python -m benchmarks.peers --models vgg16 --links 1gbit`.

Every peer is the real thing, in a process of its own on the first node, and starts what else it needs on both. All have the same file,
input and cores, and turns, round by round; whoever is not in turn is idle. Measured are the latency of single requests, and requests per
second with eight on their way. Every answer is compared with plain onnxruntime's. bbgrap is always measured; `--peers` chooses the others.

Peers whose packages are missing are left out, with the command that installs them. Links are emulated as by `benchmarks.network`, which
needs root on Linux; else only `loopback` is measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bbgrap.cli.output import print_json, say
from bbgrap.errors import UsageError
from benchmarks.exit_status import exit_status
from benchmarks.kept import RESULTS, keep
from benchmarks.peers.known import OTHERS
from benchmarks.peers.peer import Peer
from benchmarks.peers.rounds import measure, prepare
from benchmarks.peers.table import KEY, print_rows, write_page
from benchmarks.testbed import Rate, can_limit, terminable

MODELS = "resnet50,vgg16,vit_b16,mobilenet_v2"
LINKS = "loopback,1gbit"


def chosen(text: str) -> list[Peer]:
    """Return the peers of these names that are installed; the others are left out with a line.

    Raises:
        UsageError: if there is no peer of a name.
    """
    names = [name.strip() for name in text.split(",") if name.strip() and name.strip() != "bbgrap"]
    if unknown := [name for name in names if name not in OTHERS]:
        raise UsageError(f"peers: expected some of {', '.join(OTHERS)}, got {', '.join(unknown)}")
    found = [OTHERS[name] for name in dict.fromkeys(names)]
    for peer in found:
        if peer.missing:
            say(f"left out: {peer.title}: it is not installed; {peer.missing}")
    return [peer for peer in found if not peer.missing]


def _work(given: argparse.Namespace) -> int:
    peers = chosen(given.peers)
    rates = [Rate.parse(text) for text in given.links.split(",")]
    if not can_limit() and any(rate.bits_per_s for rate in rates):
        say("no root here: links cannot be emulated, measuring loopback only")
        rates = [Rate("loopback", None)]
    rows = []
    with terminable():
        for name in given.models.split(","):
            with tempfile.TemporaryDirectory(prefix="bbgrap-stages-") as folder:
                model = prepare(name.strip().removeprefix("zoo:"), Path(folder))
                say(f"{model.name}: cut at {model.halves.cut}, stages {', '.join(f'{1e3 * s:.1f} ms' for s in model.halves.seconds)}")
                for rate in rates:
                    found = measure(model, rate, peers, given.rounds, given.requests)
                    rows += [{**row, "command": _command(row["model"], row["link"], row["peer"])} for row in found]
                    if given.save:
                        write_page(keep(rows, RESULTS / "peers.json", KEY))
    if given.json:
        print_json(rows)
    else:
        print_rows(rows)
        say("one peer, one model, one link: " + _command("MODEL", "LINK", "PEER"))
    return _status(rows)


def _command(model: str, link: str, peer: str) -> str:
    return f"python -m benchmarks.peers --models {model} --links {link} --peers {peer}"


def _status(rows: Sequence[dict[str, object]]) -> int:
    if any(row["facts"]["busy"] for row in rows):  # type: ignore[index]
        say("this machine was busy with other work: do not trust these times")
    return 0 if all(row.get("verified") for row in rows) else 1


def main() -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=MODELS, help="zoo names; default: %(default)s")
    parser.add_argument("--links", default=LINKS, help="rates of the link, or loopback; default: %(default)s")
    parser.add_argument("--peers", default=",".join(OTHERS), help="default: all, %(default)s")
    parser.add_argument("--rounds", type=int, default=7, help="turns of everybody; default: %(default)s")
    parser.add_argument("--requests", type=int, default=10, help="single requests a turn; default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--save", action="store_true", help="keep the rows in benchmarks/results, and the tables in docs/peers.md")
    given = parser.parse_args()
    if given.rounds < 1 or given.requests < 1:
        parser.error(f"rounds and requests: expected at least 1, got {given.rounds} and {given.requests}")
    return exit_status(lambda: _work(given))


if __name__ == "__main__":
    sys.exit(main())
