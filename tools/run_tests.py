"""The default test suite in three processes: tests without a cluster, shown as they run; those that wait a lot; those that only compute.

Two cores are busy then, though tests of clusters wait for much. What only computes gives way to the others, which have deadlines.

python tools/run_tests.py                          all three
python tools/run_tests.py -k shapemap -x           one pytest with these arguments
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

FIRST = ("tests/bbgrap", "tests/agents", "tests/coordinator")
MOVED = ("tests/bbgrap/auto", "tests/bbgrap/cli")
"""Of the first part's folders, what the second one takes: so all last about as long."""
COMPUTING = ("tests/conformance", "tests/exported")


def main(arguments: list[str]) -> int:
    """Run the tests and return how they ended: 0 if all parts did well, else as the first one that did not."""
    pytest = [sys.executable, "-m", "pytest"]
    if arguments:
        return subprocess.call([*pytest, *arguments])
    with tempfile.TemporaryFile("w+") as second, tempfile.TemporaryFile("w+") as third:
        # processes that run at once must not write one cache
        quiet = [*pytest, "-p", "no:cacheprovider"]
        beside = [_start([*quiet, *MOVED, *others_there()], second), _start(["nice", *quiet, *COMPUTING], third)]
        try:
            ends = [
                subprocess.call([*pytest, *FIRST, *(f"--ignore={folder}" for folder in MOVED)]),
                *(process.wait() for process in beside),
            ]
        finally:
            for process in beside:
                process.kill()
        for output in (second, third):
            output.seek(0)
            print(output.read(), end="")
    return next((end for end in ends if end), 0)  # one that was killed has a negative end


def _start(command: Sequence[str], output: IO[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)


def others_there() -> list[str]:
    """Return all folders and files with tests that the first and the third part do not have."""
    there = sorted(path for path in Path("tests").iterdir() if path.is_dir() or path.name.startswith("test_"))
    mine = [path for path in there if path.as_posix() not in (*FIRST, *COMPUTING)]
    return [os.fspath(path) for path in mine if path.is_file() or any(path.rglob("test_*.py"))]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
