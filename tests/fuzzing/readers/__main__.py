"""`python -m tests.fuzzing.readers`: damaged inputs for everything that reads bytes; by atheris, guided by coverage, if it is installed."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from random import Random

try:
    import atheris
except ImportError:  # an extra of its own: without it, inputs are only random
    atheris = None

with (
    nullcontext()
    if atheris is None or "--plain" in sys.argv
    else atheris.instrument_imports(include=["bbgrap", "bbgrap_agent.enrolment", "bbgrap_coordinator.key_file"])
):
    from tests.fuzzing.readers.control import CONTROL
    from tests.fuzzing.readers.coordinator_port import PORT
    from tests.fuzzing.readers.data import DATA
    from tests.fuzzing.readers.files import FILES
    from tests.fuzzing.readers.keys import KEYS

from tests.fuzzing.readers.mutate import damaged
from tests.fuzzing.readers.reader import LONGEST, Reader, Tally, judge

READERS = {reader.name: reader for reader in (*CONTROL, *DATA, *FILES, *KEYS, *PORT)}
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - millions of small files are not for a disk
MUTATED_BY_FORM = 0.5
"""Part of the inputs whose form is kept, where the reader knows it."""
WRITTEN_EVERY = 5.0
"""Seconds between two writings of a tally: libFuzzer ends its process itself."""


def _next(reader: Reader, data: bytes, chance: Random) -> bytes:
    if reader.mutate is not None and chance.random() < MUTATED_BY_FORM:
        made = reader.mutate(data, chance)
        if len(made) <= LONGEST:
            return made
    return damaged(data, chance)


def fuzz_plainly(reader: Reader, inputs: int, seconds: float, seed: int = 0) -> Tally:
    """Give a reader its seeds, damaged once or several times."""
    tally, chance, until = Tally(reader.name), Random(f"{reader.name} {seed}"), time.monotonic() + seconds
    for data in reader.seeds:
        judge(reader, data, tally)
    assert tally.taken == len(reader.seeds) or tally.findings, f"{reader.name}: a seed is not taken"
    while tally.inputs < inputs // reader.slower and time.monotonic() < until:
        data = chance.choice(reader.seeds)
        for _ in range(chance.choice((1, 1, 2, 5))):
            data = _next(reader, data, chance)
        judge(reader, data, tally)
    return tally


def _fuzz_guided(reader: Reader, inputs: int, seconds: float, output: Path) -> None:
    """Let libFuzzer choose; it ends this process, so the tally is written again and again."""
    tally = Tally(reader.name)
    written = time.monotonic()

    def one(data: bytes) -> None:
        nonlocal written
        judge(reader, data, tally)
        if time.monotonic() - written > WRITTEN_EVERY or tally.inputs >= inputs:
            written = time.monotonic()
            output.write_text(json.dumps(tally.plain()))

    def mutate(data: bytes, longest: int, seed: int) -> bytes:
        chance = Random(seed)
        by_form = reader.mutate is not None and chance.random() < MUTATED_BY_FORM
        return (_next(reader, data, chance) if by_form else bytes(atheris.Mutate(data, longest)))[:longest]

    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(reader.seeds):
            Path(corpus, str(number)).write_bytes(seed)
        options = [f"-runs={inputs}", f"-max_total_time={int(seconds)}", f"-max_len={LONGEST}", "-rss_limit_mb=4096", "-timeout=60"]
        atheris.Setup([sys.argv[0], corpus, *options, "-verbosity=0", f"-artifact_prefix={output.parent}/"], one, custom_mutator=mutate)
        atheris.Fuzz()  # does not return


def _in_child(name: str, arguments: argparse.Namespace) -> Tally:
    """Fuzz a reader in a process of its own: it may die of it."""
    arguments.output.mkdir(parents=True, exist_ok=True)
    file = arguments.output / f"{name.replace(' ', '-')}.json"
    file.unlink(missing_ok=True)
    options = [f"--reader={name}", f"--inputs={arguments.inputs}", f"--seconds={arguments.seconds}", f"--seed={arguments.seed}"]
    command = [sys.executable, "-m", "tests.fuzzing.readers", "--child", str(file), *options, *(["--plain"] if arguments.plain else [])]
    # libFuzzer ends the process without clearing up: its temporary files go with this folder
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        environment = {**os.environ, "TMPDIR": folder}
        ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    tally = Tally(**json.loads(file.read_text().splitlines()[-1])) if file.exists() else Tally(name)
    if ended.returncode:
        tally.findings[f"exit status {ended.returncode}"] = ended.stderr[-2000:]
    return tally


def _line(tally: Tally) -> str:
    text = f"{tally.reader:22} {tally.inputs:>10,} inputs {tally.taken / max(1, tally.inputs):6.1%} taken"
    return f"{text}   slowest {tally.slowest:6.3f} s   memory {tally.memory:5.0%} of what is allowed   {len(tally.findings)} findings"


def main() -> int:
    """Fuzz the readers that were asked for; 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing.readers", description=__doc__)
    parser.add_argument("--reader", action="append", choices=READERS, help="which (default: all); may be repeated")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of each reader (default: 1,000,000)")
    parser.add_argument("--seconds", type=float, default=600.0, help="stop each reader after so many (default: 600)")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs that are not guided by coverage (default: 0)")
    parser.add_argument("--plain", action="store_true", help="do without atheris")
    parser.add_argument("--output", type=Path, default=Path("build/fuzzing/readers"), help="where tallies and findings are written")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)  # where to write tallies, a line each
    arguments = parser.parse_args()
    names = arguments.reader or list(READERS)
    if arguments.child is not None:
        if not arguments.plain and atheris is not None:
            _fuzz_guided(READERS[names[0]], arguments.inputs, arguments.seconds, arguments.child)
        for name in names:
            tally = fuzz_plainly(READERS[name], arguments.inputs, arguments.seconds, arguments.seed)
            with arguments.child.open("a") as stream:
                stream.write(json.dumps(tally.plain()) + "\n")
        return 0
    found = 0
    for name in names:
        tally = _in_child(name, arguments)
        found += len(tally.findings)
        sys.stdout.write(_line(tally) + "\n" + "".join(f"    {what}\n" for what in tally.findings))
        sys.stdout.flush()
    return 1 if found else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
