"""How this program starts Python again."""

from __future__ import annotations

import sys
from pathlib import Path


def python_command() -> list[str]:
    """Return how to start this interpreter, to be followed by `-m` and the name of a module.

    Where this process does not import from the folder it was started in, neither does the other one: a user's `random.py` lies there.
    """
    return [sys.executable, *(() if "" in sys.path or str(Path.cwd()) in sys.path else ("-P",))]
