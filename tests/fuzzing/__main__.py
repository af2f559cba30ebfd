"""`python -m tests.fuzzing`: random models in random configurations against plain onnxruntime."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.fuzzing.campaign import Tally, do, jobs_of, judged_of
from tests.fuzzing.report import causes_text, table
from tests.fuzzing.shrinking import shrink_causes
from tests.fuzzing.sources import SOURCES, Folder, source_of
from tests.fuzzing.workers import LIMIT_S, Workers

EVERY_S = 15.0
"""Seconds between two lines of progress."""


def _source(name: str) -> str:
    try:
        return name if name == "all" else source_of(name).name
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("--models", type=int, default=1000, help="models of each source (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first model; model k has seed + k (default: 0)")
    parser.add_argument(
        "--source",
        action="append",
        type=_source,
        help=f"where models come from: {', '.join(SOURCES)}, all of these, or a folder of NAME.onnx and NAME.npz; may be repeated "
        "(default: own)",
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="stop each source after so many minutes (default: 60)")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help=f"seconds that one model may take (default: {LIMIT_S:g})")
    parser.add_argument("--workers", type=int, default=1, help="child processes, one core each (default: 1)")
    parser.add_argument("--everywhere", action="store_true", help="every configuration, instead of a choice by seed")
    parser.add_argument("--minimise", action="store_true", help="make one model of every cause small and write it")
    parser.add_argument("--output", type=Path, default=Path("build/fuzzing"), help="where --minimise writes (default: build/fuzzing)")
    parser.add_argument("--json", action="store_true", help="everything as JSON on stdout, the table on stderr")
    return parser.parse_args()


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def _run(source: str, arguments: argparse.Namespace) -> Tally:
    tally, said = Tally(), time.monotonic()
    until = said + 60 * arguments.minutes
    models = source_of(source)
    last = arguments.seed + arguments.models
    if isinstance(models, Folder):
        last = min(last, len(models.files))
    jobs = jobs_of(source, range(arguments.seed, last), until, everywhere=arguments.everywhere)
    for ended in Workers(do, arguments.workers, arguments.limit).run(jobs):
        tally.add(ended.job.seed, judged_of(ended))
        if time.monotonic() - said > EVERY_S:
            said = time.monotonic()
            c = tally.counts
            _say(f"{source}: {c['models']} models, {c['all agree']} agree, {c['crash']} crash, {c['mismatch']} mismatch")
    return tally


def main() -> int:
    """Run and report; 1 if there was a fault."""
    arguments = _arguments()
    asked = list(SOURCES) if "all" in (arguments.source or []) else arguments.source or ["own"]
    tallies: dict[str, Tally] = {}
    for name in asked:
        missing = source_of(name).missing
        if missing:
            _say(f"{name}: skipped, needs {', '.join(missing)}")
            continue
        tallies[name] = _run(name, arguments)
    _say(table(tallies))
    _say(causes_text(tallies))
    if arguments.minimise:
        for line in shrink_causes(tallies, arguments.output, arguments.workers):
            _say(line)
    if arguments.json:
        sys.stdout.write(json.dumps({name: tally.as_dict() for name, tally in tallies.items()}, indent=1) + "\n")
    return int(any(tally.counts["crash"] + tally.counts["mismatch"] for tally in tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
