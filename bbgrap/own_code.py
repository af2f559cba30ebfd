"""Which code a process runs, and whether it is still what lies on the disk: two states of a checkout have one version number."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from bbgrap.protocol.version import VERSION

PACKAGES = ("bbgrap", "bbgrap_agent", "bbgrap_coordinator")


def code_on_disk() -> str:
    """Return eight digits that other code has not, however its lines end."""
    digest = hashlib.sha256()
    for name in PACKAGES:
        spec = find_spec(name)
        for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
            for file in sorted(folder.rglob("*.py")):
                digest.update(f"{name}/{file.relative_to(folder).as_posix()}\n".encode())
                digest.update(file.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()[:8]


@cache
def own_code() -> str:
    """Return what was on the disk when this process asked first, which processes that start others do at their start."""
    return code_on_disk()


def full_version() -> str:
    """Return the version with what tells one state of the code from another: a checkout keeps its number for weeks."""
    return f"{VERSION}+{own_code()}"


def replaced_code() -> str:
    """Say so if other code lies on the disk than this process runs: what it started now would not understand it. Empty: it is the same."""
    try:
        same = code_on_disk() == own_code()
    except OSError:  # it is being replaced
        same = False
    return "" if same else "another version of bbgrap was installed while this process ran; start it again"
