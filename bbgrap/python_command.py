"""How this program starts Python again."""

from __future__ import annotations

import os
import sys


def python_command() -> list[str]:
    """Return how to start this interpreter, to be followed by `-m` and the name of a module.

    Where this process does not import from the folder it was started in, neither does the other one: a user's `random.py` lies there.
    """
    return [sys.executable, *(() if _imports_from_its_folder() else ("-P",))]


def _imports_from_its_folder() -> bool:
    if "" in sys.path:
        return True
    try:
        return os.getcwd() in sys.path  # noqa: PTH109 - as a text
    except FileNotFoundError:  # it was removed since
        return False
