"""The default test suite in two processes, one per core: the library's own tests, shown as they run, and all others, shown after them.

python tools/run_tests.py                          both halves
python tools/run_tests.py -k shapemap -x           one pytest with these arguments
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

FIRST = "tests/bbgrap"


def main(arguments: list[str]) -> int:
    """Run the tests and return how they ended: the worse of both halves."""
    pytest = [sys.executable, "-m", "pytest"]
    if arguments:
        return subprocess.call([*pytest, *arguments])
    with tempfile.TemporaryFile("w+") as output:
        # two processes must not write one cache
        others = [*pytest, "-p", "no:cacheprovider", *(str(path) for path in halves()[1])]
        beside = subprocess.Popen(others, stdout=output, stderr=subprocess.STDOUT)
        try:
            first = subprocess.call([*pytest, FIRST])
            second = beside.wait()
        finally:
            beside.kill()
        output.seek(0)
        print(output.read(), end="")
    return max(first, second)


def halves() -> tuple[list[Path], list[Path]]:
    """Return what the first process runs, and all other folders and files with tests."""
    there = sorted(path for path in Path("tests").iterdir() if path.is_dir() or path.name.startswith("test_"))
    others = [path for path in there if path != Path(FIRST) and (path.is_file() or any(path.rglob("test_*.py")))]
    return [Path(FIRST)], others


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
