"""Runs programs as on other systems: in a Python here, with what those lack taken away.

What only these systems themselves show, as their paths or locks on open files, is not shown so.
"""

import os
import subprocess
import sys
from pathlib import Path


def run_as(system: str, program: str, *args: str, **variables: str) -> str:
    """Run a program as on `windows` or `macos`, its processes included, and return what it prints."""
    path = os.pathsep.join([str(Path(__file__).parent / f"as_{system}"), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", program, *args],
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
