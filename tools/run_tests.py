"""The default test suite in two processes, one per core: tests without a cluster, shown as they run, then the others.

python tools/run_tests.py                          both halves
python tools/run_tests.py -k shapemap -x           one pytest with these arguments
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

FIRST = ("tests/bbgrap", "tests/agents", "tests/coordinator")
COMMANDS = "tests/bbgrap/cli"
"""Of the first half's folders, what the second one takes: so both last about as long."""


def main(arguments: list[str]) -> int:
    """Run the tests and return how they ended: the worse of both halves."""
    pytest = [sys.executable, "-m", "pytest"]
    if arguments:
        return subprocess.call([*pytest, *arguments])
    with tempfile.TemporaryFile("w+") as output:
        # two processes must not write one cache
        others = [*pytest, "-p", "no:cacheprovider", COMMANDS, *map(str, others_there())]
        beside = subprocess.Popen(others, stdout=output, stderr=subprocess.STDOUT)
        try:
            first = subprocess.call([*pytest, *FIRST, f"--ignore={COMMANDS}"])
            second = beside.wait()
        finally:
            beside.kill()
        output.seek(0)
        print(output.read(), end="")
    return max(first, second)


def others_there() -> list[Path]:
    """Return all folders and files with tests that the first half does not have."""
    there = sorted(path for path in Path("tests").iterdir() if path.is_dir() or path.name.startswith("test_"))
    return [path for path in there if str(path) not in FIRST and (path.is_file() or any(path.rglob("test_*.py")))]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
